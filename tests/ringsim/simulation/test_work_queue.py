"""Collectives in a queue: hand-solved cases, and laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import Network, load_network, predict_time, ring_all_reduce
from ringsim.network import AnyNetwork
from ringsim.network.file_reader import read_network
from ringsim.registry.algorithms import build
from ringsim.schedule.collective import Collective
from ringsim.schedule.combinators.merge import merge
from ringsim.simulation import RULE, Runtime
from ringsim.simulation.work_queue import QueuedCall, Span, run_queue, time_queue

TWO = Runtime(num_workers=2)
RING = ring_all_reduce(2)
SLOW = Network(latency_s=0.0, bandwidth_bytes_per_s=1.0)  # of 2 ranks, an all_reduce of m bytes takes m seconds
NETWORKS = {
    "private": Network(1e-5, 1e9, 5e9, 1e-6, 2e-6),
    "gbe": load_network("gbe"),
    "cores": load_network("loopback"),
}


def test_one_worker_does_one_after_the_other() -> None:
    """The second waits for the first, the third for its own moment."""
    calls = [QueuedCall(RING, 4, 1, 1.0), QueuedCall(RING, 2, 1, 2.0), QueuedCall(RING, 2, 1, 10.0)]
    assert time_queue(calls, SLOW, RULE) == [Span(1, 5), Span(5, 7), Span(10, 12)]


def test_two_workers_share_the_links() -> None:
    """Two at once go at half the rate; alone again, the rest goes at the full one.

    The first has 2 of its 4 bytes done when the second comes; the 2 that remain take 4 s, in which the second does 2
    of its 4; the third takes the first's worker then and shares with the second for 4 s, after which both are done.
    """
    calls = [QueuedCall(RING, 4, 1, 0.0), QueuedCall(RING, 4, 1, 2.0), QueuedCall(RING, 2, 1, 2.0)]
    assert time_queue(calls, SLOW, TWO) == [Span(0, 6), Span(2, 10), Span(6, 10)]


def test_latencies_overlap() -> None:
    """Two calls of no bytes at once take as long as one."""
    latency = Network(latency_s=1.0, bandwidth_bytes_per_s=1.0)
    assert time_queue([QueuedCall(RING, 0)] * 2, latency, TWO) == [Span(0, 2), Span(0, 2)]
    assert time_queue([QueuedCall(RING, 0)] * 2, latency, RULE) == [Span(0, 2), Span(2, 4)]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_call_takes_its_worker_before_it_sends(num_workers: int) -> None:
    """Also one that has nothing to send; of two workers each has its own call to make."""
    network = read_network('[host]\nlink.bandwidth = "1B/s"', "x")
    calls = [QueuedCall(RING, 4, call_s=1), QueuedCall(RING, 0, call_s=3), QueuedCall(ring_all_reduce(2), 0, call_s=1)]
    expected = [Span(0, 5), Span(5, 8), Span(8, 9)] if num_workers == 1 else [Span(0, 5), Span(0, 3), Span(3, 4)]
    assert time_queue(calls, network, Runtime(num_workers=num_workers)) == expected
    alone = [QueuedCall(ring_all_reduce(1), 4, call_s=1)]
    assert time_queue(alone, network, Runtime(num_workers=num_workers)) == [Span(0, 1)]


def test_a_rank_alone_has_nothing_to_send() -> None:
    """All ends when it begins, in order."""
    calls = [
        QueuedCall(ring_all_reduce(1), 4, 1, 1.0),
        QueuedCall(ring_all_reduce(1), 4, 1, 0.0),
        QueuedCall(ring_all_reduce(1), 4, 1, 3.0),
    ]
    assert time_queue(calls, SLOW, TWO) == [Span(1, 1), Span(1, 1), Span(3, 3)]
    assert time_queue([], SLOW, TWO) == []


def test_what_fails_is_never_done() -> None:
    """Nor is what waits for its worker; what was before is, and what the other worker has not to do with the link."""
    network = read_network(
        '[host]\nranks = 1\nnic.bandwidth = "1B/s"\n[[failure]]\nlink = "host1.nic0.out"\nat = "5s"', "x"
    )
    done, cut, waiting = time_queue(
        [QueuedCall(RING, 4, 1, 0.0), QueuedCall(RING, 4, 1, 0.0), QueuedCall(RING, 4, 1, 0.0)], network, RULE
    )
    assert (done.end_s, cut.begin_s, cut.end_s, waiting.begin_s) == (4.0, 4.0, float("inf"), float("inf"))


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "double_binary_tree"])
def test_the_engine_gives_what_each_takes_alone(network: AnyNetwork, algorithm: str) -> None:
    """With one worker, when what is simulated together is put together from single runs instead."""
    schedule = build(Collective.ALL_REDUCE, algorithm, 5)
    sizes = [1000, 123_456, 7, 0, 50_000]
    calls = [QueuedCall(schedule, size, 1, 1e-4 * number) for number, size in enumerate(sizes)]
    begin_s, end_s = run_queue(calls, network.topology(5), RULE)
    expected = time_queue(calls, network, RULE)
    assert begin_s == pytest.approx([span.begin_s for span in expected], rel=1e-9)
    assert end_s == pytest.approx([span.end_s for span in expected], rel=1e-9)


SIZES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 3000)), min_size=1, max_size=6)


@given(sizes=SIZES, name=st.sampled_from(sorted(NETWORKS)), num_workers=st.integers(1, 3))
def test_laws(sizes: list[tuple[int, int]], name: str, num_workers: int) -> None:
    """In order, no earlier than ready, never faster than alone, and never more at once than there are workers."""
    schedule, network = ring_all_reduce(3), NETWORKS[name]
    calls = [QueuedCall(schedule, size, 1, ready_us * 1e-6) for size, ready_us in sizes]
    spans = time_queue(calls, network, Runtime(num_workers=num_workers))
    for call, span in zip(calls, spans, strict=True):
        assert span.begin_s >= call.ready_s
        assert span.end_s - span.begin_s >= predict_time(schedule, network, call.size_bytes) * (1 - 1e-9)
    begins = [span.begin_s for span in spans]
    assert begins == sorted(begins)
    for span in spans:
        at_once = [each for each in spans if each.begin_s <= span.begin_s < each.end_s * (1 - 1e-9)]
        assert len(at_once) <= num_workers


@pytest.mark.parametrize("name", ["private", "gbe"])
def test_as_merged_schedules(name: str) -> None:
    """Two large ones at once take as long as the two merged into one schedule, whose steps take turns."""
    ring, network, size = ring_all_reduce(4), NETWORKS[name], 16 * 2**20
    spans = time_queue([QueuedCall(ring, size), QueuedCall(ring, size)], network, TWO)
    merged_s = predict_time(merge(ring, ring), network, 2 * size)
    assert max(span.end_s for span in spans) == pytest.approx(merged_s, rel=0.2)


def test_mistakes_are_named() -> None:
    """One line each."""
    with pytest.raises(ValueError, match="^num_workers 0: must be at least 1$"):
        time_queue([], SLOW, Runtime(num_workers=0))
    with pytest.raises(ValueError, match=r"^calls of \[2, 3\] ranks: a queue is of one process group$"):
        time_queue([QueuedCall(RING, 4), QueuedCall(ring_all_reduce(3), 4)], SLOW, RULE)
    with pytest.raises(ValueError, match="^ready_s -1: a queue begins at 0$"):
        time_queue([QueuedCall(RING, 4, 1, -1)], SLOW, RULE)


@pytest.mark.parametrize("ready_s", [float("nan"), float("inf")])
def test_a_call_must_come_some_time(ready_s: float) -> None:
    """The second would otherwise never be taken, or at no time."""
    with pytest.raises(ValueError, match=rf"calls\[1\]: ready_s {ready_s}: must be finite"):
        time_queue([QueuedCall(RING, 4), QueuedCall(RING, 4, 1, ready_s)], SLOW, TWO)
