"""`Flow`: the data flow of a schedule: which version of a chunk each transfer reads, and which one it replaces.

A rank's chunk has a new version whenever a transfer writes to it, so a version has the number of the transfer that
wrote it. Whatever else is known about who sends what follows from these two columns: what must wait for what
(`Dependencies`), what is copied between ranks that share memory (`MemoryPasses`), what one rank does (`RankProgram`).
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ringsim.schedule.memory import require_memory
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.table import AnyInts, Bools, Rows, TransferTable, stable_order

NO_ROW = -1  # in place of a row: the version that the rank has held from the start, or nothing to wait for
BYTES_MADE = 100  # of memory for each transfer, while it or the arrows between its rows are made, at most


class FlowRow(NamedTuple):
    """One row of a `Flow`, in Python's numbers."""

    step: int
    src: int
    dst: int
    chunk: int
    channel: int
    reduce: bool
    reads: int
    replaces: int


@dataclass(frozen=True, eq=False)
class Flow(TransferTable):
    """All transfers of a schedule with the versions of the chunks; each column of shape (num_transfers,).

    reads: the row that wrote what is sent; NO_ROW if `src` has held it from the start.
    replaces: the row that wrote what `dst` held of the chunk until then; NO_ROW if it has held that from the start.
    """

    reads: Rows
    replaces: Rows

    @cached_property
    def is_read(self) -> Bools:
        """Whether a later transfer sends what this one has written."""
        return self._named_in(self.reads)

    @cached_property
    def is_replaced(self) -> Bools:
        """Whether a later transfer writes to the chunk that this one has written."""
        return self._named_in(self.replaces)

    def listed(self) -> "list[FlowRow]":
        """Return the rows one by one."""
        columns = (getattr(self, name).tolist() for name in FlowRow._fields)
        return list(map(FlowRow._make, zip(*columns, strict=True)))

    def _named_in(self, rows: Rows) -> Bools:
        named = np.zeros(len(self) + 1, dtype=np.bool_)
        named[rows] = True  # the last element stands for NO_ROW
        return named[:-1]


def flow(schedule: Schedule) -> Flow:
    """Return the data flow of `schedule`. Raises ValueError if there is no memory for it."""
    num_transfers = schedule.num_transfers
    require_memory(f"{schedule}: the data flow of its {num_transfers:,} transfers", num_transfers * BYTES_MADE)
    return _flow(schedule, schedule.steps.table)


def flow_of_rank(schedule: Schedule, rank: int) -> Flow:
    """Return the data flow of all that `rank` sends and receives, without listing what others do.

    `reads` is known of what it sends, `replaces` of what it receives; of the other ends they stay NO_ROW or name the
    last row that is there.
    """
    return _flow(schedule, schedule.steps.table_of(rank))


def _flow(schedule: Schedule, rows: TransferTable) -> Flow:
    sent, written = (pair(rank, rows.chunk, schedule.num_ranks, schedule.num_chunks) for rank in (rows.src, rows.dst))
    writes = Occurrences(written, rows.step)
    reads = writes.last_until(sent, rows.step - 1)  # what is sent in a step was there before it
    columns = {field.name: getattr(rows, field.name) for field in fields(TransferTable)}
    return Flow(**columns, reads=reads, replaces=writes.previous())


class Occurrences:
    """Find the rows with some key, in step order.

    key: (num_rows,), from 0. step: (num_rows,), of each row, never falling.
    """

    def __init__(self, key: AnyInts, step: Rows) -> None:
        self._key, self._step = key, step
        self._order = stable_order(key)  # within a key the rows stay in step order

    def previous(self) -> Rows:
        """Return for each row the one before it with the same key, or NO_ROW."""
        key, order = self._key, self._order
        same = key[order[1:]] == key[order[:-1]]
        previous = np.full(len(key), NO_ROW, dtype=np.int32)
        previous[order[1:][same]] = order[:-1][same]
        return previous

    def last_until(self, key: AnyInts, step: AnyInts) -> Rows:
        """Return for each pair of a key and a step the last row with that key in a step up to that, or NO_ROW.

        A step below 0 is before all rows.
        """
        rows = np.full(len(key), NO_ROW, dtype=np.int32)
        wanted = np.flatnonzero(step >= 0)
        if not len(wanted):
            return rows
        num_steps = int(self._step[-1]) + 1
        place = self._key[self._order].astype(np.int64) * num_steps + self._step[self._order]
        place_wanted = key[wanted].astype(np.int64) * num_steps + step[wanted]
        # If there is none before it, this gives the last row of another key.
        last = self._order[np.searchsorted(place, place_wanted, side="right") - 1]
        rows[wanted] = np.where(self._key[last] == key[wanted], last, NO_ROW)
        return rows


def pair(first: AnyInts, second: AnyInts, num_first: int, num_second: int) -> AnyInts:
    """Return one number for each pair of numbers, which no other pair has; of 32 bits if that is enough."""
    if num_first * num_second <= np.iinfo(np.int32).max:
        return first.astype(np.int32) * np.int32(num_second) + second.astype(np.int32)
    return first.astype(np.int64) * num_second + second.astype(np.int64)
