"""`operations_of_ranks`: what each rank sends and receives, and what of this must be done before what."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ringsim.schedule import NO_ROW, Bools, Dependencies, Ints, stable_order


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
            waited[chunk] = max(
                first, last_send
            )  # a later write is applied after this one: it need not name them again
        yield RankOperation(sends, row), sorted(required)
