"""`CollectivePhase`: the parts of a collective that people have names for, such as reduce-scatter and all-gather."""

from itertools import groupby
from typing import NamedTuple

import numpy as np

from ringsim.schedule import Bools, Collective, Schedule, Step


class CollectivePhase(NamedTuple):
    """Steps one after the other that all reduce or all copy, and what they are called together."""

    name: str
    first_step: int
    num_steps: int


_OF_ALL = ("reduce-scatter", "all-gather")  # every rank owns a part of the result between the two
_OF_ONE = ("reduce", "broadcast")  # one rank has it
_OF_SOME = ("reduce", "copy")


def phases_of(schedule: Schedule) -> tuple[CollectivePhase, ...]:
    """Returns the two halves of an all_reduce; nothing where they run into each other, or the collective is one phase.

    >>> from ringsim.algorithms import ring_all_reduce
    >>> [phase.name for phase in phases_of(ring_all_reduce(4))]
    ['reduce-scatter', 'all-gather']
    """
    if schedule.collective is not Collective.ALL_REDUCE:
        return ()
    does = [_reduces(step) for step in schedule.steps]
    runs = [(reduces, len(list(steps))) for reduces, steps in groupby(does)]
    if [reduces for reduces, _ in runs] != [True, False]:
        return ()
    first, second = (length for _, length in runs)
    names = _names(schedule, first)
    return CollectivePhase(names[0], 0, first), CollectivePhase(names[1], first, second)


def _reduces(step: Step) -> bool | None:
    """Whether all its transfers reduce; None if some do and some do not."""
    reduces = bool(step.reduce[0]) if len(step) else None
    return reduces if (step.reduce == reduces).all() else None


def _names(schedule: Schedule, first_copying: int) -> tuple[str, str]:
    """By how many ranks own a part of the result: they send chunks that nobody has sent them a copy of."""
    copied: Bools = np.zeros((schedule.num_ranks, schedule.num_chunks), dtype=bool)
    owners: set[int] = set()
    for step in schedule.steps[first_copying:]:
        owners.update(step.src[~copied[step.src, step.chunk]].tolist())
        copied[step.dst, step.chunk] = True
    if len(owners) == schedule.num_ranks > 1:
        return _OF_ALL
    return _OF_ONE if len(owners) == 1 else _OF_SOME
