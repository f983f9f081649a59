"""The engines against each other and a plain simulator of one transfer at a time; which one runs, with what memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import Network, Schedule, load_network, merge, permute_ranks, predict_time, ring_all_reduce, split
from ringsim.network import Topology, read_network
from ringsim.registry import ALGORITHMS, build
from ringsim.schedule import Collective, Ints, dependencies
from ringsim.simulation import Timeline, simulate
from ringsim.simulation.events import run_events
from ringsim.simulation.fast_path import PrivateRounds, private_rounds
from ringsim.simulation.routes import has_contention, used_connections
from ringsim.simulation.simulate import BYTES_RECORDED
from tests.ringsim.plain_events import COLUMNS, PlainRun
from tests.ringsim.strategies import every_algorithm, schedules, uniform_networks
from tests.ringsim.topologies import private_topologies, shared_topologies

MAX_RANKS = 4


def times(timeline: Timeline) -> np.ndarray:
    """(5, num_transfers)."""
    return np.array([getattr(timeline, name) for name in COLUMNS])


def assert_paths_agree(rounds: PrivateRounds) -> None:
    """To the last bit, in all columns, in order or not."""
    by_round = rounds.timeline()
    for in_order in (False, True):
        by_event = run_events(dependencies(rounds.schedule, in_order=in_order), rounds.topology, rounds.chunk_bytes)
        for name in ("step", "src", "dst", "chunk", "reduce", *COLUMNS):
            assert getattr(by_round, name).tolist() == getattr(by_event, name).tolist(), name
        assert rounds.time_s() == by_event.time_s


@st.composite
def relays(draw: st.DrawFn) -> Schedule:
    """A ring of any collective, with its chunks whole or in segments, round the ranks in any order."""
    keys = [key for key in ALGORITHMS if key[1] in ("ring", "gloo_ring") and not key[0].has_root]
    schedule = build(*draw(st.sampled_from(keys)), draw(st.integers(2, MAX_RANKS)))
    order = draw(st.permutations(range(schedule.num_ranks)))
    return permute_ranks(split(schedule, draw(st.integers(1, 3))), order)


def on_ports(schedule: Schedule) -> st.SearchStrategy[Topology]:
    """Any uniform network of a schedule's ranks."""
    return uniform_networks().map(lambda network: network.topology(schedule.num_ranks))


ANY = schedules(channels_of_a_pair=2)
CASES = {
    "a ring on ports": relays().flatmap(lambda ring: st.tuples(st.just(ring), on_ports(ring))),
    "a ring whose pairs all differ": st.tuples(relays(), private_topologies(MAX_RANKS)),
    "links, memories and cores are shared": st.tuples(ANY, shared_topologies(MAX_RANKS)),
    "resources fail, from the start or later": st.tuples(schedules(), shared_topologies(MAX_RANKS, failures=True)),
    "resources save up, and fail": st.tuples(ANY, shared_topologies(MAX_RANKS, failures=True, bursts=True)),
}


@pytest.mark.parametrize("case", CASES)
@given(data=st.data(), size=st.integers(0, 10**5))
def test_every_engine_gives_the_times_of_plain_python(case: str, data: st.DataObject, size: int) -> None:
    """All columns within rounding, in order or not; rings that share nothing the same on both engines to the bit."""
    schedule, topology = data.draw(CASES[case])
    sizes = schedule.chunk_bytes(size)
    rounds = private_rounds(schedule, topology, sizes)
    assert rounds or not case.startswith("a ring")
    if rounds:
        assert_paths_agree(rounds)
    for in_order in (False, True):
        plain = np.array(PlainRun(schedule, topology, sizes, in_order).times()).reshape(-1, len(COLUMNS)).T
        by_event = times(run_events(dependencies(schedule, in_order=in_order), topology, sizes))
        np.testing.assert_allclose(by_event, plain, rtol=1e-9, atol=1e-12)


def cluster(text: str) -> Network:
    """Of a network file with this text."""
    return read_network(text, "my.toml")


PRIVATE = '[host]\nranks = 2\nlink.bandwidth = "3GB/s"\nnic = { bandwidth = "1GB/s", latency = "1us", count = 2 }\n'
ONE_NIC = '[host]\nranks = 2\nnic.bandwidth = "1GB/s"\n'
FAILING = '[[failure]]\nlink = "host0.nic0.out"\nat = "1s"\n'
STAR, LINK = load_network("docs/networks/star.toml"), Network.uniform(2e-6, 1.25e9)  # the same from NIC to NIC


@every_algorithm
def test_every_algorithm_on_its_engine(collective: Collective, algorithm: str) -> None:
    """Rings and chains round by round; a star is timed as a uniform network is."""
    for num_ranks in (1, 2, 6, 8):
        schedule = build(collective, algorithm, num_ranks)
        for network in (Network.uniform(1e-5, 1e9, 4e9, 1e-6, 2e-6), cluster(PRIVATE)):
            rounds = private_rounds(schedule, network.topology(num_ranks), schedule.chunk_bytes(10**6 + 7))
            assert rounds or num_ranks == 1 or algorithm not in ("ring", "gloo_ring")
            if rounds:
                assert_paths_agree(rounds)
    schedule = build(collective, algorithm, 6)
    star, uniform = (times(simulate(schedule, network, 2**24)) for network in (STAR, LINK))
    np.testing.assert_allclose(star, uniform, rtol=1e-9)


