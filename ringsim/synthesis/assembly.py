"""From copies of chunks over links to a `Schedule`: turned round, one after the other, in waves, with channels.

Read backwards in time, copies on reversed links are additions: a chunk that spread from its owner to all ranks is
gathered up from all ranks to its owner. So a reduce_scatter is an all_gather that was found on reversed links.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np

from ringsim.analysis import Links
from ringsim.network import NONE, Floats, Ints
from ringsim.schedule import Bools, Collective, Columns, Schedule, Transfer


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The transfers of one half of a collective in the order of their times; (num_transfers,) each.

    busy_s: (num_resources,), how long each resource serves them.
    """

    src: Ints
    dst: Ints
    chunk: Ints
    reduce: bool
    channel: Ints
    start_s: Floats
    end_s: Floats
    busy_s: Floats

    @classmethod
    def of(cls, links: Links, chunk_bytes: float, link: Ints, chunk: Ints, start_s: Floats, end_s: Floats) -> Self:
        """Return the transfers that copy chunks over links."""
        src, dst, resource = links.src[link], links.dst[link], links.resource[link]
        used = resource != NONE
        busy_s = links.s_per_byte[link][used] * chunk_bytes
        busy_s = np.bincount(resource[used], busy_s, minlength=len(links.names)).astype(np.float64)
        return cls(src, dst, chunk, False, _channels(src, dst), start_s, end_s, busy_s)

    @property
    def time_s(self) -> float:
        """When the last transfer is over."""
        return float(self.end_s.max(initial=0.0))

    def turned_round(self) -> "Part":
        """Return the transfers backwards in time: who has sent a copy receives, and adds what it receives.

        What takes no time is turned round as well: of transfers that end at once, the last one comes first.
        """
        start_s, end_s = self.time_s - self.end_s, self.time_s - self.start_s
        order = np.argsort(start_s[::-1], kind="stable")
        order = len(order) - 1 - order
        src, dst, chunk = (column[order] for column in (self.dst, self.src, self.chunk))
        return Part(src, dst, chunk, True, _channels(src, dst), start_s[order], end_s[order], self.busy_s)

    def on_channels_after(self, other: "Part") -> "Part":
        """Return the same on channels that the other does not use."""
        return replace(self, channel=self.channel + int(other.channel.max(initial=0)) + 1)


def _channels(src: Ints, dst: Ints) -> Ints:
    """Return a channel for each pair of ranks, (num_transfers,): those of a rank are counted from 0."""
    pair, number = np.unique(np.column_stack([src, dst]), axis=0, return_inverse=True)
    return (np.arange(len(pair)) - np.searchsorted(pair[:, 0], pair[:, 0]))[number.ravel()]


def period_of(parts: Sequence[Part]) -> float:
    """Return how long the busiest resource serves all of the parts."""
    return float(np.sum([part.busy_s for part in parts], axis=0).max(initial=0.0))


def assemble(
    collective: Collective, num_ranks: int, num_chunks: int, parts: Sequence[Part], num_waves: int, name: str
) -> Schedule:
    """Return the schedule of these parts, one after the other.

    num_waves: number of pieces into which each chunk is divided. Every wave runs all parts on one piece of each chunk;
    the next wave starts as soon as the busiest resource has served it, and the second part of a wave overlaps with the
    first part of the next.
    """
    period_s = period_of(parts)
    rows, begin_s = [], 0.0
    for part in parts:
        wave = np.repeat(np.arange(num_waves), len(part.src))
        src, dst, chunk, channel = (
            np.tile(column, num_waves) for column in (part.src, part.dst, part.chunk, part.channel)
        )
        start_s = begin_s + wave * period_s + np.tile(part.start_s, num_waves)
        reduce = np.full(len(src), part.reduce)
        rows.append((start_s, src, dst, chunk * num_waves + wave, reduce, channel))
        begin_s += part.time_s
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    steps = list(_steps(*(column[order] for column in columns[1:])))
    return Schedule.from_columns(collective, name, num_ranks, num_chunks * num_waves, steps)


def in_order_of(schedule: Schedule, end_s: Floats) -> Schedule:
    """Return the schedule with its transfers in the order of these times, in as few steps as keep it.

    end_s: (num_transfers,), when each is over, in step order; none is over earlier than what it depends on. What a
    transfer overwrites, if anything, has been made of what the rank has sent before of that chunk.
    """
    order = np.argsort(end_s, kind="stable")
    columns = [getattr(schedule.steps.table, field)[order] for field in Transfer._fields]
    known = schedule.collective, schedule.algorithm, schedule.num_ranks, schedule.num_chunks
    return Schedule.from_columns(*known, list(_steps(*columns)))


def _steps(src: Ints, dst: Ints, chunk: Ints, reduce: Bools, channel: Ints) -> Iterator[Columns]:
    """Yield as few steps as keep the order: a new one begins where a transfer sends what its step has written."""
    begins, written = [0], set[tuple[int, int]]()
    for row, (sender, receiver, number) in enumerate(zip(src.tolist(), dst.tolist(), chunk.tolist(), strict=True)):
        if (sender, number) in written:
            begins.append(row)
            written = set()
        written.add((receiver, number))
    for first, last in pairwise([*begins, len(src)] if len(src) else []):
        yield tuple(column[first:last] for column in (src, dst, chunk, reduce, channel))
