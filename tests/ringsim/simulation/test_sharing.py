"""Which engine is taken, and that there is memory for what it keeps."""

import tracemalloc

import numpy as np
import pytest

from ringsim import (
    Cluster,
    Collective,
    Network,
    Schedule,
    Timeline,
    permute_ranks,
    predict_time,
    ring_all_reduce,
    split,
)
from ringsim.network import Ints, Topology
from ringsim.network.file_reader import read_network
from ringsim.registry import build
from ringsim.registry.algorithms import ALGORITHMS
from ringsim.schedule import dependencies
from ringsim.schedule import memory as memory_module
from ringsim.simulation import simulate
from ringsim.simulation.engines.event_engine import run_events
from ringsim.simulation.engines.step_engine import run_steps
from ringsim.simulation.routes import has_contention, used_connections
from ringsim.simulation.simulate import BYTES_RECORDED
from tests.ringsim.simulation.test_engines import assert_engines_agree, chunk_bytes

PRIVATE = '[host]\nranks = 2\nlink.bandwidth = "3GB/s"\nnic = { bandwidth = "1GB/s", latency = "1us", count = 2 }\n'
ONE_NIC = '[host]\nranks = 2\nnic.bandwidth = "1GB/s"\n'


def cluster(text: str) -> Cluster:
    """Of a network file with this text."""
    return read_network(text, "my.toml")


@pytest.mark.parametrize(
    ("text", "algorithm", "expected"),
    [
        (PRIVATE, "ring", False),
        (PRIVATE, "recursive_doubling", True),  # each rank has two peers on the other hosts
        (PRIVATE, "bidirectional_ring", False),  # the two neighbours: one on the host, one not
        (ONE_NIC, "ring", False),  # one rank of each host sends, one receives
        (ONE_NIC, "recursive_doubling", True),  # both ranks of a host do
        ('[host]\nranks = 1\nnic = { bandwidth = "1GB/s", duplex = "half" }\n', "ring", True),
        ("[host]\nranks = 2\ncores = 64\n", "ring", True),
        ('[host]\n[[failure]]\nlink = "host0.nic0.out"\nat = "1s"\n', "ring", False),  # all are on one host
        ('[host]\nranks = 2\n[[failure]]\nlink = "host0.nic0.out"\nat = "1s"\n', "ring", True),
        ("[host]\nranks = 2\n", "direct", False),
    ],
)
def test_what_is_shared(text: str, algorithm: str, expected: bool) -> None:
    """It depends on who sends to whom, not only on the topology."""
    schedule = build(Collective.ALL_REDUCE, algorithm, 8)
    assert has_contention(schedule, cluster(text).topology(8)) is expected


@pytest.mark.parametrize("num_ranks", [2, 5, 8])
def test_a_ring_with_ports_of_its_own_is_timed_alike_by_both(num_ranks: int) -> None:
    """To the last bit; `simulate` and `predict_time` take the faster one."""
    schedule, topology = ring_all_reduce(num_ranks), cluster(PRIVATE).topology(num_ranks)
    assert not has_contention(schedule, topology)
    assert_engines_agree(schedule, topology, 10**6 + 7)
    assert predict_time(schedule, cluster(PRIVATE), 10**6 + 7) == simulate(schedule, cluster(PRIVATE), 10**6 + 7).time_s


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [("ring", False), ("gloo_ring", False), ("ring/4", False), ("direct", True), ("multi_ring", True)],
)
def test_what_is_shared_on_a_uniform_network(algorithm: str, expected: bool) -> None:
    """The ports of ranks that send on several channels or receive from several ranks, if these have a limit."""
    schedule = build(Collective.ALL_REDUCE, algorithm, 8)
    assert has_contention(schedule, Network(1e-5, 1e9).topology(8)) is expected
    assert not has_contention(schedule, Network(1e-5, np.inf).topology(8))


