"""Virtual time: hand-worked cases, and what cannot be simulated."""

import math
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import Collective, Network, Schedule, Transfer, predict_time, ring_all_reduce
from ringsim.registry import build
from ringsim.simulation import IN_ORDER, simulate
from tests.refusals import refused
from tests.ringsim.strategies import listed, schedules
from tests.ringsim.topologies import PrivateLinks

NETWORK = Network(
    latency_s=10e-6, bandwidth_bytes_per_s=1e9, reduce_bytes_per_s=4e9, gap_s=1e-6, receive_overhead_s=2e-6
)


@given(schedules(), st.integers(0, 10**4))
def test_in_order_a_rank_applies_in_step_order(schedule: Schedule, size: int) -> None:
    """Everything, and what it sends on one channel leaves in step order; nothing is earlier than it may be."""
    network = PrivateLinks(**asdict(NETWORK))
    timeline, permitted = simulate(schedule, network, size, runtime=IN_ORDER), simulate(schedule, network, size)
    assert (permitted.applied_s <= timeline.applied_s).all()
    for rank in range(schedule.num_ranks):
        order = timeline.applied_order(rank)
        assert [step for step, *_ in order] == sorted(step for step, *_ in order)
        for other in range(schedule.num_ranks):
            rows = np.flatnonzero((timeline.src == rank) & (timeline.dst == other))
            sent = timeline.step[rows[np.lexsort((rows, timeline.sent_s[rows], timeline.start_s[rows]))]]
            assert (np.diff(sent) >= 0).all()


def test_steps_are_no_barrier() -> None:
    """A transfer of a later step starts at once if it waits for nothing in an earlier one."""
    assert simulate(listed([Transfer(0, 1, 0, True)], [Transfer(2, 3, 1, True)]), NETWORK, 2000).start_s.tolist() == [
        0.0,
        0.0,
    ]


def test_uneven_chunks_cost_what_they_weigh() -> None:
    """Five bytes over two chunks: two and three, at 1 B/s."""
    schedule = build(Collective.ALL_GATHER, "ring", 2)
    timeline = simulate(schedule, Network(0.0, 1.0), 5)
    assert timeline.sent_s.tolist() == [2.0, 3.0]
    assert simulate(schedule, Network(0.0, 1.0), 20, element_bytes=4).sent_s.tolist() == [8.0, 12.0]


RING = ring_all_reduce(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: predict_time(RING, NETWORK, 10, element_bytes=4),
            "size 10 bytes: must be a multiple of the element size, 4 bytes",
        ),
        (lambda: predict_time(RING, NETWORK, -4), "num_elements -4: must not be negative"),
        (lambda: Network(-1.0, 1e9), "latency_s -1.0: must be finite and not negative"),
        (lambda: Network(math.nan, 1e9), "latency_s nan: must be finite and not negative"),
        (lambda: Network(0.0, 0.0), "bandwidth_bytes_per_s 0.0: must be greater than 0"),
        (lambda: Network(0.0, 1e9, -1.0), "reduce_bytes_per_s -1.0: must be greater than 0"),
    ],
)
def test_impossible_sizes_and_networks_are_refused(make: Callable[[], object], message: str) -> None:
    """The message names the field, the value and the rule."""
    with refused(message):
        make()
