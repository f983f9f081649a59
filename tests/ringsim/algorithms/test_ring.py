"""The ring generators."""

import pytest

from ringsim import Collective, ring_reduce_scatter
from ringsim.algorithms.ring import stride_orders
from ringsim.registry import build


@pytest.mark.parametrize("num_ranks", [2, 4, 7])
def test_every_rank_sends_the_least_it_can(num_ranks: int) -> None:
    """All-reduce: 2(n-1) steps, and in each of them every rank sends one chunk of n and receives one."""
    schedule = build(Collective.ALL_REDUCE, "ring", num_ranks)
    assert (schedule.num_steps, schedule.num_chunks) == (2 * (num_ranks - 1), num_ranks)
    for step in schedule.steps:
        assert sorted(step.src.tolist()) == sorted(step.dst.tolist()) == list(range(num_ranks))
        assert sorted(step.chunk.tolist()) == list(range(num_ranks))


def test_the_table_in_the_docstring() -> None:
    """The worked example for four ranks is what the generator gives."""
    sent = [[transfer.chunk for transfer in step] for step in ring_reduce_scatter(4).steps]
    assert sent == [[3, 0, 1, 2], [2, 3, 0, 1], [1, 2, 3, 0]]


def test_a_large_ring_is_not_materialised() -> None:
    """65,536 ranks: any step is there at once, and waits for the step before it only."""
    schedule = build(Collective.ALL_REDUCE, "ring", 65536)
    assert (schedule.num_steps, schedule.steps.lookback) == (131070, 1)
    assert (schedule.steps[100_000].data_dependency == 99_999).all()
    assert (schedule.steps[65535].data_dependency == 65534).all()  # the all-gather's first step


def test_orders_in_strides_share_no_hop() -> None:
    """Eight ranks have four strides that come round to all of them; a fifth order has to repeat one."""
    orders = [order.tolist() for order in stride_orders(8, 5)]
    hops = [{(order[i - 1], order[i]) for i in range(8)} for order in orders]
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert len(set.union(*hops[:4])) == 4 * 8
    assert orders[4] == orders[0]
