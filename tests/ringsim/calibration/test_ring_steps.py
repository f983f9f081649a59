"""Rings across hosts, whose steps take what they were measured to take on fewer hosts; and rings that fill."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from msgspec import structs

from ringsim import Collective, Network, predict_time
from ringsim.calibration import Timing
from ringsim.calibration.from_logs import calibrate_logs, with_ring_steps
from ringsim.libraries import Call, predict
from ringsim.libraries.library import NCCL
from ringsim.network import RingStep
from ringsim.registry import build
from tests.ringsim.made_logs import fitted
from tests.ringsim.made_networks import choose

PER_HOST = 4
START_S = 6.6e-6  # as NCCL's own model has it for LL, which the times here do not tell
MESSAGES = tuple(4**power for power in range(6, 14))  # bytes of a rank


def step_s(message_bytes: float) -> float:
    """A step that takes twice as long from 64 KiB to 1 MiB as start, latency and bandwidth would say."""
    return (10e-6 + message_bytes / 20e9) * (2.0 if 2**16 <= message_bytes < 2**20 else 1.0)


def gathered(
    num_hosts: int, messages: tuple[int, ...] = MESSAGES, per_host: int = PER_HOST, slower: float = 1.0
) -> list[Timing]:
    """The times of an all_gather: the launch, and as many steps as there are other ranks."""
    ranks = num_hosts * per_host
    times = [START_S + slower * (ranks - 1) * step_s(message) for message in messages]
    return [
        Timing(Call("all_gather", ranks * message, ranks, num_hosts), "ring", (time_s,), file="a.log")
        for message, time_s in zip(messages, times, strict=True)
    ]


def asked(network: Network, *calls: Call) -> list[float]:
    """Return the seconds by the formulas."""
    return [time_s for time_s, _ in predict(network, calls)]


def errors(network: Network, cases: list[Timing]) -> list[float]:
    """By the formulas."""
    times = asked(network, *(case.call for case in cases))
    return [time_s / case.measured_s - 1 for time_s, case in zip(times, cases, strict=True)]


def steps_of(network: Network, cases: list[Timing]) -> tuple[RingStep, ...]:
    """Return the steps that these cases tell."""
    return with_ring_steps(without_steps(network), cases).spec.library.ring_steps


def without_steps(network: Network) -> Network:
    """Return the network with its protocols alone."""
    return network.with_spec(library=structs.replace(network.spec.library, ring_steps=()))


def with_rates(network: Network, link: float = 1e11, nics: float = 1.0) -> Network:
    """With a bandwidth within hosts, of which logs of several hosts say nothing, and NICs so many times as fast."""
    host = network.spec.host
    faster = structs.replace(host.nics, bandwidth_bytes_per_s=nics * host.nics.bandwidth_bytes_per_s)
    linked = structs.replace(host.link, bandwidth_bytes_per_s=link)
    return network.with_spec(host=structs.replace(host, link=linked, nics=faster))


@pytest.fixture(scope="module")
def calibrated(one_start: None) -> Network:  # noqa: ARG001
    """From two hosts, as it is read from the file."""
    return fitted(gathered(2))


@pytest.mark.parametrize("num_hosts", [2, 64])
def test_more_hosts_take_more_of_the_same_steps(calibrated: Network, num_hosts: int) -> None:
    """To the figures that a file has; by the protocols alone some sizes are off by a quarter and more."""
    cases = gathered(num_hosts)
    assert errors(calibrated, cases) == pytest.approx([0.0] * len(cases), abs=1e-4)
    assert max(np.abs(errors(without_steps(calibrated), cases))) > 0.25


def test_sizes_that_were_not_measured(calibrated: Network) -> None:
    """In between both logarithms are interpolated, and beyond the largest a step grows with its bytes.

    The time of smaller messages does not jump where the measured ones begin, and falls as the protocols say.
    """
    between, largest, beyond = gathered(8, (2 * MESSAGES[-2], MESSAGES[-1], 10 * MESSAGES[-1]))
    middle_s = 31 * (step_s(MESSAGES[-2]) * step_s(MESSAGES[-1])) ** 0.5
    expected = pytest.approx([middle_s, 10 * largest.measured_s], rel=1e-3)
    assert asked(calibrated, between.call, beyond.call) == expected
    sizes = [32 * MESSAGES[0] // 64, 32 * MESSAGES[0] - 1, 32 * MESSAGES[0]]
    calls = [Call("all_gather", size, 32, 8) for size in sizes]
    (small_s, below_s, smallest_s), by_protocols_s = (
        asked(net, *calls) for net in (calibrated, without_steps(calibrated))
    )
    assert below_s == pytest.approx(smallest_s, rel=1e-3)
    assert small_s / smallest_s == pytest.approx(by_protocols_s[0] / by_protocols_s[2], rel=1e-3)


def test_everything_else_takes_what_the_protocols_say(calibrated: Network) -> None:
    """No ring across hosts, or none that was measured: within a host, or on its other ranks, which use other NICs."""
    asked_for = ("all_gather", 4, 1), ("all_gather", 16, 8), ("sendrecv", 8, 2), ("broadcast", 32, 8)
    calls = [Call(test, 2**20, ranks, hosts) for test, ranks, hosts in asked_for]
    known = with_rates(calibrated)
    assert predict(known, calls) == predict(without_steps(known), calls)


@pytest.mark.usefixtures("one_start")
def test_larger_messages_are_not_faster() -> None:
    """Where a disturbed time says so, the prediction does not fall; beyond the next size nothing of it is left."""
    cases = gathered(2)
    slow = cases[3]
    disturbed = [*cases[:3], replace(slow, times_s=(7 * slow.times_s[0],)), *cases[4:]]
    cluster = calibrate_logs(disturbed, "mine").cluster
    sizes = (PER_HOST * 2 * np.geomspace(MESSAGES[0], MESSAGES[-1], 100)).astype(int).tolist()
    for hosts in (2, 16):
        calls = [Call("all_gather", hosts // 2 * size, PER_HOST * hosts, hosts) for size in sizes]
        times = np.array(asked(cluster, *calls))
        assert np.all(times[1:] >= times[:-1] * (1 - 1e-9))
    assert errors(cluster, [*cases[:3], *cases[5:]]) == pytest.approx([0.0] * 6, abs=0.01)


def test_the_rings_of_most_hosts_count(calibrated: Network) -> None:
    """Other logs are of fewer steps, or of fewer ranks of a host; two sizes are too few, and hide no others.

    Sizes that only the rings of fewer hosts have count where those of more, of which the small ones are trees, have
    none.
    """
    many = [*gathered(2), *gathered(8, slower=2.0), *gathered(8, per_host=2)]
    steps, of_two = steps_of(calibrated, many), steps_of(calibrated, gathered(2))
    assert [step.time_s for step in steps] == pytest.approx([2 * step_s(message) for message in MESSAGES], rel=1e-4)
    assert [step.message_bytes for step in steps] == list(MESSAGES)
    assert with_ring_steps(without_steps(calibrated), many).spec.library.ring_ranks == PER_HOST
    other = [replace(case, algorithm="osu") for case in gathered(8)]
    assert steps_of(calibrated, gathered(8, MESSAGES[:2])) == steps_of(calibrated, other) == ()
    few = [*gathered(8, MESSAGES[:2]), *gathered(8, per_host=3)[:2]]
    assert steps_of(calibrated, [*gathered(2), *few]) == of_two
    more, slower = gathered(8, MESSAGES[4:7]), gathered(2, slower=1.2)
    of_more, of_slower = steps_of(calibrated, more), steps_of(calibrated, slower)
    assert steps_of(calibrated, [*slower, *more]) == (*of_slower[:4], *of_more, *of_slower[7:])


@pytest.mark.parametrize("message_bytes", [0, 2**14, 2**18, 2**24])
def test_what_is_simulated_takes_the_measured_steps(calibrated: Network, message_bytes: int) -> None:
    """A choice and a named ring take the formula's time, also where the steps are not linear in bytes.

    On fewer ranks of each host steps were not measured.
    """
    known, size_bytes = with_rates(calibrated), 32 * message_bytes
    plain = without_steps(known)
    by_steps, by_protocols = (choose(network, Collective.ALL_GATHER, 32, size_bytes) for network in (known, plain))
    simulated_s = by_steps.start_s + predict_time(by_steps.schedule, by_steps.network, size_bytes)
    assert [simulated_s] == pytest.approx(asked(known, Call("all_gather", size_bytes, 32, 8)))
    assert simulated_s > 1.2 * by_protocols.time_s() or message_bytes != 2**18
    assert NCCL.time_s(by_steps.schedule, known, size_bytes) == pytest.approx(by_steps.time_s())
    sparse = [NCCL.fastest_plan(by_steps.schedule, net, size_bytes, per_host=1) for net in (known, plain)]
    assert len({choice.start_s for choice in sparse if choice}) == 1


def test_a_better_network_keeps_the_pace_of_the_measured_steps(calibrated: Network) -> None:
    """Twice the bandwidth helps, though the steps were measured without it.

    No step is faster than its bytes on the links, neither by the formula nor as simulated, though one was measured so.
    """
    known, schedule = with_rates(calibrated), build(Collective.ALL_GATHER, "ring", 32, 32 * 2**20)
    gains = [
        NCCL.time_s(schedule, net, 32 * 2**20)
        / NCCL.time_s(schedule, with_rates(net, nics=2.0), 32 * 2**20, measured=net)
        for net in (known, without_steps(known))
    ]
    assert gains[0] > 1.3
    assert gains[0] == pytest.approx(gains[1])
    slower, size_bytes = with_rates(calibrated, nics=0.5), 32 * MESSAGES[-1]
    chosen = choose(slower, Collective.ALL_GATHER, 32, size_bytes)
    simulated_s = chosen.start_s + predict_time(chosen.schedule, chosen.network, size_bytes)
    sent_s = 31 * MESSAGES[-1] / (PER_HOST * slower.spec.host.nics.bandwidth_bytes_per_s)
    times = [*asked(slower, Call("all_gather", size_bytes, 32, 8)), simulated_s]
    assert times == pytest.approx([sent_s] * 2, rel=0.03)


FILL_SIZES = tuple(4**power for power in range(8, 17))


def filled(num_ranks: int, fill: float, sizes: tuple[int, ...] = FILL_SIZES) -> list[Timing]:
    """The times of an all_gather on links of 200 GB/s."""
    return [
        Timing(Call("all_gather", size, num_ranks, 1), "ring",
                  (20e-6 + (num_ranks - 1 + fill) * (1e-6 + size / num_ranks / 200e9),), file=f"{num_ranks}.log")
        for size in sizes
    ]  # fmt: skip


@cache
def filling(*num_ranks: int, fill: float) -> Network:
    """From logs of so many ranks."""
    return fitted([case for ranks in num_ranks for case in filled(ranks, fill)])


@pytest.mark.parametrize(("fill", "low", "high"), [(0.1, 0.1, 0.16), (0.4, 0.35, 0.4)])
def test_logs_of_two_numbers_of_ranks_tell_how_long_a_ring_fills(fill: float, low: float, high: float) -> None:
    """The fit lies between the prior, 0.2, and the truth; predictions for other numbers of ranks are then right."""
    found = filling(2, 4, fill=fill)
    assert low < found.spec.library.ring_fill < high
    assert errors(found, filled(8, fill, (2**30,))) == pytest.approx([0.0], abs=0.03)


def test_one_log_leaves_what_is_believed() -> None:
    """Of many ranks on two, a prediction is off by what it may be off."""
    found, two, eight = filling(2, fill=0.3), filled(2, 0.3, (2**30,)), filled(8, 0.3, (2**30,))
    assert found.spec.library.ring_fill == pytest.approx(0.2, rel=0.01)
    assert errors(found, two) == pytest.approx([0.0], abs=0.01)
    assert errors(found, eight) == pytest.approx([0.0], abs=0.08)
    without = found.with_spec(library=structs.replace(found.spec.library, ring_fill=0.0))
    assert errors(without, two)[0] < -0.1


def test_only_rings_within_a_host_fill() -> None:
    """By the formula and as simulated, chosen or named. Not a message, not a chain, not what crosses hosts.

    Nor does a group with one rank of each host.
    """
    found = filling(4, fill=0.3).with_spec(ranks_per_host=4)
    nics = structs.replace(found.spec.host.nics, bandwidth_bytes_per_s=25e9)
    found = found.with_spec(host=structs.replace(found.spec.host, nics=nics))
    networks = found, found.with_spec(library=structs.replace(found.spec.library, ring_fill=0.0))
    shapes = ("sendrecv", 2, 1), ("broadcast", 4, 1), ("all_gather", 8, 2), ("all_gather", 4, 1)
    calls = [Call(test, 2**30, ranks, hosts) for test, ranks, hosts in shapes]
    (*others_s, filling_s), (*same_s, full_s) = (asked(network, *calls) for network in networks)
    assert others_s == same_s
    factor = 1 + found.spec.library.ring_fill / 3
    assert filling_s == pytest.approx(full_s * factor, rel=0.01)
    ring, call = build(Collective.ALL_GATHER, "ring", 4), (4, 2**30)
    for per_host, expected in ((4, factor), (1, 1.0)):
        chosen = [choose(net, Collective.ALL_GATHER, *call, ranks_per_host=per_host) for net in networks]
        named = [NCCL.fastest_plan(ring, net, 2**30, per_host=per_host) for net in networks]
        for pair in (chosen, named):
            filling_s, full_s = (choice.time_s() for choice in pair if choice)
            assert filling_s == pytest.approx(expected * full_s, rel=0.01)
