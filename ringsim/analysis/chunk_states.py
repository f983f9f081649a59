"""`ChunkStates`: what every rank holds of every chunk, after some of the steps."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from ringsim.schedule import Bools, Counts, Ints, Schedule, initial_counts, replay_steps, required
from ringsim.simulation import Timeline

MAX_STATES = 15  # all of an 8-rank all-reduce; odd, so that the state half-way is always one of them


@dataclass(frozen=True, slots=True, eq=False)
class ChunkStates:
    """The contributions that each rank holds of each chunk, state after state.

    states: how many steps have been run in each state that is kept, shape (num_states,): all of them if there
    are at most MAX_STATES, else evenly chosen, the first and the last included.
    holdings: the counts in those states, shape (num_states, rank, chunk, contributor).
    finished: where a rank holds all that the collective asks of a chunk, shape (num_states, rank, chunk).
    """

    num_ranks: int
    num_chunks: int
    states: Ints
    holdings: Counts
    finished: Bools

    @classmethod
    def of(cls, schedule: Schedule, timeline: Timeline | None = None) -> Self:
        """Return the states of a schedule; with the timeline of a run, only what was applied in it counts."""
        num_states = schedule.num_steps + 1
        states = np.unique(np.linspace(0, schedule.num_steps, min(num_states, MAX_STATES)).round().astype(np.int64))
        counts = initial_counts(schedule.collective, schedule.num_ranks, schedule.num_chunks)
        wanted = set(states.tolist())
        kept = [counts.copy()]
        # One row of counts is one element of the buffer: what moves data also moves the counts of it.
        for index in replay_steps(_applied(schedule, timeline) if timeline else schedule, list(counts)):
            if index + 1 in wanted:
                kept.append(counts.copy())
        holdings = np.stack(kept)
        due, _ = required(schedule.collective, schedule.num_ranks, schedule.num_chunks)
        finished = (holdings == due).all(axis=-1)
        return cls(schedule.num_ranks, schedule.num_chunks, states, holdings, finished)


def _applied(schedule: Schedule, timeline: Timeline) -> Schedule:
    """Return the schedule without the transfers that were never applied.

    Nothing that was applied depends on one of them.
    """
    applied = np.isfinite(timeline.applied_s)
    if applied.all():
        return schedule
    columns = []
    for number in range(schedule.num_steps):
        rows = applied & (timeline.step == number)
        columns.append((timeline.src[rows], timeline.dst[rows], timeline.chunk[rows], timeline.reduce[rows]))
    return Schedule.from_columns(
        schedule.collective, schedule.algorithm, schedule.num_ranks, schedule.num_chunks, columns
    )
