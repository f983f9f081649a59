"""`MemoryPasses`: what ranks copy when they read from each other's memory what they receive.

A rank that sends a chunk publishes it: it puts the chunk where the other ranks of its host can read it. It copies there
only what it has held from the beginning; a sum that is sent on is formed there, and a chunk that is passed on stays
where it was published first. The receiver adds, or copies, from there.
"""

from dataclasses import dataclass

import numpy as np

from ringsim.schedule.collective import required
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import Bools


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPasses:
    """The copies that each transfer needs beside its addition, the rows in step order, each (num_transfers,).

    published: whether the sender copies the chunk to where others read it.
    taken: whether the receiver copies it to where it belongs: what is final there, unless it was added there.
    apart: whether the sum is formed elsewhere than where its first operand is, so that three places take part: what is
    sent on; what is added to a chunk that lies in published memory; and what is added to the input of a rank to which
    the collective does not leave all chunks, as that input stays as it is.
    most_published: how many chunks a rank has in its published memory in the end, at most.
    """

    published: Bools
    taken: Bools
    apart: Bools
    most_published: int


def memory_passes(schedule: Schedule) -> MemoryPasses:
    """Those of all transfers of `schedule`, whose ranks all share memory."""
    published = np.zeros(schedule.num_transfers, dtype=np.bool_)
    sent_on, is_last, is_elsewhere = np.zeros_like(published), np.ones_like(published), np.zeros_like(published)
    reduces, receiver, chunk_of = list[bool](), [], []
    wanted = required(schedule.collective, schedule.num_ranks, schedule.num_chunks)[1].astype(np.bool_)
    keeps_input: Bools = np.logical_not(wanted.all(axis=1))
    writer: dict[tuple[int, int], int] = {}  # of a rank's chunk: the row that wrote it last
    known: set[tuple[int, int]] = set()  # a rank's own chunks that it has published
    num_published = np.zeros(schedule.num_ranks, dtype=np.int64)
    first = 0
    for step in schedule.steps:
        for row, transfer in enumerate(step, first):  # what is sent in a step was there before it
            place = transfer.src, transfer.chunk
            if place in writer:
                sent_on[writer[place]] = True
            elif place not in known:
                published[row] = True
                known.add(place)
        for row, transfer in enumerate(step, first):
            place = transfer.dst, transfer.chunk
            if place in writer:
                before = writer[place]
                is_last[before], is_elsewhere[row] = False, sent_on[before] or not reduces[before]
            else:
                is_elsewhere[row] = keeps_input[transfer.dst]
            writer[place] = row
            reduces.append(transfer.reduce)
            receiver.append(transfer.dst)
            chunk_of.append(transfer.chunk)
        first += len(step)
    is_sum = np.array(reduces, dtype=np.bool_)
    np.add.at(num_published, np.array(receiver, dtype=np.int64), is_sum & sent_on)
    np.add.at(num_published, [rank for rank, _ in known], 1)
    taken = is_last & wanted[receiver, chunk_of] & (sent_on | ~is_sum)
    apart = is_sum & (sent_on | is_elsewhere)
    return MemoryPasses(published, taken, apart, int(num_published.max(initial=0)))
