"""Laws that hold for any schedule on any topology that shares things, and some that do not."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import Collective, Schedule, Timeline, permute_ranks
from ringsim.analysis.candidates import busbw_bytes_per_s
from ringsim.network.topology import NONE, Ints, Jitter, Resources, Topology
from ringsim.registry import build
from ringsim.schedule.dependencies import dependencies
from ringsim.schedule.flow import NO_ROW
from ringsim.simulation.engines.event_engine import run_events
from tests.ringsim.simulation.test_engines import MAX_RANKS, chunk_bytes, times
from tests.ringsim.strategies import schedules
from tests.ringsim.topologies import TableTopology, one_nic_hosts, ranks_with, resources, shared_topologies

TOPOLOGIES = shared_topologies(MAX_RANKS)
SIZES = st.integers(0, 10**5)


def with_nothing_shared(topology: TableTopology) -> TableTopology:
    """Every message as fast as if it were alone, and cores for all."""
    src, dst = np.indices(topology.bytes_per_s.shape)
    alone = topology.paths(src.ravel(), dst.ravel()).alone_bytes_per_s(topology.resources).reshape(src.shape)
    cores = topology.processors.cores != NONE
    fraction = np.where(cores, np.minimum(topology.resources.capacity[topology.processors.cores], 1.0), 1.0)
    processors = replace(
        topology.processors,
        send_overhead_s=topology.processors.send_overhead_s / fraction,
        receive_overhead_s=topology.processors.receive_overhead_s / fraction,
        reduce_bytes_per_s=topology.processors.reduce_bytes_per_s * fraction,
        cores=np.full(topology.num_ranks, NONE),
    )
    no_paths = {"resource": topology.resource[..., :0], "use": topology.use[..., :0]}
    tables = {"latency_s": topology.latency_s, "bytes_per_s": alone, **no_paths}
    return TableTopology(topology.num_ranks, Resources.none(), processors, topology.jitter, **tables)


def run(schedule: Schedule, topology: Topology, sizes: Ints) -> Timeline:
    """Return the times of all transfers by the event engine."""
    return run_events(dependencies(schedule), topology, sizes)


@given(schedules(), TOPOLOGIES, SIZES)
def test_sharing_never_makes_anything_earlier(schedule: Schedule, topology: TableTopology, size: int) -> None:
    """Every transfer's every time."""
    shared = times(run(schedule, topology, chunk_bytes(schedule, size)))
    alone = times(run(schedule, with_nothing_shared(topology), chunk_bytes(schedule, size)))
    assert (shared >= alone * (1 - 1e-9)).all()


@given(schedules(), TOPOLOGIES, SIZES)
def test_no_resource_ever_gives_more_than_it_has(schedule: Schedule, topology: TableTopology, size: int) -> None:
    """Of messages that are sent within any span of time, all together."""
    timeline = run(schedule, topology, chunk_bytes(schedule, size))
    amount = chunk_bytes(schedule, size)[timeline.chunk]
    for begin in {0.0, *timeline.start_s}:
        for end in {end for end in timeline.sent_s if end >= begin}:
            within = (timeline.start_s >= begin) & (timeline.sent_s <= end)
            resource, use = (table[timeline.src[within], timeline.dst[within]] for table in
                             (topology.resource, topology.use))  # fmt: skip
            for number, capacity in enumerate(topology.resources.capacity):
                used = (np.where(resource == number, use, 0).sum(axis=1) * amount[within]).sum()
                assert used <= capacity * (end - begin) * (1 + 1e-9) + 1e-6


@given(schedules(), TOPOLOGIES, SIZES)
def test_twice_of_everything_takes_exactly_twice_as_long(
    schedule: Schedule, topology: TableTopology, size: int
) -> None:
    """Twice the bytes, latencies and overheads: to the last bit, so no time is compared with a fixed one."""
    chunks = chunk_bytes(schedule, size)
    once = times(run(schedule, topology, chunks))
    topology.latency_s = topology.latency_s * 2
    of = topology.processors
    topology.processors = replace(
        of, send_overhead_s=of.send_overhead_s * 2, receive_overhead_s=of.receive_overhead_s * 2
    )
    assert (times(run(schedule, topology, chunks * 2)) == 2 * once).all()


