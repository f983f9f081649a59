"""`walk_holdings`: whose shares each rank holds of each chunk, transfer by transfer."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ringsim.schedule import Bools, Ints, Schedule, Step, initial_counts, required


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


def walk_holdings(schedule: Schedule) -> Iterator[HeldStep]:
    """Yields every step, carried out one after the other as `replay` does."""
    holds = initial_counts(schedule.collective, schedule.num_ranks, schedule.num_chunks) > 0
    complete = required(schedule.collective, schedule.num_ranks, schedule.num_chunks)[0] > 0
    for index, step in enumerate(schedule.steps):
        sent = holds[step.src, step.chunk]  # a copy: what is sent is what was held before the step
        result = np.empty_like(sent)
        before = np.zeros(len(step), dtype=np.int64)
        for row, (_, dst, chunk, reduce) in enumerate(step):
            before[row] = holds[dst, chunk].sum()
            holds[dst, chunk] = (holds[dst, chunk] | sent[row]) if reduce else sent[row]
            result[row] = holds[dst, chunk]
        finished = (result == complete[step.chunk]).all(axis=1)
        yield HeldStep(index, step, sent, result, before, result.sum(axis=1), finished)


def num_shares(schedule: Schedule) -> int:
    """How many ranks' shares a finished chunk holds: all ranks', or one where nothing is summed."""
    return schedule.num_ranks if schedule.collective.reduces else 1
