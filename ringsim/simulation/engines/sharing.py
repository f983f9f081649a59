"""`shares`: whether any two messages of a schedule can get in each other's way on a topology."""

import numpy as np

from ringsim.network import NONE, Ints, Topology
from ringsim.schedule import Schedule


def shares(schedule: Schedule, topology: Topology) -> bool:
    """False if every resource serves the messages of one pair of ranks at most, which travel one after the other.

    A ring in which every rank has a port of its own shares nothing, however many switches there are.
    """
    if not topology.resources.names:
        return False
    if (topology.processors.cores != NONE).any():
        return True
    src, dst = used_links(schedule)
    resource = topology.paths(src, dst).resource
    users = np.bincount(resource[resource != NONE], minlength=len(topology.resources.names))
    failing = np.isfinite(topology.resources.fails_at_s)
    return bool((users > 1).any() or (failing & (users > 0)).any())


def used_links(schedule: Schedule) -> tuple[Ints, Ints]:
    """The src and dst of every pair of ranks that some transfer is sent between, each pair once, in order."""
    seen: dict[tuple[int, int], tuple[Ints, Ints]] = {}
    pairs = [np.empty(0, dtype=np.int64)]
    for step in schedule.steps:
        if (id(step.src), id(step.dst)) in seen:
            continue
        seen[id(step.src), id(step.dst)] = step.src, step.dst  # kept, so that the ids stay theirs
        pairs.append(step.src * schedule.num_ranks + step.dst)
        if len(seen) % 256 == 0:
            seen.clear()
            pairs = [np.unique(np.concatenate(pairs))]
    pair = np.unique(np.concatenate(pairs))
    return pair // schedule.num_ranks, pair % schedule.num_ranks
