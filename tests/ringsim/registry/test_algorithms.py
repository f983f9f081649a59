"""Tests of `ringsim.registry.algorithms`: which schedule a name stands for, and how it depends on the size."""

import pytest

from ringsim.algorithms.rings import gloo_ring_all_reduce
from ringsim.registry.algorithms import build, size_variant
from ringsim.schedule.collective import Collective
from ringsim.schedule.partition import gloo_partition, partition

MIB = 2**20


@pytest.mark.parametrize(("size_bytes", "segments"), [(0, 2), (8 * MIB, 2), (8 * MIB + 1, 3), (16 * MIB, 4)])
def test_gloo_s_ring_depends_on_the_size(size_bytes: int, segments: int) -> None:
    """At least two segments of each of four chunks, of at most 1 MiB, and cut where Gloo cuts."""
    schedule = build(Collective.ALL_REDUCE, "gloo_ring", 4, size_bytes)
    assert size_variant(Collective.ALL_REDUCE, "gloo_ring", 4, size_bytes) == segments
    assert (schedule.algorithm, schedule.num_chunks, schedule.cut) == ("gloo_ring", 4 * segments, gloo_partition)
    assert schedule.num_steps == gloo_ring_all_reduce(4, segments).num_steps


@pytest.mark.parametrize(("algorithm", "size_bytes", "segments"), [
    ("nccl_tree", 8, 1), ("nccl_tree", 4 * MIB, 4), ("nccl_tree", 2**32, 32),
    ("nvls", 8, 1), ("nvls", 4 * MIB, 4), ("nvls", 2**32, 32),
])  # fmt: skip
def test_nccl_s_algorithms_cut_into_more_segments_the_more_there_is(
    algorithm: str, size_bytes: int, segments: int
) -> None:
    """Of 64 KiB for each of 16 trees on two hosts of eight, so that a few bytes take no more steps than they need."""
    schedule = build(Collective.ALL_REDUCE, algorithm, 16, size_bytes)
    assert size_variant(Collective.ALL_REDUCE, algorithm, 16, size_bytes) == segments
    assert schedule.num_chunks == 16 * segments


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [(Collective.ALL_REDUCE, "ring/4"), (Collective.ALL_GATHER, "gloo_ring"), (Collective.REDUCE, "binomial_tree")],
)
def test_others_do_not(collective: Collective, algorithm: str) -> None:
    """They are the same for every size, and cut evenly."""
    plain = build(collective, algorithm, 4)
    for size_bytes in (0, 64 * MIB):
        assert size_variant(collective, algorithm, 4, size_bytes) == 0
        schedule = build(collective, algorithm, 4, size_bytes)
        assert [list(step) for step in schedule.steps] == [list(step) for step in plain.steps]
        assert schedule.cut is partition
