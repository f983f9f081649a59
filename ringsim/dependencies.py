"""`Dependencies`: the rule of execution as arrows between the transfers of a schedule.

Nothing else is left of the steps: whatever knows these arrows, the costs and the network knows every time.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringsim.schedule import Schedule

Rows = npt.NDArray[np.int32]
NONE = -1  # in place of a row: it waits for nothing


@dataclass(frozen=True, slots=True, eq=False)
class Dependencies:
    """What each transfer waits for, as the number of another one's row; each of shape (num_transfers,).

    The rows are the transfers in step order, as in a `Timeline`. A transfer starts when `ready` has been applied (rule
    1) and `before_on_link` has left (rule 2); it is applied when it has arrived, `before_at_dst` has been
    applied (rule 3), and `free` and all that the rank sent before `free` have left (rule 4). NONE: no need to wait.
    """

    step: Rows
    src: Rows
    dst: Rows
    chunk: Rows
    reduce: npt.NDArray[np.bool_]
    ready: Rows
    before_on_link: Rows
    before_at_dst: Rows
    before_at_src: Rows
    free: Rows

    def __len__(self) -> int:
        return len(self.src)


BYTES_PER_TRANSFER = 37  # of the columns above


def dependencies(schedule: Schedule) -> Dependencies:
    """All transfers of `schedule`, with what each waits for."""
    steps = list(schedule.steps)
    sizes = [len(step) for step in steps]
    step = np.repeat(np.arange(len(steps), dtype=np.int32), sizes)
    columns = {
        name: np.concatenate([np.empty(0, np.int32), *(getattr(each, name) for each in steps)]).astype(np.int32)
        for name in ("src", "dst", "chunk", "reduce", "ready_after", "free_after")
    }
    src, dst = columns["src"], columns["dst"]
    return Dependencies(
        step=step,
        src=src,
        dst=dst,
        chunk=columns["chunk"],
        reduce=columns["reduce"].astype(np.bool_),
        ready=_last_until(step, dst, src, columns["ready_after"]),
        before_on_link=_previous(src.astype(np.int64) * schedule.num_ranks + dst),
        before_at_dst=_previous(dst),
        before_at_src=_previous(src),
        free=_last_until(step, src, dst, columns["free_after"]),
    )


def _previous(key: npt.NDArray[np.integer]) -> Rows:
    """For each row the one before it with the same key."""
    order = np.argsort(key, kind="stable")
    previous = np.full(len(key), NONE, dtype=np.int32)
    same = key[order[1:]] == key[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _last_until(step: Rows, rank: Rows, wanted_rank: Rows, wanted_step: Rows) -> Rows:
    """For each row the last one whose `rank` is its `wanted_rank`, in a step up to its `wanted_step`."""
    if not len(step):
        return np.empty(0, dtype=np.int32)
    num_steps = int(step[-1]) + 1
    order = np.argsort(rank, kind="stable")  # within a rank the rows stay in step order
    place = rank[order].astype(np.int64) * num_steps + step[order]
    last = np.searchsorted(place, wanted_rank.astype(np.int64) * num_steps + wanted_step, side="right") - 1
    found = (last >= 0) & (wanted_step != NONE) & (rank[order[last]] == wanted_rank)
    return np.where(found, order[last], NONE).astype(np.int32)
