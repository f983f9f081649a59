"""`shares`: whether any two messages of a schedule can get in each other's way on a topology."""

import numpy as np

from ringsim.network import NONE, Ints, Topology
from ringsim.schedule import Schedule


def shares(schedule: Schedule, topology: Topology) -> bool:
    """False if every resource serves one channel of one rank at most, whose messages travel one after the other.

    A ring in which every rank has a port of its own shares nothing, however many switches there are. What two channels
    between the same two ranks share is what limits a message between these.
    """
    if (topology.processors.cores != NONE).any():
        return True
    if not topology.resources.names and schedule.steps.num_channels == 1:
        return False
    src, dst, sender = used_channels(schedule)
    pair = src * schedule.num_ranks + dst
    twice = np.zeros(len(pair), dtype=np.bool_)
    order = np.argsort(pair, kind="stable")
    twice[order[1:]] = pair[order[1:]] == pair[order[:-1]]
    paths = topology.paths(src, dst)
    if np.isfinite(paths.bytes_per_s[twice]).any():
        return True
    named = paths.resource != NONE
    use = np.stack([paths.resource[named], np.broadcast_to(sender[:, None], named.shape)[named]])
    users = np.bincount(np.unique(use, axis=1)[0], minlength=len(topology.resources.names))
    failing = np.isfinite(topology.resources.fails_at_s)
    return bool((users > 1).any() or (failing & (users > 0)).any())


def used_channels(schedule: Schedule) -> tuple[Ints, Ints, Ints]:
    """The src, dst and sender's channel that some transfer is sent on, each combination once, in order.

    The channel is a number that no channel of another rank has.
    """
    num_ranks = schedule.num_ranks
    seen: dict[tuple[int, int, int], tuple[Ints, Ints, Ints]] = {}
    known = [np.empty(0, dtype=np.int64)]
    for step in schedule.steps:
        columns = step.src, step.dst, step.channel
        key = id(step.src), id(step.dst), id(step.channel)
        if key in seen:
            continue
        seen[key] = columns  # kept, so that the ids stay theirs
        known.append((step.channel * num_ranks + step.src) * num_ranks + step.dst)
        if len(seen) % 256 == 0:
            seen.clear()
            known = [np.unique(np.concatenate(known))]
    sender, dst = np.divmod(np.unique(np.concatenate(known)), num_ranks)
    return sender % num_ranks, dst, sender
