"""`Dependencies`: the rule of execution as arrows between the transfers of a schedule, and between what ranks do.

Nothing else is left of the steps: whatever knows these arrows, the costs and the network knows every time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from ringsim.schedule.flow import NO_ROW, Occurrences, flow, pair
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.table import Bools, Ints, Rows, TransferTable, stable_order


@dataclass(frozen=True, eq=False)
class Dependencies(TransferTable):
    """The transfers that each transfer waits for, as numbers of rows; each column of shape (num_transfers,).

    The rows are the transfers in step order, as in a `Flow` and in a `Timeline`. A transfer starts when
    `data_dependency` has been applied (rule 1) and `before_on_channel` has left (rule 2). It is applied when it has
    arrived, `before_on_connection` and `before_in_chunk` have been applied (rule 3), and `buffer_dependency` and all
    that its rank sent of the chunk before, which `sent_before` leads to, have left (rule 4). NO_ROW: it need not wait.
    """

    data_dependency: Rows
    before_on_channel: Rows
    before_on_connection: Rows
    before_in_chunk: Rows
    sent_before: Rows
    buffer_dependency: Rows


BYTES_PER_TRANSFER = 45  # of the columns above


def dependencies(schedule: Schedule, *, in_order: bool = False) -> Dependencies:
    """Return all transfers of `schedule`, with what each waits for.

    in_order: as a rank waits that can wait for one thing at a time, which is how `collectives` executes schedules. It
    applies all that it receives in step order, and before it sends to another peer than before on a channel it has
    applied everything that it receives in earlier steps.

    Raises ValueError if there is no memory for them.
    """
    rows = flow(schedule)
    step, src, dst, before_in_chunk = rows.step, rows.src, rows.dst, rows.replaces
    # In a relay all that a rank has sent of a chunk has arrived before the chunk comes back, so nothing waits for it.
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
        **{field.name: getattr(rows, field.name) for field in fields(TransferTable)},
        data_dependency=data_dependency,
        before_on_channel=before_on_channel,
        before_on_connection=before_on_connection,
        before_in_chunk=before_in_chunk,
        sent_before=sent_before,
        buffer_dependency=buffer_dependency,
    )


def _received_before(step: Rows, src: Rows, dst: Rows, before_on_channel: Rows) -> Rows:
    """Return, for what goes to another peer than the one before on its channel, the last that its sender received."""
    changes_peer = (before_on_channel != NO_ROW) & (dst[before_on_channel] != dst)
    return Occurrences(dst, step).last_until(src, np.where(changes_peer, step - 1, -1))


class RankOperation(NamedTuple):
    """The part of one rank in a transfer, by its row: it sends it, or it receives and applies it."""

    is_send: bool
    row: int


def operations_of_ranks(
    waits: Dependencies, num_ranks: int
) -> Iterator[list[tuple[RankOperation, list[RankOperation]]]]:
    """Yield the operations of each rank in step order, in a step the sends first, for which writes may wait.

    With each are those of the rank that it waits for, but for those of its channel or connection.
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
