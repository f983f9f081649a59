"""Collectives in a queue: hand-solved cases, and laws."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Network, load_network, predict_time, ring_all_reduce
from ringsim.network import read_network
from ringsim.registry import build
from ringsim.simulation import RULE, QueuedCall, Runtime, Span, time_queue
from tests.refusals import said_by

TWO = Runtime(num_workers=2)
RING = ring_all_reduce(2)
SLOW = Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=1.0)  # of 2 ranks, an all_reduce of m bytes takes m seconds
NETWORKS = {
    "private": Network.uniform(1e-5, 1e9, 5e9, 1e-6, 2e-6),
    "gbe": load_network("gbe"),
    "cores": load_network("loopback"),
}


def test_by_hand() -> None:
    """One worker does one after the other; two share the links at half the rate each, and their latencies overlap.

    Of the shared ones, the first has 2 of its 4 bytes done when the second comes; the 2 that remain take 4 s, in which
    the second does 2 of its 4; the third takes the first's worker then and shares with the second for 4 s, after which
    both are done.
    """
    calls = [QueuedCall(RING, 4, 1, 1.0), QueuedCall(RING, 2, 1, 2.0), QueuedCall(RING, 2, 1, 10.0)]
    assert time_queue(calls, SLOW, RULE) == [Span(1, 5), Span(5, 7), Span(10, 12)]
    calls = [QueuedCall(RING, 4, 1, 0.0), QueuedCall(RING, 4, 1, 2.0), QueuedCall(RING, 2, 1, 2.0)]
    assert time_queue(calls, SLOW, TWO) == [Span(0, 6), Span(2, 10), Span(6, 10)]
    latency = Network.uniform(latency_s=1.0, bandwidth_bytes_per_s=1.0)
    assert time_queue([QueuedCall(RING, 0)] * 2, latency, TWO) == [Span(0, 2), Span(0, 2)]
    assert time_queue([QueuedCall(RING, 0)] * 2, latency, RULE) == [Span(0, 2), Span(2, 4)]
    alone = [QueuedCall(ring_all_reduce(1), 4, 1, ready_s) for ready_s in (1.0, 0.0, 3.0)]
    assert time_queue(alone, SLOW, TWO) == [Span(1, 1), Span(1, 1), Span(3, 3)]  # it has nothing to send
    assert time_queue([], SLOW, TWO) == []


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_call_takes_its_worker_before_it_sends(num_workers: int) -> None:
    """Also one that has nothing to send; of two workers each has its own call to make."""
    network = read_network('[host]\nlink.bandwidth = "1B/s"', "x")
    calls = [QueuedCall(RING, 4, call_s=1), QueuedCall(RING, 0, call_s=3), QueuedCall(ring_all_reduce(2), 0, call_s=1)]
    expected = [Span(0, 5), Span(5, 8), Span(8, 9)] if num_workers == 1 else [Span(0, 5), Span(0, 3), Span(3, 4)]
    assert time_queue(calls, network, Runtime(num_workers=num_workers)) == expected
    alone = [QueuedCall(ring_all_reduce(1), 4, call_s=1)]
    assert time_queue(alone, network, Runtime(num_workers=num_workers)) == [Span(0, 1)]


def test_what_fails_is_never_done() -> None:
    """Nor is what waits for its worker; what was before is, and what the other worker has not to do with the link."""
    text = '[host]\nranks = 1\nnic.bandwidth = "1B/s"\n[[failure]]\nlink = "host1.nic0.out"\nat = "5s"'
    done, cut, waiting = time_queue([QueuedCall(RING, 4, 1, 0.0)] * 3, read_network(text, "x"), RULE)
    assert (done.end_s, cut.begin_s, cut.end_s, waiting.begin_s) == (4.0, 4.0, float("inf"), float("inf"))


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_the_engine_gives_what_each_takes_alone(network: Network) -> None:
    """With one worker, when what is simulated together is put together from single runs instead."""
    schedule = build(Collective.ALL_REDUCE, "double_binary_tree", 5)
    calls = [QueuedCall(schedule, size, 1, 1e-4 * number) for number, size in enumerate([1000, 123_456, 7, 0, 50_000])]
    expected_s, free_s = [], 0.0
    for call in calls:
        begin_s = max(free_s, call.ready_s)
        free_s = begin_s + predict_time(schedule, network, call.size_bytes)
        expected_s.append((begin_s, free_s))
    np.testing.assert_allclose(time_queue(calls, network, RULE), expected_s, rtol=1e-9)


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


MISTAKES = [
    ([], Runtime(num_workers=0)),
    ([QueuedCall(RING, 4), QueuedCall(ring_all_reduce(3), 4)], RULE),
    ([QueuedCall(RING, 4, ready_s=-1)], RULE),
    ([QueuedCall(RING, 4), QueuedCall(RING, 4, ready_s=float("nan"))], TWO),
    ([QueuedCall(RING, 4), QueuedCall(RING, 4, ready_s=float("inf"))], TWO),
    ([QueuedCall(RING, 4, network=SLOW)], TWO),
]
DOCS = Path(__file__).parents[3] / "docs"


def test_mistakes_are_named(snapshot: SnapshotAssertion) -> None:
    """One line each; a call that never comes would otherwise never be taken, or at no time."""
    assert [said_by(ValueError, time_queue, calls, SLOW, runtime) for calls, runtime in MISTAKES] == snapshot
    memory = load_network(DOCS / "networks/shared-memory.toml")
    through_memory = Runtime(num_workers=2, shares_memory=True)
    assert said_by(ValueError, time_queue, [QueuedCall(RING, 4)], memory, through_memory) == snapshot
