"""`Flow`: the data flow of a schedule: which version of a chunk each transfer reads, and which one it replaces.

A rank's chunk has a new version whenever a transfer writes to it, so a version has the number of the transfer that
wrote it. Whatever else is known about who sends what follows from these two columns: what must wait for what
(`Dependencies`), what is copied between ranks that share memory (`MemoryPasses`), what one rank does (`RankProgram`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringsim.schedule.memory import require_memory
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import Bools, Step

Rows = npt.NDArray[np.int32]
Ints = npt.NDArray[np.signedinteger]
NO_ROW = -1  # in place of a row: the version that the rank has held from the start, or nothing to wait for
# The columns that come from the steps, and what these call them.
_COLUMNS = {name: name for name in ("src", "dst", "chunk", "channel")} | {"free_after": "buffer_dependency"}
BYTES_MADE = 100  # of memory for each transfer, while it or the arrows between its rows are made, at most


class FlowRow(NamedTuple):
    """One row of a `Flow`, in Python's numbers."""

    step: int
    src: int
    dst: int
    chunk: int
    channel: int
    reduce: bool
    free_after: int
    reads: int
    replaces: int


@dataclass(frozen=True, eq=False)
class TransferRows:
    """All transfers of a schedule, the rows in step order, each column of shape (num_transfers,)."""

    step: Rows
    src: Rows
    dst: Rows
    chunk: Rows
    reduce: Bools
    channel: Rows

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, eq=False)
class Flow(TransferRows):
    """All transfers of a schedule with the versions of the chunks; each column of shape (num_transfers,).

    reads: the row that wrote what is sent; NO_ROW if `src` has held it from the start.
    replaces: the row that wrote what `dst` held of the chunk until then; NO_ROW if it has held that from the start.
    free_after: the step until which the sends of the chunk by `dst` must have left before the write (rule 4); NEVER if
    there is none, or they must have arrived anyway.
    """

    free_after: Rows
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
    return _flow(schedule, schedule.steps, num_transfers)


def flow_of_rank(schedule: Schedule, rank: int) -> Flow:
    """Return the data flow of all that `rank` sends and receives, without listing what others do.

    `reads` is known of what it sends, `replaces` of what it receives; of the other ends they stay NO_ROW or name the
    last row that is there.
    """
    own = [step.rows(np.flatnonzero((step.src == rank) | (step.dst == rank))) for step in schedule.steps]
    return _flow(schedule, own, sum(map(len, own)))


def _flow(schedule: Schedule, steps: Sequence[Step], num_rows: int) -> Flow:
    """Return the data flow of these rows of each step of a schedule, `num_rows` together."""
    columns = {name: np.empty(num_rows, dtype=np.int32) for name in ("step", *_COLUMNS)}
    reduce = np.empty(num_rows, dtype=np.bool_)
    first = 0
    for index, step in enumerate(steps):
        rows = slice(first, first := first + len(step))
        columns["step"][rows], reduce[rows] = index, step.reduce
        for name, field in _COLUMNS.items():
            columns[name][rows] = getattr(step, field)
    chunk, num_chunks = columns["chunk"], schedule.num_chunks
    sent, written = (pair(columns[name], chunk, schedule.num_ranks, num_chunks) for name in ("src", "dst"))
    writes = Occurrences(written, columns["step"])
    reads = writes.last_until(sent, columns["step"] - 1)  # what is sent in a step was there before it
    return Flow(reduce=reduce, reads=reads, replaces=writes.previous(), **columns)


class Occurrences:
    """Find the rows with some key, in step order.

    key: (num_rows,), from 0. step: (num_rows,), of each row, never falling.
    """

    def __init__(self, key: Ints, step: Rows) -> None:
        self._key, self._step = key, step
        self._order = stable_order(key)  # within a key the rows stay in step order

    def previous(self) -> Rows:
        """Return for each row the one before it with the same key, or NO_ROW."""
        key, order = self._key, self._order
        same = key[order[1:]] == key[order[:-1]]
        previous = np.full(len(key), NO_ROW, dtype=np.int32)
        previous[order[1:][same]] = order[:-1][same]
        return previous

    def last_until(self, key: Ints, step: Ints) -> Rows:
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


def pair(first: Ints, second: Ints, num_first: int, num_second: int) -> Ints:
    """Return one number for each pair of numbers, which no other pair has; of 32 bits if that is enough."""
    if num_first * num_second <= np.iinfo(np.int32).max:
        return first.astype(np.int32) * np.int32(num_second) + second.astype(np.int32)
    return first.astype(np.int64) * num_second + second.astype(np.int64)


def stable_order(key: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return `np.argsort(key, kind="stable")` for keys from 0, several times as fast.

    NumPy sorts 16-bit numbers by their digits; so the lower half of a key is sorted first, then the upper.
    """
    order = np.argsort((key & 0xFFFF).astype(np.uint16), kind="stable")
    while key.max(initial=0) > 0xFFFF:
        key = key >> 16
        order = order[np.argsort((key[order] & 0xFFFF).astype(np.uint16), kind="stable")]
    return order
