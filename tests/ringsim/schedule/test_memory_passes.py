"""Copies of ranks that read in place what they receive."""

import pytest

from ringsim.registry.algorithms import build
from ringsim.schedule.collective import Collective
from ringsim.schedule.memory_passes import memory_passes


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_a_ring(num_ranks: int) -> None:
    """Each rank publishes one chunk by copying, and sums by forming them there; it takes all chunks once."""
    passes = memory_passes(build(Collective.ALL_REDUCE, "ring", num_ranks))
    assert passes.published.sum() == num_ranks  # in the first step; what is sent later is a sum, or is passed on
    assert passes.published[:num_ranks].all()
    assert passes.taken.sum() == num_ranks**2  # the last sum, too, which was formed where others read it
    assert passes.most_published == num_ranks


def test_what_is_sent_to_many_is_copied_once() -> None:
    """In a direct all_gather; and only the root of a broadcast copies anything."""
    passes = memory_passes(build(Collective.ALL_GATHER, "direct", 4))
    assert (passes.published.sum(), passes.taken.sum(), passes.most_published) == (4, 12, 1)
    passes = memory_passes(build(Collective.BROADCAST, "binomial_tree", 4))
    assert (passes.published.sum(), passes.taken.sum(), passes.most_published) == (1, 3, 1)


def test_a_sum_that_nobody_reads_is_formed_where_it_belongs() -> None:
    """In a direct reduce_scatter nothing but contributions is sent, and nothing is copied at the receiver."""
    passes = memory_passes(build(Collective.REDUCE_SCATTER, "direct", 4))
    assert (passes.published.sum(), passes.taken.sum(), passes.most_published) == (12, 0, 3)


def test_only_what_a_rank_must_hold_is_taken() -> None:
    """A reduce leaves its sum at the root, to which nobody reads it."""
    passes = memory_passes(build(Collective.REDUCE, "binomial_tree", 4))
    assert passes.taken.sum() == 0


def test_sums_in_three_places() -> None:
    """The first sum of a chunk where the input stays as it is; all that are sent on; those of what was sent on."""
    assert memory_passes(build(Collective.REDUCE_SCATTER, "direct", 4)).apart.tolist() == [True] * 4 + [False] * 8
    assert memory_passes(build(Collective.ALL_REDUCE, "recursive_doubling", 4)).apart.all()
    assert not memory_passes(build(Collective.REDUCE, "direct", 4)).apart.any()
