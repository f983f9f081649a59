"""`serving`: what of a schedule the switches of a network add up or copy, as NVLink SHARP does within a host."""

from collections.abc import Sequence

import numpy as np

from ringsim.network import InSwitch, Ints, Topology, connection_keys
from ringsim.schedule import Schedule, Step
from ringsim.simulation.engines.sharing import is_a_ring

_PER_RANK = 2**32  # more than there are chunks


def serving(schedules: Sequence[Schedule], topology: Topology) -> Topology:
    """The topology, with those connections of the schedules whose messages its switches add up or copy.

    The messages of a step that a rank adds to one chunk are added up by the switch, and those with which a rank sends
    one chunk to several ranks are copied by it, if all their ranks hang on it. What holds of a connection must hold of
    all its messages, so that only schedules that add and copy on channels of their own gain from it.
    """
    if topology.switch_of_rank is None:
        return topology
    rows = [
        _merged(step, schedule.num_ranks, topology.switch_of_rank)
        for schedule in {id(schedule): schedule for schedule in schedules}.values()
        for step in (schedule.steps.patterns() if is_a_ring(schedule) else schedule.steps)
    ]
    if not rows:
        return topology
    key, added, copied = np.unique(np.concatenate(rows, axis=1), axis=1)
    first = np.flatnonzero(np.diff(key, prepend=-1))
    alike = np.diff(np.append(first, len(key))) == 1
    kept = first[alike & (np.maximum(added, copied)[first] > 1)]
    return topology.with_in_switch(InSwitch(key[kept], added[kept], copied[kept])) if len(kept) else topology


def _merged(step: Step, num_ranks: int, switch: Ints) -> Ints:
    """(3, num_connections): of each connection of the step its key, and how many are added up with it, and copied."""
    key = connection_keys(step.src, step.dst, step.channel, num_ranks)
    within = switch[step.src] == switch[step.dst]
    owner = np.where(step.reduce, step.dst, step.src)
    # Of one kind, owner and chunk, and from or to the switch of the owner.
    together = ((owner * 2 + step.reduce) * 2 + within) * _PER_RANK + step.chunk
    _, group, count = np.unique(together, return_inverse=True, return_counts=True)
    number = np.where(within, count[group], 1)
    rows = np.stack([key, np.where(step.reduce, number, 1), np.where(step.reduce, 1, number)])
    return np.unique(rows, axis=1)
