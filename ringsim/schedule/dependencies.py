"""`Dependencies`: the rule of execution as arrows between the transfers of a schedule.

Nothing else is left of the steps: whatever knows these arrows, the costs and the network knows every time.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringsim.schedule.memory import require_memory
from ringsim.schedule.schedule import Schedule

Rows = npt.NDArray[np.int32]
NO_ROW = -1  # in place of a row: it waits for nothing


@dataclass(frozen=True, slots=True, eq=False)
class Dependencies:
    """What each transfer waits for, as the number of another one's row; each of shape (num_transfers,).

    The rows are the transfers in step order, as in a `Timeline`. A transfer starts when `data_dependency` has been
    applied (rule 1) and `before_on_channel` has left (rule 2); it is applied when it has arrived, `before_at_dst` has
    been applied (rule 3), and `buffer_dependency` and all that the rank sent before it have left (rule 4). NO_ROW: it
    need not wait.
    """

    step: Rows
    src: Rows
    dst: Rows
    chunk: Rows
    reduce: npt.NDArray[np.bool_]
    channel: Rows
    data_dependency: Rows
    before_on_channel: Rows
    before_at_dst: Rows
    before_at_src: Rows
    buffer_dependency: Rows

    def __len__(self) -> int:
        return len(self.src)


BYTES_PER_TRANSFER = 41  # of the columns above
BYTES_MADE = 100  # while they are made, at most


def dependencies(schedule: Schedule) -> Dependencies:
    """All transfers of `schedule`, with what each waits for."""
    num_transfers = schedule.num_transfers
    require_memory(f"{schedule}: what its {num_transfers:,} transfers wait for", num_transfers * BYTES_MADE)
    columns = _columns(schedule)
    step, src, dst = columns["step"], columns["src"], columns["dst"]
    sender = columns["channel"].astype(np.int64) * schedule.num_ranks + src
    return Dependencies(
        step=step,
        src=src,
        dst=dst,
        chunk=columns["chunk"],
        reduce=columns["reduce"].astype(np.bool_),
        channel=columns["channel"],
        data_dependency=_last_until(step, dst, src, columns.pop("data_dependency")),
        before_on_channel=_previous(sender),
        before_at_dst=_previous(dst),
        before_at_src=_previous(src),
        buffer_dependency=_last_until(step, src, dst, columns["buffer_dependency"]),
    )


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


def _last_until(step: Rows, rank: Rows, wanted_rank: Rows, wanted_step: Rows) -> Rows:
    """For each row the last one whose `rank` is its `wanted_rank`, in a step up to its `wanted_step`."""
    rows = np.full(len(step), NO_ROW, dtype=np.int32)
    waits = np.flatnonzero(wanted_step != NO_ROW)
    if not len(waits):
        return rows
    num_steps = int(step[-1]) + 1
    order = stable_order(rank)  # within a rank the rows stay in step order
    place = rank[order].astype(np.int64) * num_steps + step[order]
    wanted = wanted_rank[waits].astype(np.int64) * num_steps + wanted_step[waits]
    last = order[np.searchsorted(place, wanted, side="right") - 1]  # if none is before: the last of all, another rank's
    rows[waits] = np.where(rank[last] == wanted_rank[waits], last, NO_ROW)
    return rows
