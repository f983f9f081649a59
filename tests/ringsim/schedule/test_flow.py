"""The data flow of a schedule, beside a walk through its transfers one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ringsim import Schedule, Transfer, ring_all_reduce
from ringsim.schedule.flow import NO_ROW, flow
from ringsim.schedule.memory_passes import most_published
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


@settings(max_examples=200, deadline=None)
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


@settings(max_examples=200, deadline=None)
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
