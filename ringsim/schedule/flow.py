"""`Flow`: the data flow of a schedule: the version of a chunk that each transfer reads, and the one that it replaces.

A transfer that writes a chunk makes a new version of it. `Dependencies`, `MemoryPasses` and `RankProgram` follow from
these two columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ringsim.limits import require_memory
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.steps import AnyInts, Bools, Ints, Rows, TransferTable, stable_order

NO_ROW = -1  # in place of a row: the version that the rank has held from the start, or nothing to wait for
BYTES_PER_ROW = 100  # of memory for each transfer, while it or the arrows between its rows are made, at most


class FlowRow(NamedTuple):
    """One row of a `Flow`."""

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

    reads: the row that wrote the version that is sent; NO_ROW if `src` holds it from the start.
    replaces: likewise, of the version that `dst` held.
    """

    reads: Rows
    replaces: Rows

    @cached_property
    def is_read(self) -> Bools:
        return self._named_in(self.reads)

    @cached_property
    def is_replaced(self) -> Bools:
        return self._named_in(self.replaces)

    def listed(self) -> "list[FlowRow]":
        columns = (getattr(self, name).tolist() for name in FlowRow._fields)
        return list(map(FlowRow._make, zip(*columns, strict=True)))

    def _named_in(self, rows: Rows) -> Bools:
        named = np.zeros(len(self) + 1, dtype=np.bool_)
        named[rows] = True  # the last element stands for NO_ROW
        return named[:-1]


def flow(schedule: Schedule) -> Flow:
    """Return the data flow. Raises ValueError if there is no memory for it."""
    num_transfers = schedule.num_transfers
    require_memory(f"{schedule}: the data flow of its {num_transfers:,} transfers", num_transfers * BYTES_PER_ROW)
    return _flow(schedule, schedule.steps.table)


def flow_of_rank(schedule: Schedule, rank: int) -> Flow:
    """Return the data flow of the transfers of `rank`, without listing the others.

    `reads` is valid for its sends, and `replaces` for its receives.
    """
    return _flow(schedule, schedule.steps.table_of(rank))


def _flow(schedule: Schedule, rows: TransferTable) -> Flow:
    sent, written = (pair(rank, rows.chunk, schedule.num_ranks, schedule.num_chunks) for rank in (rows.src, rows.dst))
    writes = Occurrences(written, rows.step)
    reads = writes.last_until(sent, rows.step - 1)  # a step sends the versions from before the step
    return Flow(**rows.columns(), reads=reads, replaces=writes.previous())


class Occurrences:
    """The rows with a given key, in step order.

    key: (num_rows,), from 0. step: (num_rows,), never falling.
    """

    def __init__(self, key: AnyInts, step: Rows) -> None:
        self._key, self._step = key, step
        self._order = stable_order(key)  # within a key the rows stay in step order

    def previous(self) -> Rows:
        key, order = self._key, self._order
        same = key[order[1:]] == key[order[:-1]]
        previous = np.full(len(key), NO_ROW, dtype=np.int32)
        previous[order[1:][same]] = order[:-1][same]
        return previous

    def last_until(self, key: AnyInts, step: AnyInts) -> Rows:
        """Return the last row with each key up to each step, or NO_ROW; a step below 0 is before all rows."""
        rows = np.full(len(key), NO_ROW, dtype=np.int32)
        wanted = np.flatnonzero(step >= 0)
        if not len(wanted):
            return rows
        num_steps = int(self._step[-1]) + 1
        place = self._key[self._order].astype(np.int64) * num_steps + self._step[self._order]
        place_wanted = key[wanted].astype(np.int64) * num_steps + step[wanted]
        # If no row qualifies, this is the last row of another key.
        last = self._order[np.searchsorted(place, place_wanted, side="right") - 1]
        rows[wanted] = np.where(self._key[last] == key[wanted], last, NO_ROW)
        return rows


def pair(first: AnyInts, second: AnyInts, num_first: int, num_second: int) -> AnyInts:
    """Encode two numbers as one, in 32 bits if they suffice."""
    if num_first * num_second <= np.iinfo(np.int32).max:
        return first.astype(np.int32) * np.int32(num_second) + second.astype(np.int32)
    return first.astype(np.int64) * num_second + second.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Dependencies(TransferTable):
    """The rows for which each transfer waits; NO_ROW: none. Rows are in step order, columns (num_transfers,).

    A transfer starts when `data_dependency` has been applied (rule 1) and `before_on_channel` has left (rule 2). It is
    applied when it has arrived, when `before_on_connection` and `before_in_chunk` have been applied (rule 3), and when
    `buffer_dependency` and the rank's earlier sends of the chunk, linked by `sent_before`, have left (rule 4).
    """

    data_dependency: Rows
    before_on_channel: Rows
    before_on_connection: Rows
    before_in_chunk: Rows
    sent_before: Rows
    buffer_dependency: Rows


