"""Whose shares each rank holds of each chunk, by transfer or after some steps; and the phases of a schedule."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Self

import numpy as np

from ringsim.network import Network, lay_out
from ringsim.schedule import Bools, Counts, Ints, Schedule, Step, Transfer, initial_counts, required, run
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


def walk_holdings(schedule: Schedule) -> Iterator[HeldStep]:
    """Yield every step, carried out one after the other as `replay` does."""
    complete, _ = required(schedule.collective, schedule.num_ranks, schedule.num_chunks)
    holdings = _Holdings(schedule)
    for index, step in run(schedule, holdings):
        sent, result, before = holdings.take_written()
        finished = (result == complete[step.chunk]).all(axis=1)
        yield HeldStep(index, step, sent, result, before, result.sum(axis=1), finished)


class _Holdings:
    """The state of `run` that counts contributions, and keeps what was written since that was taken last."""

    def __init__(self, schedule: Schedule) -> None:
        self._counts = initial_counts(schedule.collective, schedule.num_ranks, schedule.num_chunks)
        self._sent: list[Counts] = []
        self._result: list[Counts] = []
        self._before: list[int] = []

    def read(self, _: int, transfer: Transfer) -> Counts:
        sent: Counts = self._counts[transfer.src, transfer.chunk].copy()
        return sent

    def write(self, _: int, transfer: Transfer, sent: Counts) -> None:
        held = self._counts[transfer.dst, transfer.chunk]
        self._before.append(int(held.sum()))
        held[:] = held * transfer.reduce + sent
        self._sent.append(sent)
        self._result.append(held.copy())

    def take_written(self) -> tuple[Counts, Counts, Ints]:
        """Return the columns `sent`, `result` and `before` of a `HeldStep`."""
        shape = len(self._before), len(self._counts)
        sent, result = (np.array(column, np.int32).reshape(shape) for column in (self._sent, self._result))
        before = np.array(self._before, np.int64)
        self._sent, self._result, self._before = [], [], []
        return sent, result, before


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
    adding, copying = _names(schedule, steps)
    named = []
    for held in steps:
        reduce = held.step.reduce
        kinds = ([adding] if reduce.any() else []) + ([copying] if not reduce.all() else [])
        named.append((" and ".join(kinds) + _where(held.step, host_of_rank), held.index))
    runs = (tuple(run) for _, run in groupby(named, key=itemgetter(0)))
    return tuple(SchedulePhase(run[0][0], run[0][1], run[-1][1]) for run in runs)


def _names(schedule: Schedule, steps: Sequence[HeldStep]) -> tuple[str, str]:
    """Return the names of what adds and of what copies, by where the sum of each chunk first appears."""
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
    within = host_of_rank[step.src] == host_of_rank[step.dst]
    if within.all():
        return " within hosts"
    return "" if within.any() else " across hosts"


def hosts_of_network(network: Network, num_ranks: int) -> tuple[tuple[str, ...], Ints | None]:
    """Return the names of the hosts and the host of each rank; nothing where there are no hosts that share ranks."""
    layout = lay_out(network.spec, num_ranks)
    grouped = 1 < len(np.unique(layout.host_of_rank)) < num_ranks
    return (layout.names, layout.host_of_rank) if grouped else ((), None)
