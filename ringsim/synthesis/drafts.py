"""`Draft`: an unfinished schedule with an estimate of its time, so that only promising drafts are simulated.

Its parts are copies of chunks over links. Reversed in time and on reversed links, copies become additions: a
reduce_scatter is an all_gather found on reversed links.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np

from ringsim.analysis import Links
from ringsim.network import NONE, Floats, Ints
from ringsim.schedule import Bools, Collective, Columns, Schedule, Transfer
from ringsim.synthesis.matching import ChunkMatching, Overlay

NUM_ROUNDS = 3  # in which each half of an all_reduce avoids the resources of the other half
WAVES = (2, 4, 8, 16, 32, 64)
ALIKE = 1.02  # largest ratio of equivalent estimates
LEAST_S = 1e-12  # in place of a time or a bound of 0
UNBALANCED = 1.02  # times the bound, above which the busiest resource of both halves together is too busy


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The transfers of one half of a collective by time, (num_transfers,) each.

    busy_s: (num_resources,), the time for which each resource serves them.
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
        src, dst, resource = links.src[link], links.dst[link], links.resource[link]
        used = resource != NONE
        busy_s = links.s_per_byte[link][used] * chunk_bytes
        busy_s = np.bincount(resource[used], busy_s, minlength=len(links.names)).astype(np.float64)
        return cls(src, dst, chunk, False, _channels(src, dst), start_s, end_s, busy_s)

    @property
    def time_s(self) -> float:
        return float(self.end_s.max(initial=0.0))

    def time_reversed(self) -> "Part":
        """Return the transfers reversed in time: the sender of a copy receives and adds.

        Of transfers that end simultaneously, the last comes first.
        """
        start_s, end_s = self.time_s - self.end_s, self.time_s - self.start_s
        order = np.argsort(start_s[::-1], kind="stable")
        order = len(order) - 1 - order
        src, dst, chunk = (column[order] for column in (self.dst, self.src, self.chunk))
        return Part(src, dst, chunk, True, _channels(src, dst), start_s[order], end_s[order], self.busy_s)

    def on_channels_after(self, other: "Part") -> "Part":
        return replace(self, channel=self.channel + int(other.channel.max(initial=0)) + 1)


def _channels(src: Ints, dst: Ints) -> Ints:
    pair, number = np.unique(np.column_stack([src, dst]), axis=0, return_inverse=True)
    return (np.arange(len(pair)) - np.searchsorted(pair[:, 0], pair[:, 0]))[number.ravel()]


def period_of(parts: Sequence[Part]) -> float:
    """Return the time for which the busiest resource serves all parts."""
    return float(np.sum([part.busy_s for part in parts], axis=0).max(initial=0.0))


def assemble(
    collective: Collective, num_ranks: int, num_chunks: int, parts: Sequence[Part], num_waves: int, name: str
) -> Schedule:
    """Return the schedule that runs these parts one after the other.

    num_waves: pieces of each chunk, with each of which a wave runs all parts. The next wave starts when the busiest
    resource has served it: its first part overlaps with this wave's second part.
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
    """Return the schedule with its transfers in the order of these times, in as few steps as possible.

    end_s: (num_transfers,), end of each transfer, in step order, none before the end of its dependencies. A value that
    overwrites a chunk must derive from the values that the rank has sent of the chunk.
    """
    order = np.argsort(end_s, kind="stable")
    columns = [getattr(schedule.steps.table, field)[order] for field in Transfer._fields]
    known = schedule.collective, schedule.algorithm, schedule.num_ranks, schedule.num_chunks
    return Schedule.from_columns(*known, list(_steps(*columns)))


def _steps(src: Ints, dst: Ints, chunk: Ints, reduce: Bools, channel: Ints) -> Iterator[Columns]:
    begins, written = [0], set[tuple[int, int]]()
    for row, (sender, receiver, number) in enumerate(zip(src.tolist(), dst.tolist(), chunk.tolist(), strict=True)):
        if (sender, number) in written:
            begins.append(row)
            written = set()
        written.add((receiver, number))
    for first, last in pairwise([*begins, len(src)] if len(src) else []):
        yield tuple(column[first:last] for column in (src, dst, chunk, reduce, channel))


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """The collective to find a schedule for, its size, and the network as links.

    islands: see `islands_of`. bound_s: lower bound of the time; latency_s: that for any size. max_transfers: of a
    schedule in waves. in_order: whether a rank does one thing at a time.
    """

    collective: Collective
    size_bytes: int
    links: Links
    islands: list[Ints]
    bound_s: float
    latency_s: float
    max_transfers: int
    in_order: bool

    @property
    def num_ranks(self) -> int:
        return self.links.num_ranks

    def num_chunks(self, chunks_per_rank: int) -> int:
        """Return the number of all chunks; in a broadcast or reduce, only the root has chunks."""
        return chunks_per_rank if self.collective.has_root else chunks_per_rank * self.num_ranks

    def num_transfers(self, chunks_per_rank: int) -> int:
        halves = 2 if self.collective is Collective.ALL_REDUCE else 1
        return halves * (self.num_ranks - 1) * self.num_chunks(chunks_per_rank)

    def overheads_s(self, parts: Sequence[Part]) -> float:
        """Return the longest sum of consecutive overheads: of a rank if it works in order, else of a pair."""
        overheads_s = np.zeros((2, self.num_ranks, self.num_ranks))  # of a message: its sender's, its receiver's
        overheads_s[:, self.links.src, self.links.dst] = self.links.send_s, self.links.receive_s
        most_s, every_s = 0.0, np.zeros(self.num_ranks)
        for part in parts:
            num_messages = np.zeros((self.num_ranks, self.num_ranks))
            np.add.at(num_messages, (part.src, part.dst), 1)
            send_s, receive_s = num_messages * overheads_s
            most_s = max(most_s, float(np.maximum(send_s, receive_s).max()))
            every_s += send_s.sum(axis=1) + receive_s.sum(axis=0)
        return float(every_s.max()) if self.in_order else most_s


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """The parts of a schedule, from which it can be assembled.

    num_waves: see `assemble`. estimate_s: the time if each link always had its share of the network, but at least
    consecutive overheads.
    """

    problem: Problem
    overlay: Overlay
    chunks_per_rank: int
    parts: tuple[Part, ...]
    num_waves: int
    estimate_s: float

    @property
    def num_transfers(self) -> int:
        return sum(len(part.src) for part in self.parts) * self.num_waves

    @property
    def order(self) -> tuple[float, int]:
        """The sort key: faster drafts first, and of similar drafts the smaller."""
        return math.ceil(math.log(max(self.estimate_s, LEAST_S), ALIKE)), self.num_transfers

    def schedule(self, name: str) -> Schedule:
        problem = self.problem
        num_chunks = problem.num_chunks(self.chunks_per_rank)
        return assemble(problem.collective, problem.num_ranks, num_chunks, self.parts, self.num_waves, name)


