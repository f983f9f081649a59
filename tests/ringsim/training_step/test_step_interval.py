"""Between which times a step lies: hand-solved cases, and what the commands say of it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from ringsim import Collective
from ringsim.estimates import Estimate
from ringsim.network import Calibration, Network, network_text, read_network
from ringsim.traces import Group, TraceCall, TracedStep
from ringsim.training_step import Computing, DdpConfig, outlook, predict_ddp, predict_trace, with_step_interval
from ringsim.training_step.profile import StepProfile
from tests.ringsim.commands import as_json, printed, written
from tests.ringsim.made_logs import TRUE, fitted, logs_of
from tests.ringsim.made_networks import choose
from tests.ringsim.traces.made_trace import all_reduce, call, compute, traced
from tests.ringsim.training_step.test_ddp import EACH, ONE, TWO_BUCKETS, profile_of

pytestmark = pytest.mark.usefixtures("one_start")

NOISE = 0.25
# Of 2 ranks, an all_reduce of 2m bytes takes m s, all of it for bytes.
TEXT = '[host]\nranks = 1\n[host.nic]\nlatency = "0s"\nbandwidth = "2B/s"\n'
HOSTS = read_network(TEXT, "hosts.toml")
DRAWS = ((2.0,), (0.5,))
CALIBRATED = replace(HOSTS, calibration=Calibration(noise=NOISE, parameters=("host.nic.bandwidth",), draws=DRAWS))
# Of a draw a time is twice or half as long; another collective than was calibrated is off by 6 %.
FACTOR = math.exp(1.2816 * math.hypot(math.log(2), NOISE, 0.06))


NCCL = DdpConfig(EACH, "nccl")


def interval_of(
    network: Network, profile: StepProfile = TWO_BUCKETS, num_ranks: int = 2, config: DdpConfig = ONE
) -> Estimate | None:
    """Of a step of DDP."""
    return with_step_interval(predict_ddp(profile, network, num_ranks, config).prediction).interval


def test_what_is_hidden_adds_nothing() -> None:
    """Ready after 2 s, 8 bytes take 4 s; ready after 5, 16 bytes take 8 s: both as many times as long.

    A slow link, too, takes no time on the network of free bytes, by which the share of the latencies is known.
    """
    slow = read_network(TEXT + '[[slow_link]]\nlink = "host1.nic0.out"\nslowdown = 4.0\n', "slow.toml")
    for network, slowdown in ((CALIBRATED, 1), (replace(slow, calibration=CALIBRATED.calibration), 4)):
        ends = [3 + max(5, 2 + 4 * slowdown * factor) + 8 * slowdown * factor + 1 for factor in (1 / FACTOR, FACTOR)]
        assert interval_of(network).ends == pytest.approx(tuple(ends))


def test_only_what_nothing_hides_is_uncertain() -> None:
    """The last bucket of a long backward pass: 8 bytes, which take 4 s."""
    interval = interval_of(CALIBRATED, profile_of([2, 8], [100.0, 2.0]))
    assert interval.ends == pytest.approx((104 + 4 / FACTOR, 104 + 4 * FACTOR))


TROUBLES = (
    '[[failure]]\nlink = "host0.nic0.out"\nat = "10s"\n', '[[failure]]\nlink = "host0.nic0.out"\nat = "18.5s"\n',
    "[jitter]\nlatency = 0.1\nseed = 1\n",
)  # fmt: skip


def test_no_interval_where_nothing_is_known_or_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network was not calibrated, one rank sends nothing, the algorithm is not the library's, it is too much.

    A network from probes does not tell what NCCL would take. Two buckets have 4 transfers each. With failures and
    jitter a step is not made longer by a factor; it may never end.
    """
    assert interval_of(HOSTS) is None
    assert interval_of(CALIBRATED, num_ranks=1) is None
    assert interval_of(CALIBRATED, config=NCCL) is None
    for trouble in TROUBLES:
        network = read_network(TEXT + trouble, "trouble.toml")
        assert interval_of(replace(network, calibration=CALIBRATED.calibration)) is None, trouble
    for most, has_one in ((8, True), (7, False)):
        monkeypatch.setattr(outlook, "TRIED_TRANSFERS", most)
        assert (interval_of(CALIBRATED) is not None) == has_one


