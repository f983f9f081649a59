"""A few connections that stand for all, against the event engine with every transfer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringsim import load_network
from ringsim.algorithms import ring_all_gather, ring_all_reduce
from ringsim.algorithms.nccl import (
    nccl_ring_all_gather,
    nccl_ring_all_reduce,
    nccl_ring_reduce_scatter,
    nccl_tree_all_reduce,
    nvls_all_reduce,
)
from ringsim.network import Host, Link, Network, Nics, Processor, Spec
from ringsim.registry import ALGORITHMS, build
from ringsim.schedule import Schedule, dependencies, merge, on_groups, permute_ranks, then, verify
from ringsim.schedule.collective import Collective
from ringsim.simulation import IN_ORDER, lists_more_than, predict_time, simulate, with_in_network_reduction
from ringsim.simulation import representatives as engine
from ringsim.simulation.events import run_events
from ringsim.simulation.fast_path import may_be_alike
from ringsim.simulation.representatives import representatives

H100, A100 = load_network("dgx-h100-cluster"), load_network("dgx-a100")
RINGS = (nccl_ring_all_reduce, nccl_ring_reduce_scatter, nccl_ring_all_gather)
TREES = (nccl_tree_all_reduce, nvls_all_reduce)
Key = tuple[Collective, str]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Network, int, int]:
    """A cluster, its ranks, and the ranks that a schedule takes for those of a host, which may be others."""
    per_host, num_hosts = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rate, seconds = st.floats(1e8, 1e11), st.floats(0, 1e-4)
    host = Host(
        link=Link(latency_s=draw(seconds), bandwidth_bytes_per_s=draw(rate)),
        nics=Nics(latency_s=draw(seconds), bandwidth_bytes_per_s=draw(rate), count=draw(st.integers(1, 5))),
    )
    reduce_bytes_per_s = draw(st.one_of(st.just(np.inf), rate))
    processor = Processor(draw(seconds), draw(seconds), reduce_bytes_per_s)
    spec = Spec(host=host, ranks_per_host=per_host, processor=processor)
    num_ranks = per_host * num_hosts
    divisors = [number for number in range(1, num_ranks + 1) if num_ranks % number == 0]
    return Network("drawn", spec), num_ranks, draw(st.sampled_from(divisors))


def time_of_few(schedule: Schedule, network: Network, chunk_bytes: int) -> float | None:
    """By representatives; None if there are none."""
    topology = with_in_network_reduction([schedule], network.topology(schedule.num_ranks))
    few = representatives(schedule, topology, chunk_bytes)
    return few and few.time_s()


def time_of_all(schedule: Schedule, network: Network, chunk_bytes: int) -> float:
    """By every transfer."""
    topology = with_in_network_reduction([schedule], network.topology(schedule.num_ranks))
    sizes = np.full(schedule.num_chunks, chunk_bytes)
    return run_events(dependencies(schedule), topology, sizes).time_s


@settings(max_examples=settings.default.max_examples // 2)
@given(clusters(), st.sampled_from(RINGS + TREES), st.integers(1, 3), st.integers(0, 10**7))
def test_any_cluster(drawn: tuple[Network, int, int], made_by: type, segments: int, chunk_bytes: int) -> None:
    """No class of ranks is taken for another, with any hosts, NICs, costs and sizes, and any place of rings and trees.

    Trees have no representatives where the rails are not alike.
    """
    network, num_ranks, per_host = drawn
    if num_ranks > 1:
        schedule = made_by(num_ranks, per_host) if made_by in RINGS else made_by(num_ranks, segments, per_host)
        few_s = time_of_few(schedule, network, chunk_bytes)
        is_left_out = few_s is None and made_by in TREES
        assert is_left_out or few_s == pytest.approx(time_of_all(schedule, network, chunk_bytes), rel=1e-9, abs=1e-15)


@given(clusters(), st.sampled_from(list(ALGORITHMS)), st.booleans(), st.integers(0, 10**7))
def test_any_algorithm(drawn: tuple[Network, int, int], key: Key, moved: bool, chunk_bytes: int) -> None:
    """Also with ranks in other places and on two groups of ranks: a relay passes on what the steps say."""
    network, num_ranks, _ = drawn
    schedule = build(*key, num_ranks)
    if moved:
        schedule = permute_ranks(schedule, [0, *range(num_ranks - 1, 0, -1)])
    elif num_ranks % 2 == 0:
        groups = np.arange(num_ranks).reshape(2, -1)
        schedule = build(*key, num_ranks // 2)
        schedule = on_groups(schedule, groups, num_ranks, schedule.num_chunks, key[0])
    if num_ranks > 2 and not key[0].has_root:
        assert schedule.steps.relay or key[1] not in ("ring", "nccl_ring", "bidirectional_ring")
    few_s = time_of_few(schedule, network, chunk_bytes) if schedule.num_transfers else None
    assert few_s is None or few_s == pytest.approx(time_of_all(schedule, network, chunk_bytes), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    ("make", "network"), [(nccl_ring_all_reduce, H100), (nccl_tree_all_reduce, A100), (nvls_all_reduce, H100)]
)
def test_one_host_stands_for_all_or_one_rail(make: type, network: Network) -> None:
    """On hosts of 8: one of all transfers of a ring round is left, one of 8 of a tree; the time is the same."""
    num_ranks = 32
    schedule = make(num_ranks, ranks_per_host=8)
    topology = with_in_network_reduction([schedule], network.topology(num_ranks))
    few = representatives(schedule, topology, 30_011)
    assert few is not None
    assert few.num_listed * (num_ranks if make in RINGS else 8) == schedule.num_transfers
    assert few.time_s() == pytest.approx(time_of_all(schedule, network, 30_011), rel=1e-12)
    assert predict_time(schedule, network, 30_011 * schedule.num_chunks) == few.time_s()


@pytest.mark.parametrize("make", [nccl_ring_all_reduce, nccl_tree_all_reduce])
def test_unlike_hosts_are_told_apart(make: type) -> None:
    """With a slow NIC more of a ring's connections are simulated, at the same times; rails are no copies then."""
    schedule, topology = make(16, ranks_per_host=8), H100.topology(16)
    topology.resources.capacity[topology.resources.names.index("host1.nic3.out")] /= 5
    few, sizes = representatives(schedule, topology, 100_000), np.full(schedule.num_chunks, 100_000)
    slow_s = run_events(dependencies(schedule), topology, sizes).time_s
    assert slow_s > 1.5 * time_of_all(schedule, H100, 100_000)
    if make is nccl_tree_all_reduce:
        assert few is None
    else:
        assert few is not None
        assert 8 * 30 < few.num_listed <= schedule.num_transfers
        assert few.time_s() == pytest.approx(slow_s, rel=1e-12)


