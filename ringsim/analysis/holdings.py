"""`walk_holdings`: whose shares each rank holds of each chunk, transfer by transfer."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ringsim.schedule import Bools, Collective, Ints, Schedule, Step, owners, required


@dataclass(frozen=True, slots=True, eq=False)
class HeldStep:
    """One step of a schedule, and how many shares the receiver holds of each chunk that it is sent.

    sent, result: whose shares are in what is sent, and in the receiver's chunk then, (num_transfers, num_ranks).
    before, after: the number of contributors in the receiver's chunk, (num_transfers,).
    finished: whether the chunk then is what the collective asks for, (num_transfers,).
    """

    index: int
    step: Step
    sent: Bools
    result: Bools
    before: Ints
    after: Ints
    finished: Bools


def walk_holdings(schedule: Schedule, num_steps: int | None = None) -> Iterator[HeldStep]:
    """Yield every step, or the first `num_steps`, carried out one after the other as `replay` does.

    Only the chunks that are sent or received take memory: a number of ranks each.
    """
    holds: dict[tuple[int, int], Bools] = {}
    initial = _Initial(schedule)
    complete = required(schedule.collective, schedule.num_ranks, schedule.num_chunks)[0] > 0
    for index in range(schedule.num_steps if num_steps is None else min(num_steps, schedule.num_steps)):
        step = schedule.steps[index]
        sent, result = np.zeros((2, len(step), schedule.num_ranks), dtype=np.bool_)
        before = np.zeros(len(step), dtype=np.int64)
        # Everything is read before anything is written.
        for row, (src, _, chunk, *_) in enumerate(step):
            sent[row] = holds[src, chunk] if (src, chunk) in holds else initial.shares(src, chunk)
        for row, (_, dst, chunk, reduce, _) in enumerate(step):
            held = holds[dst, chunk] if (dst, chunk) in holds else initial.shares(dst, chunk)
            before[row] = held.sum()
            result[row] = (held | sent[row]) if reduce else sent[row]
            holds[dst, chunk] = result[row]
        finished = (result == complete[step.chunk]).all(axis=1)
        yield HeldStep(index, step, sent, result, before, result.sum(axis=1), finished)


class _Initial:
    """What ranks hold before the first step, one chunk at a time."""

    def __init__(self, schedule: Schedule) -> None:
        self._num_ranks, self._collective = schedule.num_ranks, schedule.collective
        self._owners = owners(schedule.num_ranks, schedule.num_chunks)

    def shares(self, rank: int, chunk: int) -> Bools:
        """Whose shares they are: the rank's own, or nobody's."""
        held = np.zeros(self._num_ranks, dtype=np.bool_)
        root = int(self._owners[chunk]) if self._collective is Collective.ALL_GATHER else 0
        held[rank] = self._collective.reduces or rank == root
        return held


def num_shares(schedule: Schedule) -> int:
    """How many ranks' shares a finished chunk holds: all ranks', or one where nothing is summed."""
    return schedule.num_ranks if schedule.collective.reduces else 1
