"""Whose shares each rank holds of each chunk, by transfer or after some steps; and the phases of a schedule."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from ringsim.schedule import (
    Bools,
    Counts,
    Ints,
    Schedule,
    Step,
    held_at_start,
    initial_counts,
    required,
)
from ringsim.simulation import Timeline

MAX_STATES = 15  # all of an 8-rank all-reduce; odd, so that the state half-way is always one of them


@dataclass(frozen=True, slots=True, eq=False)
class HeldStep:
    """One step of a schedule, and how many shares the receiver holds of each chunk that it is sent.

    sent, result: how often each rank's share is in what is sent, and in the receiver's chunk then, (num_transfers,
    num_ranks).
    before, after: the number of contributors in the receiver's chunk, (num_transfers,).
    finished: whether the chunk then is what the collective asks for, (num_transfers,).
    """

    index: int
    step: Step
    sent: Counts
    result: Counts
    before: Ints
    after: Ints
    finished: Bools


def walk_holdings(schedule: Schedule, num_steps: int | None = None) -> Iterator[HeldStep]:
    """Yield every step, or the first `num_steps`, carried out one after the other as `replay` does.

    Only the chunks that are sent or received take memory: a number of ranks each.
    """
    holds: dict[tuple[int, int], Counts] = {}
    at_start = held_at_start(schedule.collective, schedule.num_ranks, schedule.num_chunks)

    def held_by(rank: int, chunk: int) -> Counts:
        own = np.zeros(schedule.num_ranks, dtype=np.int32)
        own[rank] = at_start[rank, chunk]
        return holds.get((rank, chunk), own)

    complete = required(schedule.collective, schedule.num_ranks, schedule.num_chunks)[0]
    for index in range(schedule.num_steps if num_steps is None else min(num_steps, schedule.num_steps)):
        step = schedule.steps[index]
        sent, result = np.zeros((2, len(step), schedule.num_ranks), dtype=np.int32)
        before = np.zeros(len(step), dtype=np.int64)
        # Everything is read before anything is written.
        for row, (src, _, chunk, *_) in enumerate(step):
            sent[row] = held_by(src, chunk)
        for row, (_, dst, chunk, reduce, _) in enumerate(step):
            held = held_by(dst, chunk)
            before[row] = held.sum()
            result[row] = held + sent[row] if reduce else sent[row]
            holds[dst, chunk] = result[row]
        finished = (result == complete[step.chunk]).all(axis=1)
        yield HeldStep(index, step, sent, result, before, result.sum(axis=1), finished)


def num_shares(schedule: Schedule) -> int:
    """Return how many ranks' shares a finished chunk holds: all ranks', or one where nothing is summed."""
    return schedule.num_ranks if schedule.collective.reduces else 1


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
        """Return the states of a schedule; with the timeline of a run, only what was applied in it counts.

        Nothing that was applied depends on a transfer that was not.
        """
        num_states = schedule.num_steps + 1
        states = np.unique(np.linspace(0, schedule.num_steps, min(num_states, MAX_STATES)).round().astype(np.int64))
        is_applied = np.ones(schedule.num_transfers, np.bool_) if timeline is None else np.isfinite(timeline.applied_s)
        counts = initial_counts(schedule.collective, schedule.num_ranks, schedule.num_chunks)
        kept, first = [counts.copy()], 0
        for held in walk_holdings(schedule):
            applied = is_applied[first : (first := first + len(held.step))]
            counts[held.step.dst[applied], held.step.chunk[applied]] = held.result[applied]
            if held.index + 1 in states:
                kept.append(counts.copy())
        holdings = np.stack(kept)
        due, _ = required(schedule.collective, schedule.num_ranks, schedule.num_chunks)
        finished = (holdings == due).all(axis=-1)
        return cls(schedule.num_ranks, schedule.num_chunks, states, holdings, finished)


class SchedulePhase(NamedTuple):
    """The steps `first` to `last`, which have one name."""

    name: str
    first: int
    last: int


def find_phases(
    schedule: Schedule, steps: Sequence[HeldStep], host_of_rank: Ints | None = None
) -> tuple[SchedulePhase, ...]:
    """Return the phases in their order: steps that add, that copy, or do both, side by side.

    steps: those of `walk_holdings`. host_of_rank: where ranks share hosts, the host of each, (num_ranks,): then steps
    that stay within hosts are their own phase.
    """
    phases: list[SchedulePhase] = []
    adding, copying = _names(schedule, steps)
    for held in steps:
        reduce = held.step.reduce
        kinds = ([adding] if reduce.any() else []) + ([copying] if not reduce.all() else [])
        name = " and ".join(kinds) + _where(held.step, host_of_rank)
        if phases and phases[-1].name == name:
            phases[-1] = phases[-1]._replace(last=held.index)
        else:
            phases.append(SchedulePhase(name, held.index, held.index))
    return tuple(phases)


def _names(schedule: Schedule, steps: Sequence[HeldStep]) -> tuple[str, str]:
    """Return the names of what adds and of what copies, by where the sum of each chunk first appears."""
    if not schedule.collective.reduces:
        return "reduce", schedule.collective.value.replace("_", "-")
    summed = _first_summed(schedule, steps)
    if summed.sum(axis=0).max(initial=0) > 1:
        return "all-reduce", "broadcast"
    if (summed == summed[:, :1]).all():
        return "reduce", "broadcast"
    return "reduce-scatter", "all-gather"


def _first_summed(schedule: Schedule, steps: Sequence[HeldStep]) -> Bools:
    """Which ranks have finished which chunk by adding, (num_ranks, num_chunks)."""
    summed = np.zeros((schedule.num_ranks, schedule.num_chunks), dtype=np.bool_)
    for held in steps:
        rows = held.finished & held.step.reduce
        summed[held.step.dst[rows], held.step.chunk[rows]] = True
    return summed


def _where(step: Step, host_of_rank: Ints | None) -> str:
    if host_of_rank is None or not len(step):
        return ""
    within = host_of_rank[step.src] == host_of_rank[step.dst]
    if within.all():
        return " within hosts"
    return "" if within.any() else " across hosts"
