"""`MemoryPasses`: what ranks copy when they read from each other's memory what they receive.

A rank that sends a chunk publishes it: it puts the chunk where the other ranks of its host can read it. It copies there
only what it has held from the beginning; a sum that is sent on is formed there, and a chunk that is passed on stays
where it was published first. The receiver adds, or copies, from there.
"""

from dataclasses import dataclass

import numpy as np

from ringsim.schedule.collective import required
from ringsim.schedule.flow import NO_ROW, Flow, Occurrences, flow, pair
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import Bools


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPasses:
    """The copies that each transfer needs beside its addition, the rows in step order, each (num_transfers,).

    published: whether the sender copies the chunk to where others read it.
    taken: whether the receiver copies it to where it belongs: what is final there, unless it was added there.
    apart: whether the sum is formed elsewhere than where its first operand is, so that three places take part: what is
    sent on; what is added to a chunk that lies in published memory; and, unless the output is a part of the input, what
    is added to the input of a rank to which the collective does not leave all chunks, as that input stays as it is.
    most_published: how many chunks a rank has in its published memory in the end, at most.
    """

    published: Bools
    taken: Bools
    apart: Bools
    most_published: int


def memory_passes(schedule: Schedule, *, in_place: bool = False) -> MemoryPasses:
    """Return the copies of all transfers of `schedule`, whose ranks all share memory.

    in_place: whether a rank's output is a part of its input, if the collective does not leave it all chunks.
    """
    rows = flow(schedule)
    wanted = required(schedule.collective, schedule.num_ranks, schedule.num_chunks)[1].astype(np.bool_)
    keeps_input: Bools = np.logical_not(wanted.all(axis=1) | in_place)
    is_final = ~rows.is_replaced & wanted[rows.dst, rows.chunk]
    is_published: Bools = np.logical_or(rows.is_read, ~rows.reduce)
    adds_to_published = np.where(rows.replaces == NO_ROW, keeps_input[rows.dst], is_published[rows.replaces])
    return MemoryPasses(
        published=(rows.reads == NO_ROW) & _is_first(schedule, rows),
        taken=is_final & is_published,
        apart=rows.reduce & (rows.is_read | adds_to_published),
        most_published=most_published(schedule, rows),
    )


def most_published(schedule: Schedule, rows: Flow, on_one_host: bool = True) -> int:
    """Return how many chunks a rank publishes in one execution, at most.

    rows: the flow of `schedule`. on_one_host: whether all ranks share memory, so that a chunk that is passed on as it
    is stays where it was published first.
    """
    is_passed_on = (rows.reads != NO_ROW) & ~rows.reduce[rows.reads] & on_one_host
    publishes = _is_first(schedule, rows) & ~is_passed_on
    return int(np.bincount(rows.src[publishes], minlength=schedule.num_ranks).max(initial=0))


def _is_first(schedule: Schedule, rows: Flow) -> Bools:
    """Return whether no earlier transfer sends the same version of the chunk."""
    from_start = pair(rows.src, rows.chunk, schedule.num_ranks, schedule.num_chunks)
    version = np.where(rows.reads == NO_ROW, from_start, schedule.num_ranks * schedule.num_chunks + rows.reads)
    return np.equal(Occurrences(version, rows.step).previous(), NO_ROW)
