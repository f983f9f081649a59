"""Tests of `ringsim.registry`: which schedule a name stands for, and how it depends on the size."""

import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim.algorithms.hierarchical import hierarchical_all_reduce
from ringsim.registry import TWO_LEVEL, build, is_built_in, size_variant
from ringsim.schedule import Collective, Schedule, gloo_partition, partition, split, verify
from tests.refusals import said_by

MIB = 2**20


SEGMENTS = [("gloo_ring", 4, *row) for row in ((0, 2), (8 * MIB, 2), (8 * MIB + 1, 3), (16 * MIB, 4))]
SEGMENTS += [(name, 16, *row) for name in ("nccl_tree", "nvls") for row in ((8, 1), (4 * MIB, 4), (2**32, 32))]


@pytest.mark.parametrize(("algorithm", "num_ranks", "size_bytes", "segments"), SEGMENTS)
def test_some_have_more_segments_for_more_bytes(algorithm: str, num_ranks: int, size_bytes: int, segments: int) -> None:
    """Each of Gloo's chunks into at least two of at most 1 MiB, where Gloo cuts; NCCL's 16 trees by 64 KiB each."""
    schedule = build(Collective.ALL_REDUCE, algorithm, num_ranks, size_bytes)
    assert size_variant(Collective.ALL_REDUCE, algorithm, num_ranks, size_bytes) == segments
    assert (schedule.algorithm, schedule.num_chunks) == (algorithm, num_ranks * segments)
    assert schedule.partition is (gloo_partition if algorithm == "gloo_ring" else partition)


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
        assert steps_of(schedule) == steps_of(plain)
        assert schedule.partition is partition


def steps_of(schedule: Schedule) -> list[list[tuple[int, int, int, bool]]]:
    """All transfers, step by step."""
    return [[tuple(transfer) for transfer in step] for step in schedule.steps]


def test_a_name_may_say_how_many_ranks_a_host_has() -> None:
    """And the number of segments after that; by default a host has as many as divide the ranks, up to eight."""
    named, plain = build(Collective.ALL_REDUCE, "hierarchical@4/2", 8), hierarchical_all_reduce(8, ranks_per_host=4)
    assert named.algorithm == "hierarchical@4"
    assert steps_of(named) == steps_of(split(plain, 2))
    assert steps_of(named) != steps_of(build(Collective.ALL_REDUCE, "hierarchical/2", 8))


@pytest.mark.parametrize("base", TWO_LEVEL)
@pytest.mark.parametrize(("num_ranks", "per_host"), [(6, 3), (12, 4), (6, 1), (6, 6)])
def test_all_for_several_hosts_take_their_size(base: str, num_ranks: int, per_host: int) -> None:
    """For small tensors and for large ones, where the schedule depends on the size."""
    for size_bytes in (None, 64 * MIB):
        verify(build(Collective.ALL_REDUCE, f"{base}@{per_host}", num_ranks, size_bytes))


WRONG_NAMES = (*(f"hierarchical@{size}" for size in ("3", "", "0", "two/2", "2/")), "ring@2", "hierarchica@2", "tree")


def test_names_that_cannot_be(snapshot: SnapshotAssertion) -> None:
    """In one line that says which rule, and what there is."""
    assert {name: said_by(ValueError, build, Collective.ALL_REDUCE, name, 8) for name in WRONG_NAMES} == snapshot


@pytest.mark.parametrize("name", ["ring/own.py:function", "ring@2/own.py:function", "ring/own.xml"])
def test_a_file_in_a_folder_with_an_algorithms_name_is_a_file(name: str) -> None:
    """Which is proved before it is used, as every file."""
    assert not is_built_in(Collective.ALL_REDUCE, name)