@pytest.fixture(scope="module")
def from_logs(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """Of hosts with 8 GPUs."""
    shapes = ("all_gather", 8, 1), ("all_gather", 16, 2), ("all_reduce", 16, 2)
    return fitted(logs_of(tmp_path_factory.mktemp("logs"), TRUE, *shapes))


def test_calls_of_nccl_have_the_intervals_of_its_choice(from_logs: Network) -> None:
    """A step of a single bucket, which nothing hides, is as uncertain as that all_reduce; what is not bounded has none.

    Not even where a long computation hides how uncertain the communication is.
    """
    profile = profile_of([2**24], [1.0])
    step_s = predict_ddp(profile, from_logs, 16, NCCL).step_s
    interval = choose(from_logs, Collective.ALL_REDUCE, 16, 2**26).relative_interval
    expected = tuple(5 + factor * (step_s - 5) for factor in interval.ends)
    assert interval_of(from_logs, profile, 16, NCCL).ends == pytest.approx(expected)
    wild = tuple(tuple(1e9 for _ in draw) for draw in from_logs.calibration.draws)
    network = replace(from_logs, calibration=structs.replace(from_logs.calibration, draws=wild))
    assert interval_of(network, profile, 16, NCCL) is None


def interval_of_calls(
    network: Network, *calls: TraceCall, ranks: tuple[int, ...] = tuple(range(16)), num_ranks: int = 16
) -> Estimate | None:
    """Of a step on GPUs that does nothing but make these calls of a group."""
    events = tuple(call(index) for index in range(len(calls)))
    trace = traced(TracedStep(events, calls), groups=(Group(ranks, "nccl"),), num_ranks=num_ranks)
    return with_step_interval(predict_trace(trace, network, Computing(on_gpu=True))).interval


@pytest.mark.parametrize(
    ("ranks", "num_ranks", "has_one"),
    [
        *((ranks, num_ranks, False) for ranks, num_ranks in (((0, 8), 16), ((0, 8), 24), ((0, 1, 8, 9), 16))),
        *((tuple(range(ranks)), 2 * ranks, True) for ranks in (8, 16)),
    ],
)
def test_nics_are_shared_by_groups(from_logs: Network, ranks: tuple[int, ...], num_ranks: int, has_one: bool) -> None:
    """How many NICs there are is a guess, and an interval takes a group to be the only one that uses them."""
    found = interval_of_calls(from_logs, all_reduce(2**26), ranks=ranks, num_ranks=num_ranks)
    assert (found is not None) == has_one
    host = structs.replace(from_logs.spec.host, nics=structs.replace(from_logs.spec.host.nics, count=8))
    known = replace(from_logs, spec=structs.replace(from_logs.spec, host=host))
    assert interval_of_calls(known, all_reduce(2**26), ranks=ranks, num_ranks=num_ranks) is not None


def test_the_mean_is_weighted_by_time(from_logs: Network) -> None:
    """Of a large call, and a small one that is made three times."""
    large, small = all_reduce(2**28), all_reduce(2**12)
    of_large, of_small = (interval_of_calls(from_logs, one).ends for one in (large, small))
    expected = [large_s + 3 * small_s for large_s, small_s in zip(of_large, of_small, strict=True)]
    assert [*interval_of_calls(from_logs, large, small, small, small).ends] == pytest.approx(expected)


def test_no_interval_with_a_call_that_has_none(from_logs: Network) -> None:
    """Of all_to_all there is no formula, and an algorithm that is named is not NCCL's choice."""
    assert interval_of_calls(from_logs, all_reduce(2**10)) is not None
    for other in ({"collective": "all_to_all"}, {"algorithm": "nccl_tree"}):
        assert interval_of_calls(from_logs, all_reduce(2**10), structs.replace(all_reduce(2**26), **other)) is None


def test_a_recorded_step_has_one() -> None:
    """Computations are as long as they are given, here ten times as long as recorded.

    The short step, which has no calls, is a third of the mean.
    """
    long, short = TracedStep((compute(3.0), call(0)), (all_reduce(16),)), TracedStep((compute(1.0),), ())
    prediction = predict_trace(traced(long, long, short), CALIBRATED, Computing(scale=10.0))
    expected = (70 + 24 / FACTOR) / 3, (70 + 24 * FACTOR) / 3
    assert with_step_interval(prediction).interval.ends == pytest.approx(expected)


def test_commands_say_it(from_logs: Network, tmp_path: Path) -> None:
    """In the table and in JSON, as `ringsim simulate` does; without a calibration there is no such row."""
    network, profile = written(tmp_path / "mine.toml", network_text(from_logs)), tmp_path / "profile.json"
    trace = tmp_path / "step.trace.json"
    profile_of([2**24], [1.0]).save(profile)
    step = TracedStep((compute(3.0), call(0)), (all_reduce(2**26),))
    traced(step, groups=(Group(tuple(range(16)), "nccl"),), num_ranks=16).save(trace)
    for command in ("ddp", "--profile", profile, "--ranks", "16"), ("step", trace):
        assert "expected to 80%" in printed(*command, "--network", network)
        assert "expected to 80%" not in printed(*command, "--network", "dgx-h100-cluster")
        predicted = as_json(*command, "--network", network)
        assert predicted["predicted_low_s"] < predicted["step_s"] < predicted["predicted_high_s"]
        assert as_json(*command, "--network", "dgx-h100-cluster")["predicted_low_s"] is None
    assert "expected to" not in printed("step", trace, "--network", network, "--measured-step", "10s")
