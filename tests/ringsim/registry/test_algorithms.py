"""Tests of `ringsim.registry.algorithms`: which schedule a name stands for, and how it depends on the size."""

import pytest

from ringsim.algorithms.hierarchical import hierarchical_all_reduce
from ringsim.algorithms.rings import gloo_ring_all_reduce
from ringsim.registry.algorithms import TWO_LEVEL, build, is_built_in, size_variant
from ringsim.schedule import split, verify
from ringsim.schedule.collective import Collective
from ringsim.schedule.partition import gloo_partition, partition
from ringsim.schedule.schedule import Schedule

MIB = 2**20


@pytest.mark.parametrize(("size_bytes", "segments"), [(0, 2), (8 * MIB, 2), (8 * MIB + 1, 3), (16 * MIB, 4)])
def test_gloo_s_ring_depends_on_the_size(size_bytes: int, segments: int) -> None:
    """At least two segments of each of four chunks, of at most 1 MiB, and cut where Gloo cuts."""
    schedule = build(Collective.ALL_REDUCE, "gloo_ring", 4, size_bytes)
    assert size_variant(Collective.ALL_REDUCE, "gloo_ring", 4, size_bytes) == segments
    assert (schedule.algorithm, schedule.num_chunks, schedule.partition) == ("gloo_ring", 4 * segments, gloo_partition)
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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hierarchical@3", "ranks_per_host 3: must divide the number of ranks, 8"),
        ("hierarchical@", "after the @ must come the number of ranks of a host, 1..65536"),
        ("hierarchical@0", "after the @ must come"),
        ("hierarchical@two/2", "after the @ must come"),
        ("hierarchical@2/", "after the slash must come a number of segments, 1..65536"),
        ("ring@2", "ring is the same however many ranks a host has; only hierarchical, nccl_ring, nccl_tree, nvls"),
        ("hierarchica@2", "or FILE.xml; did you mean hierarchical"),
    ],
)
def test_names_that_cannot_be(name: str, message: str) -> None:
    """In one line that says which rule."""
    with pytest.raises(ValueError, match="must|same|mean") as error:
        build(Collective.ALL_REDUCE, name, 8)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["ring/own.py:function", "ring@2/own.py:function", "ring/own.xml"])
def test_a_file_in_a_folder_with_an_algorithms_name_is_a_file(name: str) -> None:
    """Which is proved before it is used, as every file."""
    assert not is_built_in(Collective.ALL_REDUCE, name)