@pytest.mark.parametrize("num_ranks", [1, 2, 5, 8])
def test_patterns_send_on_all_connections(num_ranks: int) -> None:
    """And on no others, of every algorithm, in segments and with ranks in other places."""
    for key in ALGORITHMS:
        plain = build(*key, num_ranks)
        for schedule in (plain, split(plain, 3), permute_ranks(plain, [0, *range(num_ranks - 1, 0, -1)])):
            expected, found = (
                {(*row,) for step in steps for row in zip(step.src, step.dst, step.channel, strict=True)}
                for steps in (schedule.steps, schedule.steps.patterns())
            )
            assert found == expected, key


@pytest.mark.parametrize("algorithm", ["ring", "gloo_ring", "ring/4"])
def test_patterns_of_rings_are_few(algorithm: str) -> None:
    """One for each half; a large ring is not walked through to see where it sends."""
    assert len(list(build(Collective.ALL_REDUCE, algorithm, 512).steps.patterns())) == 2


def test_connections_that_are_used() -> None:
    """Each once, in order; also of steps that are made one by one."""
    assert [column.tolist() for column in used_connections(ring_all_reduce(3))] == [
        [0, 1, 2],
        [1, 2, 0],
        [0, 1, 2],
        [0, 0, 0],
    ]
    rows = [([2, 0], [0, 1], [0, 0], False, [0, 1])] * 600
    listed = Schedule.from_columns(Collective.ALL_REDUCE, "x", 3, 1, rows)
    assert [column.tolist() for column in used_connections(listed)] == [[2, 0], [0, 1], [2, 3], [0, 1]]
    assert [column.tolist() for column in used_connections(ring_all_reduce(1))] == [[], [], [], []]


def peak_bytes(engine: object, schedule: Schedule, topology: object) -> float:
    """A transfer, at most at any time while it is recorded; the schedule itself is there before."""
    assert callable(engine)
    for step in schedule.steps:
        len(step)
    chunks = chunk_bytes(schedule, schedule.num_chunks * 1000)
    tracemalloc.start()
    try:
        engine(schedule, topology, chunks)
        return tracemalloc.get_traced_memory()[1] / schedule.num_transfers
    finally:
        tracemalloc.stop()


def test_memory_of_the_step_engine() -> None:
    """520,000 transfers in the room that `simulate` asks for."""
    assert peak_bytes(run_steps, ring_all_reduce(512), Network(1e-5, 1e9).topology(512)) <= BYTES_RECORDED


def test_memory_of_the_event_engine() -> None:
    """524,000 transfers on hosts with one NIC."""
    schedule = build(Collective.ALL_REDUCE, "hierarchical", 512)
    topology = cluster('[host]\nranks = 8\nlink.bandwidth = "9GB/s"\nnic.bandwidth = "1GB/s"\n').topology(512)
    assert has_contention(schedule, topology)

    def run(schedule: Schedule, topology: Topology, sizes: Ints) -> Timeline:
        return run_events(dependencies(schedule), topology, sizes)

    assert peak_bytes(run, schedule, topology) <= BYTES_RECORDED


def test_what_there_is_no_memory_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, with what it would take; without a timeline the step engine needs none."""
    monkeypatch.setattr(memory_module, "free_bytes", lambda: 1e6)
    costs = "[host]\nranks = 2\ncores = 1\nlink.latency = '1us'\nnic.latency = '1us'\n"
    message = r"^the times of 130,560 transfers: would take .* of memory; .* is free: use fewer ranks$"
    with pytest.raises(ValueError, match=message):
        simulate(ring_all_reduce(256), Network(1e-5, 1e9), 1000)
    assert predict_time(ring_all_reduce(256), Network(1e-5, 1e9), 1000) > 0
    with pytest.raises(ValueError, match=message):
        predict_time(ring_all_reduce(256), cluster(costs), 1000)
    assert np.isfinite(predict_time(ring_all_reduce(8), cluster(costs), 1000))
