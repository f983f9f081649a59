"""Rings across hosts, whose steps take what they were measured to take on fewer hosts."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ringsim.calibration.cases import TimedCase
from ringsim.calibration.from_logs import calibrate_logs, with_ring_steps
from ringsim.calibration.library_choice import choose, fastest_protocol, library_time
from ringsim.calibration.protocol_time import predict
from ringsim.calibration.questions import Question
from ringsim.network.cluster import Cluster
from ringsim.network.file_reader import read_network
from ringsim.network.file_writer import network_text
from ringsim.registry import build
from ringsim.schedule.collective import Collective
from ringsim.simulation import predict_time

PER_HOST = 4
START_S = 6.6e-6  # as NCCL's own model has it for LL, which the times here do not tell
MESSAGES = tuple(4**power for power in range(6, 14))  # bytes of a rank


def step_s(message_bytes: float) -> float:
    """A step that takes twice as long from 64 KiB to 1 MiB as start, latency and bandwidth would say."""
    return (10e-6 + message_bytes / 20e9) * (2.0 if 2**16 <= message_bytes < 2**20 else 1.0)


def ring_s(num_ranks: int, message_bytes: float) -> float:
    """All steps, and the launch before them."""
    return START_S + (num_ranks - 1) * step_s(message_bytes)


def gathered(num_hosts: int, messages: tuple[int, ...] = MESSAGES, per_host: int = PER_HOST) -> list[TimedCase]:
    """The times of an all_gather, whose ring takes such steps."""
    ranks = num_hosts * per_host
    return [
        TimedCase("all_gather", "ring", ranks * message, ranks, num_hosts, (ring_s(ranks, message),), file="a.log")
        for message in messages
    ]


def predicted_s(cluster: Cluster, case: TimedCase) -> float:
    """By the formulas."""
    [(time_s, _)] = predict(cluster, [case.question])
    return time_s


def without_steps(cluster: Cluster) -> Cluster:
    """Return the network with its protocols alone."""
    return cluster.with_spec(library=replace(cluster.spec.library, ring_steps=()))


def with_link(cluster: Cluster) -> Cluster:
    """With a bandwidth within hosts, of which logs of several hosts say nothing."""
    host = cluster.spec.host
    return cluster.with_spec(host=replace(host, link=replace(host.link, bandwidth_bytes_per_s=1e11)))


@pytest.fixture(scope="module")
def calibrated() -> Cluster:
    """From two hosts, as it is read from the file."""
    return read_network(network_text(calibrate_logs(gathered(2), "mine").cluster), "mine.toml")


@pytest.mark.parametrize("num_hosts", [2, 64])
def test_more_hosts_take_more_of_the_same_steps(calibrated: Cluster, num_hosts: int) -> None:
    """To the figures that a file has; by the protocols alone some sizes are off by a quarter and more."""
    cases = gathered(num_hosts)
    errors = [predicted_s(calibrated, case) / case.measured_s - 1 for case in cases]
    assert errors == pytest.approx([0.0] * len(cases), abs=1e-4)
    protocols = [predicted_s(without_steps(calibrated), case) / case.measured_s - 1 for case in cases]
    assert max(np.abs(protocols)) > 0.25


def test_between_the_measured_sizes_and_beyond(calibrated: Cluster) -> None:
    """In between both logarithms are interpolated, and beyond the largest a step grows with its bytes."""
    between, largest, beyond = gathered(8, (2 * MESSAGES[-2], MESSAGES[-1], 10 * MESSAGES[-1]))
    middle_s = 31 * (step_s(MESSAGES[-2]) * step_s(MESSAGES[-1])) ** 0.5
    assert predicted_s(calibrated, between) == pytest.approx(middle_s, rel=1e-3)
    assert predicted_s(calibrated, beyond) == pytest.approx(10 * largest.measured_s, rel=1e-3)


def test_smaller_messages_than_what_was_measured(calibrated: Cluster) -> None:
    """Their time does not jump where the measured ones begin, and falls as the protocols say."""
    ranks = 8 * PER_HOST
    sizes = [ranks * MESSAGES[0] // 64, ranks * MESSAGES[0] - 1, ranks * MESSAGES[0]]
    questions = [Question("all_gather", size, ranks, 8) for size in sizes]
    small_s, below_s, smallest_s = (time_s for time_s, _ in predict(calibrated, questions))
    assert below_s == pytest.approx(smallest_s, rel=1e-3)
    by_protocols_s = [time_s for time_s, _ in predict(without_steps(calibrated), questions)]
    assert small_s / smallest_s == pytest.approx(by_protocols_s[0] / by_protocols_s[2], rel=1e-3)


@pytest.mark.parametrize(
    "question",
    [
        Question("all_gather", 2**20, 4, 1),  # within a host
        Question("all_gather", 2**20, 16, 8),  # other ranks of a host, which use other NICs
        Question("sendrecv", 2**20, 8, 2),
        Question("broadcast", 2**20, 32, 8),
    ],
)
def test_everything_else_takes_what_the_protocols_say(calibrated: Cluster, question: Question) -> None:
    """No ring across hosts, or none that was measured."""
    known = with_link(calibrated)
    assert predict(known, [question]) == predict(without_steps(known), [question])


def test_larger_messages_are_not_faster() -> None:
    """Where a disturbed time says so, the prediction does not fall; beyond the next size nothing of it is left."""
    cases = gathered(2)
    slow = cases[3]
    disturbed = [*cases[:3], replace(slow, times_s=(7 * slow.times_s[0],)), *cases[4:]]
    cluster = calibrate_logs(disturbed, "mine").cluster
    sizes = (PER_HOST * 2 * np.geomspace(MESSAGES[0], MESSAGES[-1], 100)).astype(int).tolist()
    for num_hosts in (2, 16):
        questions = [Question("all_gather", num_hosts // 2 * size, PER_HOST * num_hosts, num_hosts) for size in sizes]
        times = np.array([time_s for time_s, _ in predict(cluster, questions)])
        assert np.all(times[1:] >= times[:-1] * (1 - 1e-9))
    for case in (*cases[:3], *cases[5:]):
        assert predicted_s(cluster, case) == pytest.approx(case.measured_s, rel=0.01)


def test_the_rings_of_most_hosts_count(calibrated: Cluster) -> None:
    """Other logs are of fewer steps, or of fewer ranks of a host; two sizes are too few."""
    slower = [replace(case, times_s=(2 * case.measured_s - START_S,)) for case in gathered(8)]
    steps = with_ring_steps(without_steps(calibrated), [*gathered(2), *slower, *gathered(8, per_host=2)]).spec.library
    assert [step.time_s for step in steps.ring_steps] == pytest.approx(
        [2 * step_s(message) for message in MESSAGES], rel=1e-4
    )
    assert [step.message_bytes for step in steps.ring_steps] == list(MESSAGES)
    assert (calibrated.spec.library.ring_ranks, steps.ring_ranks) == (PER_HOST, PER_HOST)
    assert with_ring_steps(without_steps(calibrated), gathered(8, MESSAGES[:2])) == without_steps(calibrated)
    # These do not hide those of two hosts.
    few = [*gathered(2), *gathered(8, MESSAGES[:2]), *gathered(8, per_host=3)[:2]]
    assert with_ring_steps(without_steps(calibrated), few) == with_ring_steps(without_steps(calibrated), gathered(2))
    other = [replace(case, algorithm="osu") for case in gathered(8)]
    assert with_ring_steps(without_steps(calibrated), other) == without_steps(calibrated)


def test_sizes_that_only_the_rings_of_fewer_hosts_have(calibrated: Cluster) -> None:
    """Count where those of more hosts, of which the small ones are trees, have none."""
    slower, more = [replace(case, times_s=(1.2 * case.measured_s,)) for case in gathered(2)], gathered(8, MESSAGES[4:7])
    known, of_fewer, of_more = (
        with_ring_steps(without_steps(calibrated), cases).spec.library.ring_steps
        for cases in ([*slower, *more], slower, more)
    )
    assert known == (*of_fewer[:4], *of_more, *of_fewer[7:])


@pytest.mark.parametrize("message_bytes", [0, 2**14, 2**18, 2**24])
def test_what_is_simulated_takes_the_measured_steps(calibrated: Cluster, message_bytes: int) -> None:
    """A choice and a named ring take the formula's time, also where the steps are not linear in bytes.

    On fewer ranks of each host steps were not measured.
    """
    known, size_bytes = with_link(calibrated), 32 * message_bytes
    plain = without_steps(known)
    by_steps, by_protocols = (choose(network, Collective.ALL_GATHER, 32, size_bytes) for network in (known, plain))
    [(formula_s, _)] = predict(known, [Question("all_gather", size_bytes, 32, 8)])
    simulated_s = by_steps.start_s + predict_time(by_steps.schedule, by_steps.network, size_bytes)
    assert simulated_s == pytest.approx(formula_s)
    assert simulated_s > 1.2 * by_protocols.time_s() or message_bytes != 2**18
    named = fastest_protocol(by_steps.schedule, known, size_bytes)
    assert named is not None
    assert named.time_s() == pytest.approx(by_steps.time_s())
    assert library_time(by_steps.schedule, known, size_bytes) == named.time_s()
    sparse = [fastest_protocol(by_steps.schedule, net, size_bytes, ranks_per_host=1) for net in (known, plain)]
    assert len({choice.start_s for choice in sparse if choice}) == 1


def test_a_better_network_keeps_the_pace_of_the_measured_steps(calibrated: Cluster) -> None:
    """Twice the bandwidth helps, though the steps were measured without it."""
    known, size_bytes = with_link(calibrated), 32 * 2**20
    schedule = build(Collective.ALL_GATHER, "ring", 32, size_bytes)
    host = known.spec.host
    twice = replace(host.nics, bandwidth_bytes_per_s=2 * host.nics.bandwidth_bytes_per_s)
    better = known.with_spec(host=replace(host, nics=twice))
    gain = library_time(schedule, known, size_bytes) / library_time(schedule, better, size_bytes, measured=known)
    plain, plain_better = without_steps(known), without_steps(better)
    assert gain > 1.3
    assert gain == pytest.approx(
        library_time(schedule, plain, size_bytes) / library_time(schedule, plain_better, size_bytes, measured=plain)
    )


def test_no_step_is_faster_than_its_bytes_on_the_links(calibrated: Cluster) -> None:
    """Neither by the formula nor as it is simulated, though one was measured so."""
    known, size_bytes = with_link(calibrated), 32 * MESSAGES[-1]
    nics = known.spec.host.nics
    slow = replace(known.spec.host, nics=replace(nics, bandwidth_bytes_per_s=nics.bandwidth_bytes_per_s / 2))
    slower = known.with_spec(host=slow)
    [(time_s, _)] = predict(slower, [Question("all_gather", size_bytes, 32, 8)])
    chosen = choose(slower, Collective.ALL_GATHER, 32, size_bytes)
    assert chosen is not None
    sent_s = 31 * MESSAGES[-1] / (PER_HOST * slow.nics.bandwidth_bytes_per_s)
    assert time_s == pytest.approx(sent_s, rel=0.03)
    simulated_s = chosen.start_s + predict_time(chosen.schedule, chosen.network, size_bytes)
    assert simulated_s == pytest.approx(sent_s, rel=0.03)


FILL_SIZES = tuple(4**power for power in range(8, 17))


def filled(num_ranks: int, fill: float, sizes: tuple[int, ...] = FILL_SIZES) -> list[TimedCase]:
    """The times of an all_gather on links of 200 GB/s."""
    return [
        TimedCase("all_gather", "ring", size, num_ranks, 1,
                  (20e-6 + (num_ranks - 1 + fill) * (1e-6 + size / num_ranks / 200e9),), file=f"{num_ranks}.log")
        for size in sizes
    ]  # fmt: skip


@cache
def fitted(*num_ranks: int, fill: float) -> Cluster:
    """From logs of so many ranks, as it is read from the file."""
    cases = [case for ranks in num_ranks for case in filled(ranks, fill)]
    return read_network(network_text(calibrate_logs(cases, "mine").cluster), "mine.toml")


def fill_error(cluster: Cluster, num_ranks: int, fill: float) -> float:
    """Of 1 GiB."""
    (case,) = filled(num_ranks, fill, (2**30,))
    [(time_s, _)] = predict(cluster, [case.question])
    return time_s / case.measured_s - 1


@pytest.mark.parametrize(("fill", "low", "high"), [(0.1, 0.1, 0.16), (0.4, 0.35, 0.4)])
def test_logs_of_two_numbers_of_ranks_tell_it(fill: float, low: float, high: float) -> None:
    """The fit lies between the prior, 0.2, and the truth; predictions for other numbers of ranks are then right."""
    found = fitted(2, 4, fill=fill)
    assert low < found.spec.library.ring_fill < high
    assert fill_error(found, 8, fill) == pytest.approx(0, abs=0.03)


def test_one_log_leaves_what_is_believed() -> None:
    """Of many ranks on two, a prediction is off by what it may be off."""
    found = fitted(2, fill=0.3)
    assert found.spec.library.ring_fill == pytest.approx(0.2, rel=0.01)
    assert fill_error(found, 2, 0.3) == pytest.approx(0, abs=0.01)
    assert abs(fill_error(found, 8, 0.3)) < 0.08
    without = found.with_spec(library=replace(found.spec.library, ring_fill=0.0))
    assert fill_error(without, 2, 0.3) < -0.1


def with_nics(**changes: int) -> tuple[Cluster, Cluster]:
    """Return hosts with such NICs, fitted to rings that fill, and the same without the filling."""
    found = fitted(4, fill=0.3)
    nics = replace(found.spec.host.nics, bandwidth_bytes_per_s=25e9)
    found = found.with_spec(host=replace(found.spec.host, nics=nics), **changes)
    return found, found.with_spec(library=replace(found.spec.library, ring_fill=0.0))


def test_only_rings_within_a_host_fill() -> None:
    """Not a message, not a chain, and not what crosses hosts."""
    found, without = with_nics()
    others = [
        Question("sendrecv", 2**30, 2, 1),
        Question("broadcast", 2**30, 4, 1),
        Question("all_gather", 2**30, 8, 2),
    ]
    assert predict(found, others) == predict(without, others)
    [(filling_s, _)], [(full_s, _)] = (predict(net, [Question("all_gather", 2**30, 4, 1)]) for net in (found, without))
    assert filling_s == pytest.approx(full_s * (1 + found.spec.library.ring_fill / 3), rel=0.01)


def test_what_is_simulated_fills_too() -> None:
    """Chosen or named; a group with one rank of each host does not."""
    found, without = with_nics(ranks_per_host=4)
    ring = build(Collective.ALL_GATHER, "ring", 4)
    for per_host, factor in ((4, 1 + found.spec.library.ring_fill / 3), (1, 1.0)):
        for filling, full in (
            [choose(net, Collective.ALL_GATHER, 4, 2**30, ranks_per_host=per_host) for net in (found, without)],
            [fastest_protocol(ring, net, 2**30, ranks_per_host=per_host) for net in (found, without)],
        ):
            assert filling is not None
            assert full is not None
            assert filling.time_s() == pytest.approx(factor * full.time_s(), rel=0.01)
