"""The contributions in each rank's chunks, and the phases of a schedule."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Self

import numpy as np

from ringsim.network import Network, lay_out
from ringsim.schedule import Bools, Counts, Ints, Schedule, Step, Transfer, initial_counts, required, run
from ringsim.simulation import Timeline

MAX_STATES = 15  # all of an 8-rank all-reduce; odd, so that the middle state is included


@dataclass(frozen=True, slots=True, eq=False)
class ContributionStep:
    """One step of a schedule, and the contributions in the receivers' chunks.

    result: count of each rank's contribution after the transfer, (num_transfers, num_ranks).
    before, after: number of contributions, (num_transfers,). finished: complete for the collective, (num_transfers,).
    """

    index: int
    step: Step
    result: Counts
    before: Ints
    after: Ints
    finished: Bools


def iterate_contributions(schedule: Schedule) -> Iterator[ContributionStep]:
    """Yield the steps in the order of `replay`."""
    complete, _ = required(schedule.collective, schedule.num_ranks, schedule.num_chunks)
    contributions = _Contributions(initial_counts(schedule.collective, schedule.num_ranks, schedule.num_chunks))
    for index, step in run(schedule, contributions):
        result = np.array([counts for _, counts in contributions.written], np.int32).reshape(-1, schedule.num_ranks)
        before = np.array([number for number, _ in contributions.written], np.int64)
        contributions.written.clear()
        finished = (result == complete[step.chunk]).all(axis=1)
        yield ContributionStep(index, step, result, before, result.sum(axis=1), finished)


class _Contributions:
    """A state for `run`. written: the contributions before each transfer, and their counts after it."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self.written: list[tuple[int, Counts]] = []

    def read(self, _: int, transfer: Transfer) -> Counts:
        sent: Counts = self._counts[transfer.src, transfer.chunk].copy()
        return sent

    def write(self, _: int, transfer: Transfer, sent: Counts) -> None:
        held = self._counts[transfer.dst, transfer.chunk]
        before = int(held.sum())
        held[:] = held * transfer.reduce + sent
        self.written.append((before, held.copy()))


def num_shares(schedule: Schedule) -> int:
    """Return the number of contributions in a finished chunk."""
    return schedule.num_ranks if schedule.collective.reduces else 1


@dataclass(frozen=True, slots=True, eq=False)
class ChunkStates:
    """The contributions that each rank holds of each chunk, after some of the steps.

    states: numbers of executed steps, (num_states,): all, or MAX_STATES evenly spaced including both ends.
    contributions: counts, (num_states, rank, chunk, contributor).
    finished: complete for the collective, (num_states, rank, chunk).
    """

    num_ranks: int
    num_chunks: int
    states: Ints
    contributions: Counts
    finished: Bools

    @classmethod
    def of(cls, schedule: Schedule, timeline: Timeline | None = None) -> Self:
        """Return the states of a schedule; given a run's timeline, of its applied transfers."""
        num_states = schedule.num_steps + 1
        states = np.unique(np.linspace(0, schedule.num_steps, min(num_states, MAX_STATES)).round().astype(np.int64))
        is_applied = np.ones(schedule.num_transfers, np.bool_) if timeline is None else np.isfinite(timeline.applied_s)
        counts = initial_counts(schedule.collective, schedule.num_ranks, schedule.num_chunks)
        kept, first = [counts.copy()], 0
        for held in iterate_contributions(schedule):
            applied = is_applied[first : (first := first + len(held.step))]
            counts[held.step.dst[applied], held.step.chunk[applied]] = held.result[applied]
            if held.index + 1 in states:
                kept.append(counts.copy())
        contributions = np.stack(kept)
        due, _ = required(schedule.collective, schedule.num_ranks, schedule.num_chunks)
        finished = (contributions == due).all(axis=-1)
        return cls(schedule.num_ranks, schedule.num_chunks, states, contributions, finished)


class SchedulePhase(NamedTuple):
    """The steps `first` to `last`."""

    name: str
    first: int
    last: int


def find_phases(
    schedule: Schedule, steps: Sequence[ContributionStep], host_of_rank: Ints | None = None
) -> tuple[SchedulePhase, ...]:
    """Return the phases in order; the steps of a phase add, copy or do both.

    steps: from `iterate_contributions`. host_of_rank: (num_ranks,); steps within hosts form their own phases.
    """
    adding, copying = _names(schedule, steps)
    named = []
    for held in steps:
        reduce = held.step.reduce
        kinds = ([adding] if reduce.any() else []) + ([copying] if not reduce.all() else [])
        named.append((" and ".join(kinds) + _where(held.step, host_of_rank), held.index))
    runs = (tuple(run) for _, run in groupby(named, key=itemgetter(0)))
    return tuple(SchedulePhase(run[0][0], run[0][1], run[-1][1]) for run in runs)


def _names(schedule: Schedule, steps: Sequence[ContributionStep]) -> tuple[str, str]:
    if not schedule.collective.reduces:
        return "reduce", schedule.collective.value.replace("_", "-")
    summed = np.zeros((schedule.num_ranks, schedule.num_chunks), dtype=np.bool_)
    for held in steps:
        rows = held.finished & held.step.reduce
        summed[held.step.dst[rows], held.step.chunk[rows]] = True
    if summed.sum(axis=0).max(initial=0) > 1:
        return "all-reduce", "broadcast"
    if (summed == summed[:, :1]).all():
        return "reduce", "broadcast"
    return "reduce-scatter", "all-gather"


def _where(step: Step, host_of_rank: Ints | None) -> str:
    if host_of_rank is None or not len(step):
        return ""
    is_local = host_of_rank[step.src] == host_of_rank[step.dst]
    if is_local.all():
        return " within hosts"
    return "" if is_local.any() else " across hosts"


def hosts_of_network(network: Network, num_ranks: int) -> tuple[tuple[str, ...], Ints | None]:
    """Return host names and each rank's host; empty and None unless ranks share hosts."""
    layout = lay_out(network.spec, num_ranks)
    grouped = 1 < len(np.unique(layout.host_of_rank)) < num_ranks
    return (layout.names, layout.host_of_rank) if grouped else ((), None)
