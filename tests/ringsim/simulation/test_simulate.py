"""Virtual time, worked out by hand."""

import math

import numpy as np
import pytest

from ringsim import Collective, Network, Schedule, Transfer, predict_time
from ringsim.registry import build
from ringsim.simulation import IN_ORDER, simulate
from tests.ringsim.simulation.test_engines import by_event
from tests.ringsim.strategies import listed
from tests.ringsim.topologies import NONE, PrivateLinks, TableTopology, ranks_with, resources

NETWORK = Network.uniform(
    latency_s=10e-6, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=4e9, gap_s=1e-6, receive_overhead_s=2e-6
)


def test_messages_on_their_own() -> None:
    """Steps are no barrier, and uneven chunks cost what they weigh: five bytes over two are two and three, at 1 B/s."""
    apart = listed([Transfer(0, 1, 0, True)], [Transfer(2, 3, 1, True)])
    assert simulate(apart, NETWORK, 2000).start_s.tolist() == [0.0, 0.0]
    gather, link = build(Collective.ALL_GATHER, "ring", 2), Network.uniform(0.0, 1.0)
    assert simulate(gather, link, 5).sent_s.tolist() == [2.0, 3.0]
    assert simulate(gather, link, 20, element_bytes=4).sent_s.tolist() == [8.0, 12.0]


def test_a_byte_more_can_be_faster() -> None:
    """Since it moves the bounds of the chunks: of six, with 2 bytes 2 and 5 are not empty, with 3 bytes 1, 3 and 5."""
    rings = build(Collective.ALL_REDUCE, "bidirectional_ring", 3)
    network = PrivateLinks.uniform(0.0, 1.0, reduce_bytes_per_s=0.5)
    assert [predict_time(rings, network, size, runtime=IN_ORDER) for size in (2, 3)] == [10.0, 8.0]


def copies(num_ranks: int, *rows: tuple[int, int, int]) -> Schedule:
    """A copy a step: src, dst, chunk."""
    num_chunks = 1 + max(chunk for _, _, chunk in rows)
    return Schedule.from_columns(Collective.ALL_REDUCE, "x", num_ranks, num_chunks, [(*row, False) for row in rows])


def topology_with(
    num_ranks: int, uses: dict[tuple[int, int], list[int]], capacity: list[float], bytes_per_s: float = math.inf
) -> TableTopology:
    """These pairs use these resources; all other messages are limited by `bytes_per_s` alone."""
    resource = np.full((num_ranks, num_ranks, 2), NONE)
    rates = np.full((num_ranks, num_ranks), bytes_per_s)
    for (src, dst), used in uses.items():
        resource[src, dst, : len(used)] = used
        rates[src, dst] = math.inf
    use, latency = np.where(resource == NONE, 0.0, 1.0), np.zeros((num_ranks, num_ranks))
    return TableTopology(num_ranks, resources(capacity), ranks_with(num_ranks), None, latency, rates, resource, use)


def test_a_faster_link_can_make_it_slower() -> None:
    """The example of docs/decisions/006: 0 -> 1 takes longest, and a faster 2 -> 3 begins to share its link."""
    schedule, uses = copies(4, (0, 1, 0), (0, 1, 1), (2, 3, 1)), {(0, 1): [1, 2], (2, 3): [0, 1]}
    runs = [by_event(schedule, topology_with(4, uses, [slow, 3, 2]), np.array([3, 4])) for slow in (1.0, 2.0)]
    assert [timeline.time_s for timeline in runs] == pytest.approx([4, 25 / 6])


def test_more_bytes_can_take_less_time() -> None:
    """The example of docs/decisions/006: a message that arrives later lets a more urgent one pass."""
    schedule = copies(5, (0, 1, 0), (2, 3, 1), (1, 2, 0), (3, 4, 1))
    topology = topology_with(5, {(2, 3): [0], (1, 2): [0]}, [1.0], bytes_per_s=1.0)
    topology.bytes_per_s[3, 4] = 0.2
    runs = [by_event(schedule, topology, np.array([size, 2])) for size in (1, 2)]
    assert [timeline.time_s for timeline in runs] == pytest.approx([13, 12])


@pytest.mark.parametrize(("fails_at_s", "lost"), [(0.0, 4), (1.0, 3), (2.5, 1), (4.0, 0)])
def test_empty_messages_do_not_pass_what_has_failed(fails_at_s: float, lost: int) -> None:
    """Four of them, back and forth, a second apart; what has left by then arrives all the same."""
    topology = topology_with(2, {(0, 1): [0], (1, 0): [0]}, [1.0])
    topology.latency_s[:] = 1.0
    topology.resources = resources([1.0], [fails_at_s])
    back_and_forth = copies(2, *[(step % 2, 1 - step % 2, 0) for step in range(4)])
    applied_s = by_event(back_and_forth, topology, np.array([0])).applied_s
    assert applied_s.tolist() == [1.0, 2.0, 3.0, 4.0][: 4 - lost] + [math.inf] * lost