class Drafting:
    """Drafts over the links of an overlay."""

    def __init__(self, problem: Problem, overlay: Overlay, chunks_per_rank: int, seed: int) -> None:
        self._problem, self._overlay, self._chunks_per_rank = problem, overlay, chunks_per_rank
        self._num_chunks = problem.num_chunks(chunks_per_rank)
        self._chunk_bytes = problem.size_bytes / self._num_chunks
        self._rng = np.random.default_rng([seed, chunks_per_rank])

    def drafts(self, *, is_balanced: bool = True) -> list[Draft]:
        """Return the drafts of one try by their estimates.

        is_balanced: fit the halves of an all_reduce to each other, which takes several times as long. Raises
        NotConnectedError if the links do not lead to all ranks.
        """
        return sorted(self._drafts(NUM_ROUNDS if is_balanced else 0), key=lambda draft: draft.order)

    def _drafts(self, num_rounds: int) -> Iterator[Draft]:
        collective = self._problem.collective
        if collective is not Collective.ALL_REDUCE:
            half = self._added_up(self._overlay) if collective.reduces else self._copied(self._overlay)
            yield self._draft((half,), 1, half.time_s)
            return
        halves = self._added_up(self._overlay), self._copied(self._overlay)
        yield self._draft(halves, 1, sum(half.time_s for half in halves))
        yield from self._in_waves(halves)
        for _ in range(num_rounds):
            if period_of(halves) < UNBALANCED * self._problem.bound_s:
                return
            gathered = self._copied(self._beside(halves[0]))
            halves = self._added_up(self._beside(gathered)), gathered
            yield from self._in_waves(halves)

    def _beside(self, half: Part) -> Overlay:
        return Overlay.of(self._overlay.links, half.busy_s / self._problem.bound_s)

    def _in_waves(self, halves: tuple[Part, Part]) -> Iterator[Draft]:
        """Yield the draft of an all_reduce with the best number of waves, then drafts with fewer waves.

        Of similar estimates the fewest waves are the fastest to simulate.
        """
        fixed_s = 2 * self._problem.latency_s
        ends_s = max(sum(half.time_s for half in halves) - fixed_s, 0.0)  # of the first wave to come, the last to go
        apart = halves[0], halves[1].on_channels_after(halves[0])
        drafts_of_waves = [
            self._draft(apart, count, fixed_s + period_of(halves) * (count - 1) / count + ends_s / count)
            for count in WAVES
            if self._problem.num_transfers(self._chunks_per_rank * count) <= self._problem.max_transfers
        ]
        best = min(drafts_of_waves, key=lambda draft: draft.order, default=None)
        yield from [draft for draft in drafts_of_waves if best and draft.num_waves <= best.num_waves][::-1]

    def _draft(self, parts: tuple[Part, ...], num_waves: int, estimate_s: float) -> Draft:
        estimate_s = max(estimate_s, num_waves * self._problem.overheads_s(parts))
        return Draft(self._problem, self._overlay, self._chunks_per_rank, parts, num_waves, estimate_s)

    def _copied(self, overlay: Overlay) -> Part:
        matching = ChunkMatching(overlay, self._problem.islands, self._chunk_bytes, self._held(), self._rng)
        return Part.of(overlay.links, self._chunk_bytes, *matching.run())

    def _added_up(self, overlay: Overlay) -> Part:
        return self._copied(overlay.reversed()).time_reversed()

    def _held(self) -> Bools:
        ranks = np.arange(self._problem.num_ranks)
        owner = 0 if self._problem.collective.has_root else ranks
        return np.asarray(ranks[:, None] == np.repeat(owner, self._chunks_per_rank))