BYTES_PER_TRANSFER = 45  # of the columns above


def dependencies(schedule: Schedule, *, in_order: bool = False) -> Dependencies:
    """Return all transfers of `schedule` with their waits. Raises ValueError if there is no memory for them.

    in_order: wait like a rank of `collectives` on Gloo, which applies all that it receives in step order, and before it
    changes the peer of a channel has applied everything that it receives in earlier steps.
    """
    rows = flow(schedule)
    step, src, dst, before_in_chunk = rows.step, rows.src, rows.dst, rows.replaces
    # In a relay a rank's sends of a chunk have arrived before the chunk returns; therefore no write waits for them.
    waited_until = step if schedule.steps.relay is None else np.full_like(step, -1)
    sends = Occurrences(pair(src, rows.chunk, schedule.num_ranks, schedule.num_chunks), step)
    written = pair(dst, rows.chunk, schedule.num_ranks, schedule.num_chunks)
    buffer_dependency = sends.last_until(written, waited_until)
    sent_before = sends.previous()
    del sends, written  # these, too, take room
    num_channels = int(rows.channel.max(initial=0)) + 1
    sender = pair(rows.channel, src, num_channels, schedule.num_ranks)
    before_on_channel = Occurrences(sender, step).previous()
    data_dependency = rows.reads
    if in_order:
        data_dependency = np.maximum(data_dependency, _received_before(step, src, dst, before_on_channel))
        before_on_connection = Occurrences(dst, step).previous()
        before_in_chunk[:] = NO_ROW
    else:
        connection = pair(sender, dst, num_channels * schedule.num_ranks, schedule.num_ranks)
        before_on_connection = Occurrences(connection, step).previous()
        before_in_chunk[connection[before_in_chunk] == connection] = NO_ROW  # it waits for that one as it is
    return Dependencies(
        **rows.columns(),
        data_dependency=data_dependency,
        before_on_channel=before_on_channel,
        before_on_connection=before_on_connection,
        before_in_chunk=before_in_chunk,
        sent_before=sent_before,
        buffer_dependency=buffer_dependency,
    )


def _received_before(step: Rows, src: Rows, dst: Rows, before_on_channel: Rows) -> Rows:
    changes_peer = (before_on_channel != NO_ROW) & (dst[before_on_channel] != dst)
    return Occurrences(dst, step).last_until(src, np.where(changes_peer, step - 1, -1))


class RankOperation(NamedTuple):
    """One rank's part in the transfer `row`: the send, or the receive and its application."""

    is_send: bool
    row: int


def operations_of_ranks(
    waits: Dependencies, num_ranks: int
) -> Iterator[list[tuple[RankOperation, list[RankOperation]]]]:
    """Yield each rank's operations in step order, within a step the sends first, for which writes may wait.

    Each comes with those of the rank for which it waits, except on its own channel or connection.
    """
    rank, num_rows = np.concatenate([waits.src, waits.dst]), max(len(waits), 1)
    order = stable_order(rank)
    for numbers in np.split(order, np.searchsorted(rank[order], np.arange(1, num_ranks))):
        row, is_send = numbers % num_rows, numbers < num_rows
        in_steps = np.lexsort((row, ~is_send, waits.step[row]))
        yield list(_operations(waits, row[in_steps], is_send[in_steps]))


def _operations(waits: Dependencies, rows: Ints, is_send: Bools) -> Iterator[tuple[RankOperation, list[RankOperation]]]:
    before = np.where(is_send, waits.data_dependency[rows], waits.before_in_chunk[rows])
    columns = (rows, is_send, before, waits.chunk[rows], waits.buffer_dependency[rows])
    waited: dict[int, int] = {}  # of a chunk, the last of its sends that a write has waited for
    for row, sends, applied, chunk, last_send in zip(*(column.tolist() for column in columns), strict=True):
        required = [RankOperation(False, applied)] if applied != NO_ROW else []
        if not sends:
            sent, first = last_send, waited.get(chunk, NO_ROW)
            while sent > first:
                required.append(RankOperation(True, sent))
                sent = int(waits.sent_before[sent])
            waited[chunk] = max(first, last_send)  # a later write, applied after this one, need not name them again
        yield RankOperation(sends, row), sorted(required)