SHARED = [
    (cluster(PRIVATE), "ring", False),
    (cluster(PRIVATE), "recursive_doubling", True),  # each rank has two peers on the other hosts
    (cluster(PRIVATE), "bidirectional_ring", False),  # the two neighbours: one on the host, one not
    (cluster(ONE_NIC), "ring", False),  # one rank of each host sends, one receives
    (cluster(ONE_NIC), "recursive_doubling", True),  # both ranks of a host do
    (cluster('[host]\nranks = 1\nnic = { bandwidth = "1GB/s", duplex = "half" }\n'), "ring", True),
    (cluster("[host]\nranks = 2\ncores = 64\n"), "ring", True),
    (cluster("[host]\n" + FAILING), "ring", False),  # all are on one host
    (cluster("[host]\nranks = 2\n" + FAILING), "ring", True),
    *((Network.uniform(1e-5, 1e9), *row) for row in (("gloo_ring", False), ("ring/4", False), ("direct", True))),
    (Network.uniform(1e-5, np.inf), "direct", False),
    (Network.uniform(1e-5, 1e9), "multi_ring", True),
]


@pytest.mark.parametrize(("network", "algorithm", "expected"), SHARED)
def test_what_is_shared(network: Network | Network, algorithm: str, expected: bool) -> None:
    """It depends on who sends to whom, not only on the topology."""
    assert has_contention(build(Collective.ALL_REDUCE, algorithm, 8), network.topology(8)) is expected


def test_connections_that_are_used() -> None:
    """Each once, in order, of every algorithm, in segments and with ranks in other places."""
    plain = [build(*key, num_ranks) for key in ALGORITHMS for num_ranks in (1, 2, 5, 8)]
    plain.append(Schedule.from_columns(plain[0].collective, "x", 3, 1, [([2, 0], [0, 1], 0, False, [0, 1])] * 600))
    empty = Schedule.from_transfers(plain[0].collective, "x", 2, 1, [[], []])
    plain.append(merge(empty, empty))
    twice = build(Collective.ALL_REDUCE, "bidirectional_ring", 5)  # of which two steps are a round
    plain.append(merge(twice, permute_ranks(twice, [0, 2, 4, 1, 3])))
    for one in plain:
        for schedule in (one, split(one, 3), permute_ranks(one, [0, *range(one.num_ranks - 1, 0, -1)])):
            rows = {row for step in schedule.steps for row in zip(step.channel, step.src, step.dst, strict=True)}
            used = used_connections(schedule)
            assert list(zip(used.channel, used.src, used.dst, strict=True)) == sorted(rows), schedule


def by_event(schedule: Schedule, topology: Topology, sizes: Ints) -> Timeline:
    """The times by the event engine."""
    return run_events(dependencies(schedule), topology, sizes)


def by_round(schedule: Schedule, topology: Topology, sizes: Ints) -> Timeline:
    """The times by the fast path."""
    rounds = private_rounds(schedule, topology, sizes)
    assert rounds
    return rounds.timeline()


ENGINES = {
    "by round": (by_round, "ring", Network.uniform(1e-5, 1e9)),
    "by event": (by_event, "hierarchical", cluster('[host]\nranks = 8\nnic.bandwidth = "1GB/s"\n')),
}


@pytest.mark.parametrize("name", ENGINES)
def test_memory_of_an_engine(name: str) -> None:
    """The memory of an engine, without its schedule, fits in the room per transfer that `simulate` asks for."""
    engine, algorithm, network = ENGINES[name]
    schedule, topology = build(Collective.ALL_REDUCE, algorithm, 512), network.topology(512)
    assert schedule.steps.relay or len(schedule.steps.table) == schedule.num_transfers
    tracemalloc.start()
    try:
        engine(schedule, topology, schedule.chunk_bytes(schedule.num_chunks * 1000))
        assert tracemalloc.get_traced_memory()[1] <= BYTES_RECORDED * schedule.num_transfers
    finally:
        tracemalloc.stop()


def test_what_there_is_no_memory_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, with what it would take; without a timeline a ring that shares nothing needs none."""
    monkeypatch.setattr("ringsim.limits.free_bytes", lambda: 1e6)
    costs = cluster("[host]\nranks = 2\ncores = 1\nlink.latency = '1us'\nnic.latency = '1us'\n")
    told = r"^the times of 130,560 transfers: would take .* is free: use fewer ranks$"
    for call, network in ((simulate, Network.uniform(1e-5, 1e9)), (predict_time, costs)):
        with pytest.raises(ValueError, match=told):
            call(ring_all_reduce(256), network, 1000)
    assert predict_time(ring_all_reduce(256), Network.uniform(1e-5, 1e9), 1000) > 0
    assert np.isfinite(predict_time(ring_all_reduce(8), costs, 1000))
