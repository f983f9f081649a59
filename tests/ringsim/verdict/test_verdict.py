"""Verdicts on measurements and jobs that were made up, so that the right answer is known.

The snapshots hold all answers, each with its reasons, and the command where the data do not suffice.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from ringsim import Measurements, Network, calibrate
from ringsim.calibration import ComparedCase, ComparedCells, Timing
from ringsim.estimates import Estimate
from ringsim.libraries import Call
from ringsim.network.spec import SlowLink, SlowRank
from ringsim.training_step import PredictedDdpStep
from ringsim.verdict import JobReport, RunDirectory
from ringsim.verdict.predictions import AlgorithmChoice, Bound, _choose_algorithm, all_reduce_s, attribute, scatter
from ringsim.verdict.records import DdpPrediction, LogEntry, TrainingLog
from ringsim.verdict.verdict import Topic, Verdict, find_straggler, judge
from tests.ringsim.made_probes import hosts, made_measurements, one_host, without_probes
from tests.ringsim.verdict.made_jobs import made_job, made_strategy

pytestmark = pytest.mark.usefixtures("few_draws")

SLOW = tuple(SlowLink(f"host2.nic0.{way}", slowdown=5.0) for way in ("out", "in"))
PROBED = made_measurements(2)


def on(measurements: Measurements) -> Verdict:
    """The verdict on a directory with that file alone, with predictions for two sizes."""
    with patch("ringsim.verdict.predictions._sizes", lambda last: [2**10, last]):
        return judge(RunDirectory("made", measurements={"m.json": measurements}))


def on_job(measurements: Measurements, *strategies: dict[str, object]) -> Verdict:
    """The verdict on a strategy comparison alone, with predictions for its gradients' size only."""
    data = made_job(measurements, list(strategies))
    with patch("ringsim.verdict.predictions._sizes", lambda last: [last]):
        return judge(RunDirectory("made", jobs={"report.json": JobReport.from_dict(data)}))


def on_cell(network: str, predicted_s: float, used: bool = False) -> Verdict:
    """The verdict on a time of 1.02 ms that was compared on `network`, beside a prediction for "mine"."""
    case = Timing(Call("all_reduce", 2**20, 8, 1), "nccl", (1.02e-3,), spread_s=(0.0, 1.02e-4))
    cell = ComparedCase(case, predicted_s, "", used).cell
    prediction = DdpPrediction(ddp_step(64, 1, 0.01), None, (), (), {"name": "mine"})
    cells = {"compare.json": ComparedCells(network, (cell,))}
    return judge(RunDirectory("made", cells=cells, predicted={"ddp.json": prediction}))


def ddp_step(num_ranks: int, cap: int, exposed_s: float) -> PredictedDdpStep:
    """A predicted step of 0.1 s on one process, with caps of so many MiB."""
    return PredictedDdpStep(
        num_ranks=num_ranks, cap_bytes=cap * 2**20, step_s=0.1 + exposed_s, exposed_s=exposed_s, communication_s=0.02,
        single_s=0.1, efficiency=0.1 / (0.1 + exposed_s),
    )  # fmt: skip


def on_ddp() -> Verdict:
    """The verdict on predictions of DDP on 64 ranks, on twice as many, and with a larger cap."""
    few, many, large = (ddp_step(*step) for step in ((64, 25, 0.010), (128, 25, 0.030), (64, 100, 0.002)))
    prediction = DdpPrediction(few, 0.11, (few, large), (few, many), {"name": "mine"})
    return judge(RunDirectory("made", predicted={"ddp.json": prediction}))


def straggling(*stragglers: int, waits_s: float = 0.060) -> list[dict[str, Any]]:
    """Strategies of three ranks, in each of which the others wait for one."""
    ranks = zip(("ring", "flat", "ddp"), stragglers, strict=False)
    return [made_strategy(name, 3, 0.010, 0.100, waits_s, rank) for name, rank in ranks]


