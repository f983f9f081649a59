"""Tests of `ringsim.analysis.run_view`."""

import numpy as np
import pytest

from ringsim import Collective, Network, Schedule, ScheduleError, Transfer, animation_page
from ringsim.algorithms.rings import ring_broadcast
from ringsim.analysis import waiting_times
from ringsim.analysis.contributions import MAX_STATES
from ringsim.analysis.run_view import RunView
from ringsim.registry import build
from ringsim.simulation import predict_time
from tests.ringsim.made_run import made_view

RING = build(Collective.ALL_REDUCE, "ring", 4)
NETWORK = Network.uniform(latency_s=20e-6, bandwidth_bytes_per_s=1.25e9, reduce_bytes_per_s=5e9)


def test_many_states_are_thinned_evenly() -> None:
    """Of few all stay, of many the first, the last and the one half-way, where rank r has finished chunk r alone."""
    assert made_view("ring", 8).states.states.tolist() == list(range(15))
    view = made_view("ring", 16)
    states = view.states.states.tolist()
    half_way = MAX_STATES // 2
    assert (len(states), states[0], states[half_way], states[-1]) == (MAX_STATES, 0, 15, 30)
    assert (view.states.finished[half_way] == np.eye(16, dtype=bool)).all()


def test_waiting_is_the_time_between_sending_and_reducing() -> None:
    """A rank waits while a chunk travels, and not while it reduces."""
    # 1 s to send a chunk, 0.5 s under way, 0.5 s to reduce: sends 0-1, reduces 1.5-2, sends 2-3, has all at 3.5.
    network = Network.uniform(latency_s=0.5, bandwidth_bytes_per_s=1, reduce_bytes_per_s=2)
    view = RunView(build(Collective.ALL_REDUCE, "ring", 2), network, 2)
    assert [gaps.tolist() for gaps in waiting_times(view.timeline)] == [[[1.0, 1.5], [3.0, 3.5]]] * 2


@pytest.mark.parametrize("algorithm", ["ring", "gloo_ring"])
def test_at_the_crossover_the_time_is_twice_the_floor(algorithm: str) -> None:
    """The bytes take as long as latency alone; without latency, or with a huge one, there is no crossover."""
    schedule = build(Collective.ALL_REDUCE, algorithm, 8)
    by_size = RunView(schedule, NETWORK, 1 << 20).by_size
    assert by_size.floor_s == predict_time(schedule, NETWORK, 0) > 0
    assert predict_time(schedule, NETWORK, by_size.crossover_bytes or 0) == pytest.approx(2 * by_size.floor_s, rel=1e-4)
    for latency_s in (0.0, 1e9):
        assert RunView(schedule, Network.uniform(latency_s, 1e9), 1 << 20).by_size.crossover_bytes is None


def test_the_closed_form_lies_on_the_simulated_times() -> None:
    """At every size, here powers of two, of which 8 ranks have chunks of the same size; a name alone has no formula."""
    for algorithm in ("ring", "bidirectional_ring", "direct"):
        by_size = made_view(algorithm, 8, collective="reduce_scatter").by_size
        np.testing.assert_allclose(by_size.closed_form_s, by_size.times_s)
    assert made_view("double_binary_tree", 4).by_size.closed_form_s is None
    assert RunView(ring_broadcast(4, segments=2), NETWORK, 1 << 20).by_size.closed_form_s is None


def test_a_wrong_schedule_is_refused() -> None:
    """One of it would show wrong sums."""
    wrong = Schedule.from_transfers(Collective.BROADCAST, "mine", 3, 1, [[Transfer(0, 1, 0, reduce=False)]])
    with pytest.raises(ScheduleError, match="rank 2"):
        animation_page([RunView(wrong, NETWORK, 100)])


def test_a_large_run_lies_within_the_simulated_sizes() -> None:
    """They are powers of two up to its own."""
    assert RunView(RING, NETWORK, 5 << 30).by_size.sizes_bytes[-1] == 8 << 30


def test_steps_end_in_their_order() -> None:
    """When all transfers up to that step are applied; the last with the run."""
    view = RunView(build(Collective.ALL_REDUCE, "torus", 6), NETWORK, 6000)
    assert (np.diff(view.step_end_s) >= 0).all()
    assert view.step_end_s[-1] == view.timeline.time_s
    rows = view.timeline.step <= 3
    assert view.step_end_s[3] == view.timeline.applied_s[rows].max()
