"""From what a strategy sends to how long it should take."""

import pytest

from ringsim import predict_time, ring_all_reduce
from ringsim.network.cluster import Cluster
from ringsim.network.spec import Host, Link, Processor, Spec
from trainers.predictions.prediction import Call, Traffic, can_overlap, predict_sync_s

HOST = Host(link=Link(latency_s=1e-3, bandwidth_bytes_per_s=1e6))
CALLING_S = 0.125
NETWORK = Cluster("two", Spec(host=HOST, processor=Processor(reduce_bytes_per_s=1e7)), "", "")
CALLED = Cluster("called", Spec(host=HOST, processor=Processor(call_s=CALLING_S, torch_call_s=2 * CALLING_S)), "", "")
RING = ring_all_reduce(2)
ONE_S = predict_time(RING, NETWORK, 1000)


def sync_s(traffic: Traffic) -> float:
    """Of two ranks, where calling costs nothing."""
    return predict_sync_s(traffic, NETWORK, 2)


def test_calls_follow_one_another() -> None:
    """Two take twice as long as one, and local work comes on top."""
    assert sync_s(Traffic([Call(RING, 1000, 4)], 0)) == pytest.approx(ONE_S)
    assert sync_s(Traffic([Call(RING, 1000, 4)] * 2, 500)) == pytest.approx(2 * ONE_S + 500 / 1e7)


def test_each_call_has_its_price() -> None:
    """One of ours another than one of torch's; ranks that share a core copy for as much longer."""
    free_s = predict_time(RING, CALLED, 1000)
    both = Traffic([Call(RING, 1000, 4), Call(RING, 1000, 4, is_native=True)], 0)
    assert predict_sync_s(both, CALLED, 2) == pytest.approx(2 * free_s + 3 * CALLING_S)
    crowded = Cluster("one core", Spec(host=Host(cores=1), processor=Processor(reduce_bytes_per_s=1e7)), "", "")
    assert predict_sync_s(Traffic([], 500), crowded, 2) == pytest.approx(2 * 500 / 1e7)


def test_what_the_backward_pass_hides_is_free() -> None:
    """A call that starts early counts only with what is left of it, and not at all if it is done in time."""
    early = Call(RING, 1000, 4, lead_s=0.25 * ONE_S)
    assert sync_s(Traffic([early], 0)) == pytest.approx(0.75 * ONE_S)
    assert sync_s(Traffic([early, Call(RING, 1000, 4)], 0)) == pytest.approx(1.75 * ONE_S)
    assert sync_s(Traffic([Call(RING, 1000, 4, lead_s=5 * ONE_S)], 0)) == 0.0
    gap = [Call(RING, 1000, 4, lead_s=5 * ONE_S), Call(RING, 1000, 4, lead_s=0.5 * ONE_S)]
    assert sync_s(Traffic(gap, 0)) == pytest.approx(0.5 * ONE_S)


def test_nothing_to_send_takes_no_time() -> None:
    """One rank, or a model without gradients."""
    assert sync_s(Traffic([], 0)) == 0.0


def test_overlap_needs_a_core_to_spare() -> None:
    """Each rank computes on one core and sends on another."""
    assert can_overlap(ranks_per_machine=2, cores=4)
    assert not can_overlap(ranks_per_machine=2, cores=3)
    assert not can_overlap(ranks_per_machine=1, cores=None)