@pytest.mark.parametrize("num_hosts", [2, 3])
@pytest.mark.parametrize("ranks_per_host", [1, 2, 4])
def test_a_ring_gets_what_the_nics_give(num_hosts: int, ranks_per_host: int) -> None:
    """Host by host one message at a time crosses each NIC; dealt out in turn all do; half duplex halves it all."""
    num_ranks, bandwidth = num_hosts * ranks_per_host, 1e9
    size = num_ranks * 1000
    dealt_out = [place % num_hosts * ranks_per_host + place // num_hosts for place in range(num_ranks)]
    ring = build(Collective.ALL_REDUCE, "ring", num_ranks)
    for schedule, crossing in ((ring, 1), (permute_ranks(ring, dealt_out), ranks_per_host)):
        for half_duplex in (False, True):
            topology = one_nic_hosts(num_ranks, ranks_per_host, bandwidth, half_duplex=half_duplex)
            time_s = run(schedule, topology, chunk_bytes(schedule, size)).time_s
            busbw = busbw_bytes_per_s(Collective.ALL_REDUCE, num_ranks, size, time_s)
            assert busbw == pytest.approx(bandwidth / crossing / (1 + half_duplex))


def test_the_same_again_to_the_last_bit() -> None:
    """And other delays from another seed."""
    schedule, topology = build(Collective.ALL_REDUCE, "hierarchical", 8), one_nic_hosts(8, 4, 1e9)
    topology.latency_s += 1e-5
    found = []
    for seed in (1, 1, 2):
        topology.jitter = Jitter(seed, latency=0.5)
        found.append(times(run(schedule, topology, chunk_bytes(schedule, 8000))))
    assert (found[0] == found[1]).all()
    assert found[0][-1].max() != found[2][-1].max()


def topology_with(num_ranks: int, uses: Mapping[tuple[int, int], Sequence[int]], capacity: list[float],
                 bytes_per_s: float = math.inf) -> TableTopology:  # fmt: skip
    """These pairs use these resources; all other messages are limited by `bytes_per_s` alone."""
    resource = np.full((num_ranks, num_ranks, 2), NONE)
    rates = np.full((num_ranks, num_ranks), bytes_per_s)
    for (src, dst), used in uses.items():
        resource[src, dst, : len(used)] = used
        rates[src, dst] = math.inf
    use, latency = np.where(resource == NONE, 0.0, 1.0), np.zeros((num_ranks, num_ranks))
    return TableTopology(num_ranks, resources(capacity), ranks_with(num_ranks), None, latency, rates, resource, use)


def schedule_of(num_ranks: int, *rows: tuple[int, int, int]) -> Schedule:
    """A copy a step: src, dst, chunk."""
    num_chunks = 1 + max(chunk for _, _, chunk in rows)
    return Schedule.from_columns(Collective.ALL_REDUCE, "x", num_ranks, num_chunks, [(*row, False) for row in rows])


def test_a_faster_link_can_make_it_slower() -> None:
    """As docs/decisions/006 works it out: 0 -> 1 is what takes long, and 2 -> 3 gets in its way once it can."""
    schedule = schedule_of(4, (0, 1, 0), (0, 1, 1), (2, 3, 1))
    times_s = [
        run(schedule, topology_with(4, {(0, 1): [1, 2], (2, 3): [0, 1]}, [slow, 3, 2]), np.array([3, 4])).time_s
        for slow in (1.0, 2.0)
    ]
    assert times_s == pytest.approx([4, 25 / 6])


def test_more_bytes_can_take_less_time() -> None:
    """As docs/decisions/006 works it out: a message that comes later lets another through on which more depends."""
    schedule = schedule_of(5, (0, 1, 0), (2, 3, 1), (1, 2, 0), (3, 4, 1))
    topology = topology_with(5, {(2, 3): [0], (1, 2): [0]}, [1.0], bytes_per_s=1.0)
    topology.bytes_per_s[3, 4] = 0.2
    assert [run(schedule, topology, np.array([size, 2])).time_s for size in (1, 2)] == pytest.approx([13, 12])


@given(schedules(), shared_topologies(MAX_RANKS, failures=True), SIZES)
def test_a_failure_stops_what_depends_on_it_and_nothing_else(
    schedule: Schedule, topology: TableTopology, size: int
) -> None:
    """Until then all is as without it; then exactly those never happen that the arrows lead to."""
    failing = run(schedule, topology, chunk_bytes(schedule, size))
    fails = topology.resources.fails_at_s
    topology.resources = resources(list(topology.resources.capacity))
    healthy = times(run(schedule, topology, chunk_bytes(schedule, size)))
    before = healthy < fails.min()
    np.testing.assert_allclose(times(failing)[before], healthy[before], rtol=1e-12)
    uses = [set(row[row != NONE]) for row in topology.resource[failing.src, failing.dst]]
    fails_s = np.array([min((fails[number] for number in used), default=math.inf) for used in uses])
    left = np.isfinite(failing.sent_s)
    assert (failing.sent_s[left] <= fails_s[left]).all()
    assert_only_what_depends_is_lost(schedule, failing, np.isfinite(fails_s))


def assert_only_what_depends_is_lost(schedule: Schedule, run: Timeline, may_be_stuck: np.ndarray) -> None:
    """An infinite time has one before it, or is that of a message that needs what has failed."""
    rows = dependencies(schedule)
    lost_start, lost, lost_applied = (np.isinf(column) for column in (run.start_s, run.sent_s, run.applied_s))
    for row in range(len(run)):
        no_start = [lost_applied[rows.data_dependency[row]]] if rows.data_dependency[row] != NO_ROW else []
        no_start += [lost[rows.before_on_channel[row]]] if rows.before_on_channel[row] != NO_ROW else []
        assert lost_start[row] == any(no_start)
        assert lost[row] == lost_start[row] or may_be_stuck[row]
        of_chunk = (rows.src == rows.dst[row]) & (rows.chunk == rows.chunk[row])
        sends = of_chunk & (np.arange(len(run)) <= rows.buffer_dependency[row])
        before = {int(rows.before_on_connection[row]), int(rows.before_in_chunk[row])} - {NO_ROW}
        assert lost_applied[row] == (lost[row] or lost[sends].any() or lost_applied[sorted(before)].any())


@pytest.mark.parametrize(("fails_at_s", "lost"), [(0.0, 4), (1.0, 3), (2.5, 1), (4.0, 0)])
def test_empty_messages_do_not_pass_what_has_failed(fails_at_s: float, lost: int) -> None:
    """Four of them, back and forth, a second apart; what has left by then arrives all the same."""
    schedule = schedule_of(2, *[(step % 2, 1 - step % 2, 0) for step in range(4)])
    topology = topology_with(2, {(0, 1): [0], (1, 0): [0]}, [1.0])
    topology.latency_s[:] = 1.0
    topology.resources = resources([1.0], [fails_at_s])
    applied_s = run(schedule, topology, np.array([0])).applied_s
    assert applied_s.tolist() == [1.0, 2.0, 3.0, 4.0][: 4 - lost] + [math.inf] * lost
