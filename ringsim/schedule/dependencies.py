"""`Dependencies`: the rule of execution as arrows between the transfers of a schedule.

Nothing else is left of the steps: whatever knows these arrows, the costs and the network knows every time.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringsim.schedule.memory import require_memory
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import NEVER

Rows = npt.NDArray[np.int32]
Ints = npt.NDArray[np.signedinteger]
NO_ROW = -1  # in place of a row: it waits for nothing


@dataclass(frozen=True, slots=True, eq=False)
class Dependencies:
    """What each transfer waits for, as the number of another one's row; each of shape (num_transfers,).

    The rows are the transfers in step order, as in a `Timeline`. A transfer starts when `data_dependency` has been
    applied (rule 1) and `before_on_channel` has left (rule 2). It is applied when it has arrived,
    `before_on_connection` and `before_in_chunk` have been applied (rule 3), and `buffer_dependency` and all that its
    rank sent of the chunk before, which `sent_before` leads to, have left (rule 4). NO_ROW: it need not wait.
    """

    step: Rows
    src: Rows
    dst: Rows
    chunk: Rows
    reduce: npt.NDArray[np.bool_]
    channel: Rows
    data_dependency: Rows
    before_on_channel: Rows
    before_on_connection: Rows
    before_in_chunk: Rows
    sent_before: Rows
    buffer_dependency: Rows

    def __len__(self) -> int:
        return len(self.src)


BYTES_PER_TRANSFER = 45  # of the columns above
BYTES_MADE = 100  # while they are made, at most


def dependencies(schedule: Schedule, *, in_order: bool = False) -> Dependencies:
    """All transfers of `schedule`, with what each waits for.

    in_order: as a rank waits that can wait for one thing at a time, which is how `collectives` executes schedules. It
    applies all that it receives in step order, and before it sends to another peer than before on a channel it has
    applied everything that it receives in earlier steps.
    """
    num_transfers = schedule.num_transfers
    require_memory(f"{schedule}: what its {num_transfers:,} transfers wait for", num_transfers * BYTES_MADE)
    columns = _columns(schedule)
    step, src, dst, chunk = (columns[name] for name in ("step", "src", "dst", "chunk"))
    reduce = columns.pop("reduce").astype(np.bool_)
    sent, written = (_pair(rank, chunk, schedule.num_ranks, schedule.num_chunks) for rank in (src, dst))
    data_dependency = _last_until(step, written, sent, columns.pop("data_dependency"))
    buffer_dependency = _last_until(step, sent, written, columns.pop("buffer_dependency"))
    sent_before, before_in_chunk = _previous(sent), _previous(written)
    del sent, written  # these, too, take room
    num_channels = schedule.steps.num_channels
    sender = _pair(columns["channel"], src, num_channels, schedule.num_ranks)
    before_on_channel = _previous(sender)
    if in_order:
        data_dependency = np.maximum(data_dependency, _received_before(step, src, dst, before_on_channel))
        before_on_connection = _previous(dst)
        before_in_chunk[:] = NO_ROW
    else:
        connection = _pair(sender, dst, num_channels * schedule.num_ranks, schedule.num_ranks)
        before_on_connection = _previous(connection)
        before_in_chunk[connection[before_in_chunk] == connection] = NO_ROW  # it waits for that one as it is
    return Dependencies(
        step=step,
        src=src,
        dst=dst,
        chunk=chunk,
        reduce=reduce,
        channel=columns["channel"],
        data_dependency=data_dependency,
        before_on_channel=before_on_channel,
        before_on_connection=before_on_connection,
        before_in_chunk=before_in_chunk,
        sent_before=sent_before,
        buffer_dependency=buffer_dependency,
    )


def _received_before(step: Rows, src: Rows, dst: Rows, before_on_channel: Rows) -> Rows:
    """For what goes to another peer than the one before on its channel: the last that its sender receives before."""
    changes_peer = (before_on_channel != NO_ROW) & (dst[before_on_channel] != dst)
    return _last_until(step, dst, src, np.where(changes_peer, step - 1, NEVER).astype(np.int32))


def _columns(schedule: Schedule) -> dict[str, Rows]:
    """Those of all steps, one after the other, and the number of the step."""
    names = ("src", "dst", "chunk", "reduce", "channel", "data_dependency", "buffer_dependency")
    columns = {name: np.empty(schedule.num_transfers, dtype=np.int32) for name in ("step", *names)}
    first = 0
    for index, step in enumerate(schedule.steps):
        rows = slice(first, first := first + len(step))
        columns["step"][rows] = index
        for name in names:
            columns[name][rows] = getattr(step, name)
    return columns


def _pair(first: Ints, second: Ints, num_first: int, num_second: int) -> Ints:
    """For each row a number that tells its two from all other twos; 32 bits if that is enough."""
    if num_first * num_second <= np.iinfo(np.int32).max:
        return first.astype(np.int32) * np.int32(num_second) + second.astype(np.int32)
    return first.astype(np.int64) * num_second + second.astype(np.int64)


def stable_order(key: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """What `np.argsort(key, kind="stable")` gives for keys from 0, several times as fast.

    NumPy sorts 16-bit numbers by their digits; so the lower half of a key is sorted first, then the upper.
    """
    order = np.argsort((key & 0xFFFF).astype(np.uint16), kind="stable")
    while key.max(initial=0) > 0xFFFF:
        key = key >> 16
        order = order[np.argsort((key[order] & 0xFFFF).astype(np.uint16), kind="stable")]
    return order


def _previous(key: npt.NDArray[np.integer]) -> Rows:
    """For each row the one before it with the same key."""
    order = stable_order(key)
    same = key[order[1:]] == key[order[:-1]]
    previous = np.full(len(key), NO_ROW, dtype=np.int32)
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _last_until(step: Rows, key: Ints, wanted_key: Ints, wanted_step: Rows) -> Rows:
    """For each row the last one whose `key` is its `wanted_key`, in a step up to its `wanted_step`."""
    rows = np.full(len(step), NO_ROW, dtype=np.int32)
    waits = np.flatnonzero(wanted_step != NEVER)
    if not len(waits):
        return rows
    num_steps = int(step[-1]) + 1
    order = stable_order(key)  # within a key the rows stay in step order
    place = key[order].astype(np.int64) * num_steps + step[order]
    wanted = wanted_key[waits].astype(np.int64) * num_steps + wanted_step[waits]
    last = order[np.searchsorted(place, wanted, side="right") - 1]  # if none is before: the last of all, another key's
    rows[waits] = np.where(key[last] == wanted_key[waits], last, NO_ROW)
    return rows