def test_ports_of_a_uniform_network() -> None:
    """Two rings that share the ports of all ranks: one connection of each is left, at the time of all."""
    network, schedule = (
        Network.uniform(1e-5, 1e9, 4e9, 1e-6, 2e-6),
        build(Collective.ALL_REDUCE, "bidirectional_ring", 9),
    )
    few = representatives(schedule, network.topology(9), 10**5)
    assert few is not None
    assert few.num_listed == 16
    assert few.time_s() == pytest.approx(time_of_all(schedule, network, 10**5), rel=1e-12)


def test_where_ranks_may_be_alike() -> None:
    """Not with chunks of two sizes, few transfers, or a link that fails. Progress counts every transfer."""
    schedule, topology, told = nccl_ring_all_reduce(32, 8), H100.topology(32), list[int]()
    even, odd = (schedule.chunk_bytes(1000 * schedule.num_chunks + more) for more in (0, 1))
    assert may_be_alike(schedule, topology, even)
    assert not may_be_alike(schedule, topology, odd)
    assert not may_be_alike(nccl_ring_all_reduce(16, 8), topology, even)
    topology.resources.fails_at_s[0] = 1.0
    assert not may_be_alike(schedule, topology, even)
    predict_time(schedule, H100, 1000 * schedule.num_chunks, on_progress=told.append)
    assert sum(told) == schedule.num_transfers


def test_too_many_are_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search ends when it is clear that there are too many; then all transfers are listed."""
    schedule = nccl_ring_all_reduce(32, 8)
    size = 1000 * schedule.num_chunks
    assert not lists_more_than(8 * 62, schedule, H100, size)
    assert lists_more_than(8 * 62 - 1, schedule, H100, size)
    assert lists_more_than(8 * 62, schedule, H100, size + 1)  # chunks of two sizes
    assert lists_more_than(8 * 62, schedule, H100, size, runtime=IN_ORDER)  # a rank waits for one ring after the other
    monkeypatch.setattr(engine, "MAX_ROUND_ROWS", 100)
    assert lists_more_than(8 * 62, schedule, H100, size)
    assert predict_time(schedule, H100, size) == pytest.approx(simulate(schedule, H100, size).time_s, rel=1e-12)


def test_what_is_no_relay() -> None:
    """A schedule whose steps use other connections, that passes on what is older, or whose halves do not fit."""
    ring, left = ring_all_reduce(4), ring_all_gather(4, -1)
    turned = then(build(Collective.REDUCE_SCATTER, "ring", 4), left, Collective.ALL_REDUCE, "turned")
    verify(turned)
    twice = then(ring_all_gather(4), ring_all_gather(4), Collective.ALL_GATHER, "twice")
    for schedule in (turned, twice, merge(ring, replace(ring, steps=turned.steps))):
        assert schedule.steps.relay is None
