"""Tests of `ringsim.analysis.critical_path`."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim.analysis.critical_path import Cause, CostKind, CriticalPath, critical_path
from ringsim.network import Network, read_network
from ringsim.registry import build
from ringsim.schedule import Collective, Schedule, Transfer, dependencies
from ringsim.simulation import simulate
from tests.ringsim.analysis.test_usage import NETWORKS
from tests.ringsim.strategies import listed, schedules
from tests.ringsim.topologies import PrivateLinks


def path_of(schedule: Schedule, network: Network, size: int) -> CriticalPath:
    """The critical path of a simulated run."""
    chunk_bytes = schedule.chunk_bytes(size)
    topology = network.topology(schedule.num_ranks)
    return critical_path(simulate(schedule, network, size), dependencies(schedule), topology, chunk_bytes)


@given(schedules(), NETWORKS | st.just(PrivateLinks.uniform(1e-5, 1e9, 4e9, 1e-6, 2e-6)), st.integers(0, 10**5))
def test_the_pieces_fill_the_time(schedule: Schedule, network: Network, size: int) -> None:
    """Each begins where the one before it ends, the first at 0 and the last at the end; in a simulation none waits.

    On private links nothing contends.
    """
    path = path_of(schedule, network, size)
    until_s = 0.0
    for segment in path.segments:
        assert segment.begin_s == pytest.approx(until_s)
        assert 0 <= segment.row < schedule.num_transfers
        until_s = segment.begin_s + segment.seconds
    assert sum(path.seconds().values()) == pytest.approx(path.time_s)
    assert sum(path.shares().values()) == pytest.approx(1.0 if path.time_s else 0.0)
    assert path.seconds()[CostKind.WAITING] == 0
    assert path.seconds()[CostKind.CONTENTION] == 0 or not isinstance(network, PrivateLinks)


def test_costs_of_a_ring() -> None:
    """The four terms of the textbook: 2(n-1) latencies and chunks, n-1 reductions."""
    network = Network.uniform(2.0, 1.0, 4.0, gap_s=0.5, receive_overhead_s=0.25)
    spent = path_of(build(Collective.ALL_REDUCE, "ring", 4), network, 4 * 8).seconds()
    assert [*spent.values()] == [6 * 2.0, 6 * 8.0, 0.0, 3 * 8.0 / 4, 6 * 0.75, 0.0]


def test_jitter_is_no_contention() -> None:
    """The jitter of a transfer belongs to its latency, its overheads and its reduction."""
    hosts = '[host]\nranks = 1\n[host.nic]\nbandwidth = "1GB/s"\nlatency = "5us"\n[rank]\nreduce_bandwidth = "1GB/s"\n'
    jitter = 'send_overhead = "1us"\nreceive_overhead = "2us"\n[jitter]\nseed = 3\nlatency = 0.5\ncompute = 0.5\n'
    spent = path_of(build(Collective.ALL_REDUCE, "ring", 5), read_network(hosts + jitter, "test.toml"), 5000).seconds()
    assert spent[CostKind.CONTENTION] == 0
    for cost, least_s in ((CostKind.LATENCY, 8 * 5e-6), (CostKind.REDUCTION, 4e-6), (CostKind.OVERHEAD, 8 * 3e-6)):
        assert spent[cost] > least_s


WAITS = {
    "written data": ([[(0, 1, 0, True)], [(1, 2, 0, False)]], [Cause.START, Cause.ARRIVED, Cause.READY]),
    "channel": ([[(0, 1, 0, False)], [(0, 1, 1, False)]], [Cause.START, Cause.CHANNEL]),
    "turn": ([[(0, 2, 0, True), (1, 2, 0, True)]], [Cause.START, Cause.ARRIVED, Cause.TURN]),
    # Rank 1 sends two chunks to rank 2, the second behind the first, and is overwritten only then.
    "overwritten": ([[(1, 2, 0, False), (1, 2, 1, False), (0, 1, 1, True)]], [Cause.START, Cause.CHANNEL, Cause.FREE]),
}  # fmt: skip


@pytest.mark.parametrize("wait", WAITS)
def test_each_kind_of_wait_is_followed(wait: str) -> None:
    """Worked out by hand."""
    rows, expected = WAITS[wait]
    schedule = listed(*[[Transfer(*row) for row in step] for step in rows], num_ranks=3, num_chunks=2)
    assert [segment.cause for segment in path_of(schedule, PrivateLinks.uniform(0.0, 1.0, 1.0), 2).segments] == expected


def test_no_transfers_have_an_empty_path_and_no_end_has_none() -> None:
    """Nothing takes no time; and a run that never finishes has no last application."""
    assert path_of(build(Collective.ALL_REDUCE, "ring", 1), Network.uniform(1.0, 1.0), 8) == CriticalPath(0.0, ())
    schedule, network = build(Collective.ALL_REDUCE, "ring", 2), Network.uniform(1.0, 1.0)
    endless = replace(simulate(schedule, network, 2), applied_s=np.full(4, math.inf))
    with pytest.raises(ValueError, match="^a run that never finishes has no critical path$"):
        critical_path(endless, dependencies(schedule), network.topology(2), np.array([1, 1]))
