"""From what a strategy sends to how long it should take."""

import pytest

from ringsim import Network, predict_time, ring_all_reduce
from trainers.prediction import Call, Traffic, can_overlap, predict_sync_s

NETWORK = Network(latency_s=1e-3, bandwidth_bytes_per_s=1e6, reduce_bytes_per_s=1e7)
RING = ring_all_reduce(2)
ONE_S = predict_time(RING, NETWORK, 1000)


def test_calls_follow_one_another() -> None:
    """Two take twice as long as one, and local work comes on top."""
    assert predict_sync_s(Traffic([Call(RING, 1000, 4)], 0), NETWORK) == pytest.approx(ONE_S)
    assert predict_sync_s(Traffic([Call(RING, 1000, 4)] * 2, 500), NETWORK) == pytest.approx(2 * ONE_S + 500 / 1e7)


def test_what_the_backward_pass_hides_is_free() -> None:
    """A call that starts early counts only with what is left of it, and not at all if it is done in time."""
    early = Call(RING, 1000, 4, lead_s=0.25 * ONE_S)
    assert predict_sync_s(Traffic([early], 0), NETWORK) == pytest.approx(0.75 * ONE_S)
    assert predict_sync_s(Traffic([early, Call(RING, 1000, 4)], 0), NETWORK) == pytest.approx(1.75 * ONE_S)
    assert predict_sync_s(Traffic([Call(RING, 1000, 4, lead_s=5 * ONE_S)], 0), NETWORK) == 0.0
    gap = [Call(RING, 1000, 4, lead_s=5 * ONE_S), Call(RING, 1000, 4, lead_s=0.5 * ONE_S)]
    assert predict_sync_s(Traffic(gap, 0), NETWORK) == pytest.approx(0.5 * ONE_S)


def test_nothing_to_send_takes_no_time() -> None:
    """One rank, or a model without gradients."""
    assert predict_sync_s(Traffic([], 0), NETWORK) == 0.0


def test_overlap_needs_a_core_to_spare() -> None:
    """Each rank computes on one core and sends on another."""
    assert can_overlap(ranks_per_host=2, cores=4)
    assert not can_overlap(ranks_per_host=2, cores=3)
    assert not can_overlap(ranks_per_host=1, cores=None)
