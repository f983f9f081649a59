"""`phases`: the parts of a schedule that have names of their own, such as reduce-scatter and all-gather."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ringsim.analysis.holdings import HeldStep
from ringsim.schedule import Bools, Collective, Ints, Schedule, Step


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
    that stay within hosts are a phase of their own.
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
        return "reduce", "all-gather" if schedule.collective is Collective.ALL_GATHER else "broadcast"
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
