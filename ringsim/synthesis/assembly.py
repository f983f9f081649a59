"""From copies of chunks over links to a `Schedule`: turned round, one after the other, in waves, with channels.

Read backwards in time, copies on reversed links are additions: a chunk that spread from its owner to all ranks is
gathered up from all ranks to its owner. So a reduce_scatter is an all_gather that was found on reversed links.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ringsim.analysis import Links
from ringsim.network import NONE, Floats, Ints
from ringsim.schedule import Bools, Collective, Schedule
from ringsim.schedule.schedule import Columns
from ringsim.synthesis.matching import Copies


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
    time_s: float
    busy_s: Floats

    @classmethod
    def of(cls, copies: Copies, links: Links, chunk_bytes: float, *, reduce: bool) -> "Part":
        """Return the transfers of copies over links; reduce: turned round, `links` being reversed."""
        src, dst = links.src[copies.link], links.dst[copies.link]
        used = links.resource[copies.link]
        named = used != NONE
        busy_s = np.bincount(
            used[named], links.s_per_byte[copies.link][named] * chunk_bytes, minlength=len(links.names)
        )
        channel = _channels(links.reversed() if reduce else links)[copies.link]
        if not reduce:
            return cls(src, dst, copies.chunk, reduce, channel, copies.start_s, copies.time_s, busy_s)
        start_s = copies.time_s - copies.end_s
        order = np.argsort(start_s, kind="stable")
        columns = (column[order] for column in (dst, src, copies.chunk))
        return cls(*columns, reduce, channel[order], start_s[order], copies.time_s, busy_s)

    def on_channels_after(self, other: "Part") -> "Part":
        """Return the same on channels that the other does not use."""
        return replace(self, channel=self.channel + int(other.channel.max(initial=0)) + 1)


def _channels(links: Links) -> Ints:
    """Return the channel of each link, (num_links,): those of a rank are counted from 0."""
    order = np.lexsort((links.dst, links.src))
    first = np.searchsorted(links.src[order], links.src[order])
    channel = np.empty(len(order), dtype=np.int64)
    channel[order] = np.arange(len(order)) - first
    return channel


def assemble(
    collective: Collective, num_ranks: int, num_chunks: int, parts: list[Part], *, num_waves: int = 1, name: str
) -> Schedule:
    """Return the schedule of these parts, one after the other.

    num_waves: into so many each chunk is cut. A wave does what the whole would, and the next one follows as soon as the
    busiest resource has served it, so that the second part of a wave goes on beside the first part of the next.
    """
    period_s = float(sum(part.busy_s for part in parts).max(initial=0.0)) if parts else 0.0  # type: ignore[union-attr]
    rows, begin_s = [], 0.0
    for part in parts:
        wave = np.repeat(np.arange(num_waves), len(part.src))
        src, dst, chunk, channel = (np.tile(column, num_waves) for column in (part.src, part.dst, part.chunk, part.channel))
        start_s = begin_s + wave * period_s + np.tile(part.start_s, num_waves)
        reduce = np.full(len(src), part.reduce)
        rows.append((start_s, src, dst, chunk * num_waves + wave, reduce, channel))
        begin_s += part.time_s
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    steps = list(_steps(*(column[order] for column in columns[1:])))
    return Schedule.from_columns(collective, name, num_ranks, num_chunks * num_waves, steps)


def _steps(src: Ints, dst: Ints, chunk: Ints, reduce: Bools, channel: Ints) -> Iterator[Columns]:
    """Yield as few steps as keep the order: a new one begins where a transfer sends what its step has written."""
    first, written = 0, set[tuple[int, int]]()
    pairs = zip(zip(src.tolist(), chunk.tolist(), strict=True), zip(dst.tolist(), chunk.tolist(), strict=True), strict=True)
    for row, (read, write) in enumerate(pairs):
        if read in written:
            yield tuple(column[first:row] for column in (src, dst, chunk, reduce, channel))
            first, written = row, set()
        written.add(write)
    if first < len(src):
        yield tuple(column[first:] for column in (src, dst, chunk, reduce, channel))
