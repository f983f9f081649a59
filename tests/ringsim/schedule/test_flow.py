"""The data flow of a schedule, held against a walk through its transfers, and the copies that follow from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import Schedule, Transfer, ring_all_reduce
from ringsim.registry.algorithms import build
from ringsim.schedule.collective import Collective
from ringsim.schedule.flow import NO_ROW, flow
from ringsim.schedule.memory_passes import memory_passes, most_published
from tests.ringsim.strategies import built_in_schedules, listed, schedules


class Walk:
    """The columns of `Flow`, found by carrying the number of the last writer of each rank's chunk along."""

    def __init__(self, schedule: Schedule) -> None:
        self.reads: list[int] = []
        self.replaces: list[int] = []
        writer: dict[tuple[int, int], int] = {}
        for step in schedule.steps:
            self.reads += [writer.get((src, chunk), NO_ROW) for src, _, chunk, *_ in step]
            for _, dst, chunk, *_ in step:
                self.replaces.append(writer.get((dst, chunk), NO_ROW))
                writer[dst, chunk] = len(self.replaces) - 1
        self.last = set(writer.values())


@given(schedules() | built_in_schedules(max_ranks=9))
def test_each_transfer_reads_and_replaces_the_version_that_was_written_last(schedule: Schedule) -> None:
    """A step reads versions that were there before it; its writes come one after the other."""
    rows, walk = flow(schedule), Walk(schedule)
    assert rows.reads.tolist() == walk.reads
    assert rows.replaces.tolist() == walk.replaces
    assert [row for row, is_read in enumerate(rows.is_read) if is_read] == sorted({*walk.reads} - {NO_ROW})
    assert [row for row, is_replaced in enumerate(rows.is_replaced) if not is_replaced] == sorted(walk.last)
    transfers = [transfer for step in schedule.steps for transfer in step]
    assert list(zip(rows.src, rows.dst, rows.chunk, rows.reduce, rows.channel, strict=True)) == transfers


@given(schedules() | built_in_schedules(max_ranks=9), st.booleans())
def test_a_rank_publishes_each_version_once(schedule: Schedule, on_one_host: bool) -> None:
    """And what it passes on as it is not at all, if its receivers can read it where it was published first."""
    published: list[set[tuple[int, int]]] = [set() for _ in range(schedule.num_ranks)]
    rows = flow(schedule)
    for src, chunk, version in zip(rows.src, rows.chunk, rows.reads, strict=True):
        if not (on_one_host and version != NO_ROW and not rows.reduce[version]):
            published[src].add((chunk, version))
    assert most_published(schedule, rows, on_one_host) == max(map(len, published), default=0)


def test_a_swap() -> None:
    """Two ranks that add to each other's chunk and pass on the sum: each sum is read, the last copy is not."""
    rows = flow(listed([Transfer(0, 1, 0, True), Transfer(1, 0, 0, True)], [Transfer(0, 1, 0, False)]))
    assert rows.reads.tolist() == [NO_ROW, NO_ROW, 1]
    assert rows.replaces.tolist() == [NO_ROW, NO_ROW, 0]
    assert rows.is_read.tolist() == [False, True, False]
    assert rows.is_replaced.tolist() == [True, False, False]


def test_nothing_flows_where_nothing_is_sent() -> None:
    """One rank has no transfers."""
    assert len(flow(ring_all_reduce(1))) == 0


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
    direct = build(Collective.REDUCE_SCATTER, "direct", 4)
    assert memory_passes(direct).apart.tolist() == [True] * 4 + [False] * 8
    assert not memory_passes(direct, in_place=True).apart.any()  # as the output is where the rank's own chunk was
    ring = build(Collective.REDUCE_SCATTER, "ring", 3)
    assert memory_passes(ring, in_place=True).apart.tolist() == [True] * 3 + [False] * 3  # the first sums are sent on
    assert memory_passes(build(Collective.ALL_REDUCE, "recursive_doubling", 4)).apart.all()
    assert not memory_passes(build(Collective.REDUCE, "direct", 4)).apart.any()