RING = made_strategy("ring", 2, 0.0043, 0.0541)
BUSY_HOST = made_measurements(3, 8, one_host(8))
VERDICTS: dict[str, Callable[[], Verdict]] = {
    "latency bounds short messages, bandwidth long ones": lambda: on(made_measurements(4, 8, hosts(bandwidth=2e7))),
    "a straggling link": lambda: on(made_measurements(4, 8, hosts(slow=SLOW))),
    "measured as predicted": lambda: on(PROBED),
    "measured twice as long": lambda: on(made_measurements(2, slower=2.0)),
    "no collectives": lambda: on(replace(PROBED, collectives=())),
    "no probes": lambda: on(without_probes(PROBED)),
    "computing bounds a step": lambda: on_job(
        BUSY_HOST, made_strategy("none", 3, 1e-6, 0.09), made_strategy("ring", 3, 0.010, 0.100),
        made_strategy("ddp", 3, 0.012, 0.1001), made_strategy("flat", 3, 0.030, 0.130),
    ),
    "one rank": lambda: on_job(Measurements(1, {"cores": 2}), made_strategy("ring", 1, 0.0, 0.1)),
    "most of the cost is waiting": lambda: on_job(PROBED, made_strategy("none", 2, 1e-6, 0.0395), RING),
    "no step without synchronisation": lambda: on_job(PROBED, RING),
    "most of the step is waiting": lambda: on_job(PROBED, made_strategy("none", 2, 1e-6, 0.02), RING),
    "synchronising bounds a step": lambda: on_job(
        made_measurements(3, 8, hosts(bandwidth=1e7)), made_strategy("ring", 3, 0.5, 0.6)
    ),
    "a straggling rank": lambda: on_job(BUSY_HOST, *straggling(1, 1, 1)),
    "predictions of DDP": on_ddp,
    "all was used in the calibration": lambda: on_cell("mine", 1e-3, used=True),
    "half as long as measured": lambda: on_cell("mine", 0.5e-3),
    "compared on no network": lambda: on_cell("uniform", 1e-3),
    "compared on another network": lambda: on_cell("other", 1e-3),
    "a log": lambda: judge(RunDirectory("made", logs={"runs/mlp": TrainingLog((LogEntry(10, 2.0, 100.0, 0.7),))})),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_answers(name: str, snapshot: SnapshotAssertion) -> None:
    """Of each topic: what bounds, which algorithm and bucket to use, what twice the ranks do, and how sure it is."""
    assert [
        [f"{finding.topic.value} {finding.answer}", *finding.reasons, *filter(None, [finding.command])]
        for finding in VERDICTS[name]().findings
    ] == snapshot


def test_predictions_on_the_fitted_network() -> None:
    """Twice the ranks are as on the true network with as many more hosts; the fastest algorithm is chosen if sure."""
    measurements = made_measurements(4, 8, hosts())
    verdict = on(replace(measurements, collectives=measurements.collectives[:2]))
    truth_s = all_reduce_s(hosts(), "ring", 8, 2**16)
    assert verdict.forecast.scaled[1].all_reduce_s.value == pytest.approx(truth_s, rel=0.02)
    assert verdict.finding(Topic.RANKS).answer.startswith(
        "On 8 ranks on 8 such hosts an all_reduce of 64 KiB would take "
    )
    first = verdict.forecast.algorithms[0]
    for choice in verdict.forecast.algorithms:
        times = {name: all_reduce_s(hosts(), name, 4, choice.size_bytes) for name in first.times_s}
        assert times[choice.chosen] < 1.1 * min(times.values())
    assert first.gain.value == pytest.approx(first.times_s["ring"] / first.times_s[first.chosen])
    assert first.chosen != "ring"  # which sends six messages one after the other
    assert f"use `{first.chosen}` " in verdict.finding(Topic.ALGORITHM).answer
    assert AlgorithmChoice(64, {"direct": 1.0, "ring": 1.2}, None).chosen == "ring"  # not sure


@pytest.mark.parametrize(("low", "is_sure"), [(0.9, False), (1.1, False), (1.3, True)])
def test_a_gain_within_the_errors_of_predictions_is_not_sure(low: float, is_sure: bool) -> None:
    """Both ends count: the interval of the bootstrap, and how far predictions scatter."""
    fit = calibrate(PROBED)
    with patch("ringsim.calibration.with_interval", lambda *_: Estimate(1.5, low, 2.0)):
        choice = _choose_algorithm(fit, ["ring", "recursive_doubling"], 2, 2**10, 1.2)
    assert (choice.chosen == "recursive_doubling") == is_sure
    assert _choose_algorithm(fit, ["ring", "recursive_doubling"], 2, 2**10, 100.0).chosen == "ring"


def test_errors_that_all_predictions_have_in_common_do_not_count() -> None:
    """Twice too long everywhere changes no order; half of them twice too long does."""
    assert [scatter(ratios) for ratios in ([2.0] * 3, [1.0, 2.0] * 2, [])] == pytest.approx([1.0, 2**0.5, 1.0])


def test_a_busy_machine_is_not_reliable() -> None:
    """The answer has the words of `ringsim calibrate`."""
    with patch("ringsim.calibration.from_probes.TOO_WIDE", 0.0):
        busy = on(PROBED).finding(Topic.RELIABILITY)
    assert busy.answer.startswith("Not reliable: the machine was busy while messages of ")
    assert "this machine was busy: a message of " in busy.reasons[0]


def test_waits_that_may_be_chance_make_no_straggler() -> None:
    """Waits within the variation of synchronising, and waits in one strategy alone, name no straggler."""
    for strategies in (straggling(1, 1, 1, waits_s=0.0001), straggling(0, 1)):
        assert find_straggler(JobReport.from_dict(made_job(made_measurements(3), strategies)).strategies) is None


@pytest.mark.parametrize(
    ("cluster", "num_ranks", "size_bytes", "bound"),
    [
        (one_host(64, latency_s=5e-3), 4, 2**10, Bound.LATENCY),
        (hosts(bandwidth=1e7), 4, 2**24, Bound.BANDWIDTH),
        (one_host(1, latency_s=0.0), 8, 2**16, Bound.CORES),
        (hosts(bandwidth=1e8, slow=SLOW), 4, 2**24, Bound.STRAGGLER),
        (one_host(64, latency_s=0.0).with_spec(slow_ranks=(SlowRank(1, 20.0),)), 4, 2**20, Bound.STRAGGLER),
    ],
    ids=range(5),
)
def test_each_bound_is_found(cluster: Network, num_ranks: int, size_bytes: int, bound: Bound) -> None:
    """Where one cost is far above all others; the four charges add up to the time of a call."""
    attribution = attribute(cluster, num_ranks, size_bytes)
    assert attribution.bound is bound
    assert attribution.share(bound) > 0.6
    assert attribution.time_s == pytest.approx(all_reduce_s(cluster, "ring", num_ranks, size_bytes))
    assert sum(map(attribution.share, Bound)) == pytest.approx(1.0)
