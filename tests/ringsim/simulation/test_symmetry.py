"""The event engine by classes of transfers against the same engine transfer by transfer."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ringsim import Network, load_network
from ringsim.algorithms import nccl_ring_all_reduce, nccl_tree_all_reduce
from ringsim.network.topology import Topology
from ringsim.registry import NCCL_ALGORITHMS, build
from ringsim.schedule import Schedule, dependencies
from ringsim.schedule.collective import Collective
from ringsim.simulation import predict_time, simulate
from ringsim.simulation.engines import symmetry
from ringsim.simulation.engines.event_engine import run_events
from ringsim.simulation.engines.symmetry import MIN_TRANSFERS, Classes, find_classes, may_have_classes, time_classes
from ringsim.simulation.routes import connect, with_in_network_reduction
from tests.ringsim.strategies import every_algorithm, schedules
from tests.ringsim.topologies import shared_topologies

MAX_RANKS = 4
ROUNDING = 1e-12
NETWORKS = {"port": Network(1e-5, 1e9, 4e9, 1e-6, 2e-6)} | {
    name: load_network(name) for name in ("ib-400g", "dgx-h100-cluster")
}


def classes_of(schedule: Schedule, topology: Topology, size: int) -> Classes | None:
    """As `time_classes` finds them."""
    rows = dependencies(schedule)
    return find_classes(rows, connect(rows, topology), topology, schedule.chunk_bytes(size))


@pytest.mark.parametrize("network", NETWORKS)
@every_algorithm
def test_every_algorithm(collective: Collective, algorithm: str, network: str) -> None:
    """In order or not, with chunks of one size and of several."""
    schedule = build(collective, algorithm, 8, 2**20)
    topology = with_in_network_reduction([schedule], NETWORKS[network].topology(8))
    for size in (schedule.num_chunks * 10_000, schedule.num_chunks * 10_000 + 7):
        for in_order in (False, True):
            assert_same_time(schedule, topology, size, in_order)


@pytest.mark.parametrize("name", NCCL_ALGORITHMS)
@pytest.mark.parametrize("network", NETWORKS)
def test_nccl_on_several_hosts(name: str, network: str) -> None:
    """With chunks of one size, as they are looked for."""
    schedule = build(Collective.ALL_REDUCE, name, 32, 2**20)
    topology = with_in_network_reduction([schedule], NETWORKS[network].topology(32))
    assert_same_time(schedule, topology, schedule.num_chunks * 10_000)


def assert_same_time(schedule: Schedule, topology: Topology, size: int, in_order: bool = False) -> None:
    """But for rounding."""
    sizes = schedule.chunk_bytes(size)
    by_class = time_classes(dependencies(schedule, in_order=in_order), topology, sizes)
    by_event = run_events(dependencies(schedule, in_order=in_order), topology, sizes).time_s
    assert by_class == pytest.approx(by_event, rel=ROUNDING)


@settings(max_examples=200, deadline=None)
@given(schedules(channels_of_a_pair=2), shared_topologies(MAX_RANKS, bursts=True), st.integers(0, 10**5))
def test_any_schedule(schedule: Schedule, topology: Topology, size: int) -> None:
    """Also where nearly every transfer is a class of its own."""
    assume(topology.jitter is None and (topology.processors.cores < 0).all())
    sizes = schedule.chunk_bytes(size)
    for in_order in (False, True):
        by_event = run_events(dependencies(schedule, in_order=in_order), topology, sizes).time_s
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(symmetry, "MIN_ALIKE", 0)
            by_class = time_classes(dependencies(schedule, in_order=in_order), topology, sizes)
        assert by_class == pytest.approx(by_event, rel=1e-9, abs=1e-12)


def test_rails_and_hosts_of_rings_are_alike() -> None:
    """Of 32 ranks the classes leave one place of a host: 8 connections, and a transfer of each in every round."""
    cluster = NETWORKS["dgx-h100-cluster"]
    schedule = nccl_ring_all_reduce(32, 8)
    classes = classes_of(schedule, cluster.topology(32), schedule.num_chunks * 1000)
    assert classes is not None
    assert len(classes.connections.first) == 8
    assert len(classes.rows.first) == 8 * 2 * 31


def test_rails_of_trees_are_alike() -> None:
    """One of 8."""
    schedule = nccl_tree_all_reduce(32, 4, 8)
    classes = classes_of(schedule, NETWORKS["dgx-h100-cluster"].topology(32), schedule.num_chunks * 1000)
    assert classes is not None
    assert 8 * len(classes.rows.first) <= schedule.num_transfers


def test_a_slow_link_is_told_apart() -> None:
    """With one rank that is slower than the others the classes are smaller, and the time is still right."""
    schedule = nccl_ring_all_reduce(32, 8)
    topology = NETWORKS["dgx-h100-cluster"].topology(32)
    topology.resources.capacity[0] /= 2
    assert_same_time(schedule, topology, schedule.num_chunks * 10_000)
    classes = classes_of(schedule, topology, schedule.num_chunks * 10_000)
    assert classes is None or len(classes.connections.first) > 8


def test_predict_time_goes_by_classes() -> None:
    """Where all chunks have one size and there are many transfers; the time is that of the timeline."""
    cluster, schedule = NETWORKS["dgx-h100-cluster"], nccl_ring_all_reduce(32, 8)
    topology = cluster.topology(32)
    even, odd = (schedule.chunk_bytes(schedule.num_chunks * 1000 + more) for more in (0, 1))
    assert schedule.num_transfers >= MIN_TRANSFERS
    assert may_have_classes(schedule, topology, even)
    assert not may_have_classes(schedule, topology, odd)
    assert not may_have_classes(nccl_ring_all_reduce(16, 8), topology, even)
    topology.resources.fails_at_s[0] = 1.0
    assert not may_have_classes(schedule, topology, even)
    size = schedule.num_chunks * 1000
    assert predict_time(schedule, cluster, size) == pytest.approx(
        simulate(schedule, cluster, size).time_s, rel=ROUNDING
    )


def test_progress_counts_every_transfer() -> None:
    """Although few are simulated."""
    cluster, schedule = NETWORKS["dgx-h100-cluster"], nccl_ring_all_reduce(32, 8)
    told: list[int] = []
    predict_time(schedule, cluster, schedule.num_chunks * 1000, on_progress=told.append)
    assert np.sum(told) == schedule.num_transfers
