"""`MemoryPasses`: the copies of ranks that read received chunks from each other's memory.

A sender publishes a chunk: it copies its original data to where the other ranks of its host can read it. Sums are
formed there, and a forwarded chunk stays where it was first published. The chunks of a *lent* tensor, in shared memory,
are published in place unless they could be overwritten too early.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ringsim.schedule.collective import held_at_end
from ringsim.schedule.flow import NO_ROW, Flow, FlowRow, Occurrences, flow, pair
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.steps import Bools


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPasses:
    """The copies of each transfer besides its addition; (num_transfers,) each, in step order.

    published: whether the sender copies the chunk to published memory.
    taken: whether the receiver copies the final value from published memory to its tensor, or a sum formed in its
    tensor to published memory.
    apart: whether the sum is formed in a third place, not where its first operand lies.
    most_published: the largest number of chunks that a rank publishes.
    """

    published: Bools
    taken: Bools
    apart: Bools
    most_published: int


def memory_passes(schedule: Schedule, *, in_place: bool = False, is_lent: bool = False) -> MemoryPasses:
    """Return the copies of all transfers of `schedule`, whose ranks all share memory.

    in_place: whether the output of a rank that does not end with all chunks is a part of its input.
    is_lent: whether the input lies in shared memory, and the output if both are the same tensor.
    """
    rows = flow(schedule)
    wanted = held_at_end(schedule.collective, schedule.num_ranks, schedule.num_chunks)
    keeps_input: Bools = np.logical_not(wanted.all(axis=1) | in_place)
    is_final = ~rows.is_replaced & wanted[rows.dst, rows.chunk]
    is_published: Bools = np.logical_or(rows.is_read, ~rows.reduce)
    stays = np.zeros((schedule.num_ranks, schedule.num_chunks), np.bool_)
    if is_lent:
        stays = np.array([stays_until_read(schedule, rows, rank) for rank in range(schedule.num_ranks)])
    sent_in_place = stays | (keeps_input & is_lent)[:, np.newaxis]
    is_summed_in_place: Bools = np.logical_and(rows.reduce, (stays & ~keeps_input[:, np.newaxis])[rows.dst, rows.chunk])
    is_elsewhere = is_published & ~is_summed_in_place
    adds_to_published = np.where(rows.replaces == NO_ROW, keeps_input[rows.dst], is_elsewhere[rows.replaces])
    return MemoryPasses(
        published=(rows.reads == NO_ROW) & _is_first(schedule, rows) & ~sent_in_place[rows.src, rows.chunk],
        taken=is_final & is_elsewhere,
        apart=rows.reduce & ((rows.is_read & ~is_summed_in_place & ~is_final) | adds_to_published),
        most_published=most_published(schedule, rows),
    )


def most_published(schedule: Schedule, rows: Flow, on_one_host: bool = True) -> int:
    """Return the largest number of chunks that a rank publishes in one execution.

    rows: the flow of `schedule`. on_one_host: whether all ranks share memory; a forwarded chunk is then not published
    again.
    """
    is_passed_on = (rows.reads != NO_ROW) & ~rows.reduce[rows.reads] & on_one_host
    publishes = _is_first(schedule, rows) & ~is_passed_on
    return int(np.bincount(rows.src[publishes], minlength=schedule.num_ranks).max(initial=0))


def stays_until_read(schedule: Schedule, rows: Flow, rank: int) -> Bools:
    """Return for each chunk whether others can read it in the tensor of `rank` itself, (num_chunks,).

    They can if every version that overwrites another was made, directly or not, from the results of that version's
    readers, even those that receive it through others. rows: the flow of `schedule`.
    """
    reading = _Reading(rank)
    for index, row in enumerate(rows.listed()):
        reading.add(index, row)
    stays = np.ones(schedule.num_chunks, dtype=np.bool_)
    stays[reading.overwritten_too_early()] = False
    return stays


class _Reading:
    """The readers of the chunks of a rank, collected row by row. The bits of a number are a set of a chunk's rows.

    _made_from: for each row, the rows from which its version was made, itself included.
    _origin: for each row that copies a version of the rank, the row that wrote it.
    _readers: of each version of the rank.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._bits = Counter[int]()  # how many rows of a chunk have one
        self._made_from: list[int] = []
        self._origin: dict[int, tuple[int, int]] = {}
        self._readers = Counter[tuple[int, int]]()
        self._overwritten: list[tuple[int, tuple[int, int]]] = []

    def add(self, index: int, row: FlowRow) -> None:
        own = 1 << self._bits[row.chunk]
        self._bits[row.chunk] += 1
        self._made_from.append(own | self._made(row.reads) | self._made(row.replaces))
        version = (row.chunk, row.reads) if row.src == self._rank else self._origin.get(row.reads)
        if version is not None:
            self._readers[version] |= own
            if not row.reduce:
                self._origin[index] = version
        if row.reduce and row.replaces in self._origin:
            self._readers[self._origin[row.replaces]] |= own
        if row.dst == self._rank:
            self._overwritten.append((index, (row.chunk, row.replaces)))

    def overwritten_too_early(self) -> list[int]:
        return [version[0] for index, version in self._overwritten if self._readers[version] & ~self._made_from[index]]

    def _made(self, row: int) -> int:
        return 0 if row == NO_ROW else self._made_from[row]


def _is_first(schedule: Schedule, rows: Flow) -> Bools:
    from_start = pair(rows.src, rows.chunk, schedule.num_ranks, schedule.num_chunks)
    version = np.where(
        rows.reads == NO_ROW, from_start, schedule.num_ranks * schedule.num_chunks + rows.reads.astype(np.int64)
    )
    return np.equal(Occurrences(version, rows.step).previous(), NO_ROW)
