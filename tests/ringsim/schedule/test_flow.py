"""The data flow of a schedule, held against a walk through its transfers, and the copies that follow from it."""

from hypothesis import given
from hypothesis import strategies as st

from ringsim.registry import build
from ringsim.schedule import NO_ROW, Collective, Schedule, Transfer, dependencies, flow, memory_passes, most_published
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


def test_a_transfer_waits_for_the_last_write_and_a_write_for_the_last_send() -> None:
    """Rules 1 and 4; in an exchange each sends what it held before."""
    schedule = listed(
        [Transfer(0, 1, 0, True), Transfer(1, 0, 0, True)],
        [Transfer(2, 0, 1, False)],
        [Transfer(0, 2, 0, False)],
        [Transfer(1, 0, 0, False)],
    )
    waits = dependencies(schedule)
    assert waits.data_dependency.tolist() == [NO_ROW, NO_ROW, NO_ROW, 1, 0]
    assert waits.buffer_dependency.tolist() == [1, 0, NO_ROW, NO_ROW, 3]


@given(schedules() | built_in_schedules(max_ranks=9), st.booleans())
def test_a_rank_publishes_each_version_once(schedule: Schedule, on_one_host: bool) -> None:
    """And what it passes on as it is not at all, if its receivers can read it where it was published first."""
    published: list[set[tuple[int, int]]] = [set() for _ in range(schedule.num_ranks)]
    rows = flow(schedule)
    for src, chunk, version in zip(rows.src, rows.chunk, rows.reads, strict=True):
        if not (on_one_host and version != NO_ROW and not rows.reduce[version]):
            published[src].add((chunk, version))
    assert most_published(schedule, rows, on_one_host) == max(map(len, published), default=0)


PASSES = {
    (Collective.ALL_REDUCE, "ring"): (4, 16, 4),  # the first of each chunk, not sums; all taken, the last sum too
    (Collective.ALL_GATHER, "direct"): (4, 12, 1),  # what is sent to many is copied once
    (Collective.BROADCAST, "binomial_tree"): (1, 3, 1),  # only the root copies anything
    (Collective.REDUCE_SCATTER, "direct"): (12, 0, 3),  # only contributions are sent; sums are formed in place
    (Collective.REDUCE, "binomial_tree"): (2, 0, 1),  # the root's sum is read by nobody
}


def test_passes_of_four_ranks() -> None:
    """Published, taken, and published by one rank at most."""
    passes = {key: memory_passes(build(*key, 4)) for key in PASSES}
    assert {key: (of.published.sum(), of.taken.sum(), of.most_published) for key, of in passes.items()} == PASSES


def test_sums_in_three_places() -> None:
    """The first sum of a chunk where the input stays as it is; all that are sent on; those of what was sent on."""
    direct = build(Collective.REDUCE_SCATTER, "direct", 4)
    assert memory_passes(direct).apart.tolist() == [True] * 4 + [False] * 8
    assert not memory_passes(direct, in_place=True).apart.any()  # as the output is where the rank's own chunk was
    ring = build(Collective.REDUCE_SCATTER, "ring", 3)
    assert memory_passes(ring, in_place=True).apart.tolist() == [True] * 3 + [False] * 3  # the first sums are sent on
    assert memory_passes(build(Collective.ALL_REDUCE, "recursive_doubling", 4)).apart.all()
    assert not memory_passes(build(Collective.REDUCE, "direct", 4)).apart.any()
