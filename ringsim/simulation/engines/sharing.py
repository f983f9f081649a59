"""`shares`: whether any two messages of a schedule can get in each other's way on a topology."""

import numpy as np

from ringsim.network import NONE, Ints, Topology, connection_keys
from ringsim.schedule import Schedule
from ringsim.simulation.engines.slots import Ends, connections_of


def shares(schedule: Schedule, topology: Topology) -> bool:
    """False if every resource serves one channel of one rank at most, whose messages travel one after the other.

    A ring in which every rank has a port of its own shares nothing, however many switches there are. What two channels
    between the same two ranks share is what limits a message between these.
    """
    if (topology.processors.cores != NONE).any():
        return True
    if not topology.resources.names and schedule.steps.num_channels == 1:
        return False
    return bool((connections_of(used_connections(schedule), topology).use > 0).any())


def is_a_ring(schedule: Schedule) -> bool:
    """Whether each rank has one connection out and one in at most, and one transfer a step on each."""
    ends = used_connections(schedule)
    if min(len(np.unique(ends.src)), len(np.unique(ends.dst))) < len(ends.src):
        return False
    return all(len(np.unique(step.src)) == len(step) for step in schedule.steps.patterns())


def used_connections(schedule: Schedule) -> Ends:
    """Those that some transfer is sent on, each once, in order, without keeping all transfers."""
    num_ranks = schedule.num_ranks
    seen: dict[tuple[int, int, int], tuple[Ints, Ints, Ints]] = {}
    known = [np.empty(0, dtype=np.int64)]
    for step in schedule.steps.patterns():
        columns = step.src, step.dst, step.channel
        key = id(step.src), id(step.dst), id(step.channel)
        if key in seen:
            continue
        seen[key] = columns  # kept, so that the ids stay theirs
        known.append(connection_keys(step.src, step.dst, step.channel, num_ranks))
        if len(seen) % 256 == 0:
            seen.clear()
            known = [np.unique(np.concatenate(known))]
    return Ends.of(np.unique(np.concatenate(known)), num_ranks)
