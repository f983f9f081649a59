"""`serving`: what of a schedule the switches of a network add up or copy, as NVLink SHARP does within a host."""

from collections.abc import Sequence

import numpy as np

from ringsim.network import InSwitch, Ints, Topology, connection_keys
from ringsim.schedule import Schedule, Step

_PER_RANK = 2**32  # more than there are chunks
_KEPT = 256  # arrays, until they are made one


def serving(schedules: Sequence[Schedule], topology: Topology) -> Topology:
    """The topology, with those connections of the schedules whose messages its switches add up or copy.

    The messages of a step that a rank adds to one chunk are added up by the switch, and those with which a rank sends
    one chunk to several ranks are copied by it, if all their ranks hang on it. What holds of a connection must hold of
    all its messages, so that only schedules that add and copy on channels of their own gain from it.
    """
    distinct = {id(schedule): schedule for schedule in schedules}.values()
    if topology.switch_of_rank is None or not any(_is_for_switch(schedule) for schedule in distinct):
        return topology
    num_ranks = topology.num_ranks
    kinds = 2 * num_ranks + 1
    known = [np.empty(0, dtype=np.int64)]
    for schedule in distinct:
        for step in schedule.steps if _is_for_switch(schedule) else schedule.steps.patterns():
            key, number = _merged(step, num_ranks, topology.switch_of_rank)
            known.append(np.unique(key * kinds + number + num_ranks))
            if len(known) == _KEPT:
                known = [np.unique(np.concatenate(known))]
    key, number = np.divmod(np.unique(np.concatenate(known)), kinds)
    number -= num_ranks
    first = np.flatnonzero(np.diff(key, prepend=-1))
    kept = first[(np.diff(np.append(first, len(key))) == 1) & (number[first] != 0)]
    added, copied = np.maximum(number[kept], 1), np.maximum(-number[kept], 1)
    return topology.with_in_switch(InSwitch(key[kept], added, copied))


def _is_for_switch(schedule: Schedule) -> bool:
    """Whether some rank sends or receives several messages in a step."""
    ends = (ranks for step in schedule.steps.patterns() for ranks in (step.src, step.dst))
    return any(len(ranks) and np.bincount(ranks).max() > 1 for ranks in ends)


def _merged(step: Step, num_ranks: int, switch: Ints) -> tuple[Ints, Ints]:
    """For each transfer its connection, and how many are added up with it, or as a negative number copied; 0: none."""
    within = switch[step.src] == switch[step.dst]
    owner = np.where(step.reduce, step.dst, step.src)
    # Of one kind, owner and chunk, and from or to the switch of the owner.
    together = ((owner * 2 + step.reduce) * 2 + within) * _PER_RANK + step.chunk
    _, group, count = np.unique(together, return_inverse=True, return_counts=True)
    number = np.where(within & (count[group] > 1), np.where(step.reduce, count[group], -count[group]), 0)
    return connection_keys(step.src, step.dst, step.channel, num_ranks), number
