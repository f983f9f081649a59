"""`spread_chunks`: a greedy matching of chunks to links over time (TACOS, Won et al., MICRO 2024).

Time goes on from one moment at which a link is free or a chunk arrives to the next. At each, every rank takes from the
ranks before it chunks that it lacks, the rarest first, as long as the links to it are free. A link is free when all
that it uses is: each resource serves one message after the other, each for its bytes over the capacity. So a NIC that
is faster than the port behind it serves several at once, and switches and uplinks are resources like all others.

A chunk enters an *island* (see `islands_of`) once: what is dear to bring to a host is not brought to two of its ranks.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringsim.analysis import Links
from ringsim.network import NONE, Floats, Ints
from ringsim.schedule import Bools
from ringsim.synthesis.islands import islands_of, link_prices

TOLERANCE = 0.1  # of the time of most messages: what happens within it happens at once


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Which chunk goes over which link, and from when on: (num_transfers,) each, in the order of `start_s`."""

    link: Ints
    chunk: Ints
    start_s: Floats
    end_s: Floats

    @property
    def time_s(self) -> float:
        """When the last chunk has arrived."""
        return float(self.end_s.max(initial=0.0))


class Matching:
    """The links of a network, ready for chunks of one size."""

    def __init__(self, links: Links, chunk_bytes: float) -> None:
        self._links = links
        self._busy_s = links.s_per_byte * chunk_bytes
        self._alone_s = links.alone_s_per_byte * chunk_bytes
        self._price = link_prices(links)
        self._into = [np.flatnonzero(links.dst == rank) for rank in range(links.num_ranks)]
        self._islands = islands_of(links)
        self._tolerance_s = TOLERANCE * float(np.median(self._alone_s + links.fixed_s))

    def spread_chunks(
        self, held: Bools, rng: np.random.Generator, on_progress: Callable[[int], object] = lambda _: None
    ) -> Copies:
        """Return how each chunk gets to all ranks. held: (num_ranks, num_chunks), which rank has it from the start.

        on_progress: is told how many more transfers there are than when it was last told.
        """
        return _Run(self, held, rng, on_progress).run()

    def free_links(self, free_s: Floats, until_s: float, chosen: Ints | slice = slice(None)) -> Bools:
        """Return which links use nothing that is busy beyond a moment. free_s: of each resource, and one more."""
        free: Bools = (free_s[self._links.resource[chosen]] <= until_s).all(axis=1)
        return free


class _Run:
    def __init__(
        self, matching: Matching, held: Bools, rng: np.random.Generator, on_progress: Callable[[int], object]
    ) -> None:
        self._matching, self._links, self._rng, self._on_progress = matching, matching._links, rng, on_progress
        self._here = held.copy()
        self._here_or_coming = held.copy()
        self._came_s = np.where(held, 0.0, np.inf)
        self._holders = held.sum(axis=0).astype(np.float64)
        self._islands = matching._islands
        self._in_island = [_any_of_island(island, held) for island in self._islands]
        self._free_s = np.zeros(len(self._links.names) + 1)
        self._free_s[NONE] = -np.inf  # the last stands for no resource
        self._coming: list[tuple[float, int, int]] = []
        self._rows: list[tuple[int, int, float, float]] = []
        self._now_s = 0.0

    def run(self) -> Copies:
        missing = int((~self._here_or_coming).sum())
        while missing > 0:
            before = len(self._rows)
            self._match()
            self._on_progress(len(self._rows) - before)
            missing -= len(self._rows) - before
            if missing > 0 and not self._go_on():
                if not self._islands:
                    raise ValueError("some ranks cannot be reached from others: the network is not connected")
                self._islands = []  # links that lead one way only: a chunk may have to enter twice
        link, chunk, start_s, end_s = (np.array(column) for column in zip(*self._rows, strict=True))
        order = np.argsort(start_s, kind="stable")
        return Copies(link[order], chunk[order], start_s[order], end_s[order])

    def _go_on(self) -> bool:
        """Go on to the next moment at which something changes; return False if nothing will."""
        until_s = self._now_s + self._matching._tolerance_s
        busy_s = self._free_s[self._free_s > until_s]
        next_s = min(busy_s.min(initial=np.inf), self._coming[0][0] if self._coming else np.inf)
        if next_s == np.inf:
            return False
        self._now_s = max(float(next_s), self._now_s)
        while self._coming and self._coming[0][0] <= self._now_s + self._matching._tolerance_s:
            _, rank, chunk = heapq.heappop(self._coming)
            self._here[rank, chunk] = True
        return True

    def _match(self) -> None:
        """Let each rank take what it can now, one chunk each, until none can."""
        free = self._matching.free_links(self._free_s, self._now_s + self._matching._tolerance_s)
        receivers = np.unique(self._links.dst[free])
        receivers = receivers[~self._here_or_coming[receivers].all(axis=1)]
        while len(receivers):
            self._rng.shuffle(receivers)
            receivers = np.array([rank for rank in receivers.tolist() if self._take(rank)], dtype=np.int64)

    def _take(self, rank: int) -> bool:
        """Begin to bring one chunk to a rank; return False if there is none."""
        rows = self._matching._into[rank]
        rows = rows[self._matching.free_links(self._free_s, self._now_s + self._matching._tolerance_s, rows)]
        if not len(rows):
            return False
        lacking = np.flatnonzero(~self._here_or_coming[rank])
        src = self._links.src[rows]
        useful = self._here[src[:, None], lacking]
        for island, in_island in zip(self._islands, self._in_island, strict=True):
            useful &= ~((island[src] != island[rank])[:, None] & in_island[island[rank], lacking])
        offered = useful.any(axis=0)
        if not offered.any():
            return False
        rarity = np.where(offered, self._holders[lacking] + self._rng.random(len(lacking)), np.inf)
        column = int(rarity.argmin())
        offers = np.flatnonzero(useful[:, column])
        if len(offers) > 1:
            choices = useful[offers].sum(axis=1)
            offers = offers[np.lexsort((self._rng.random(len(offers)), choices, self._matching._price[rows[offers]]))]
        self._send(int(rows[offers[0]]), int(lacking[column]))
        return True

    def _send(self, link: int, chunk: int) -> None:
        links, src, dst = self._links, int(self._links.src[link]), int(self._links.dst[link])
        resource = links.resource[link]
        resource = resource[resource != NONE]
        start_s = max(self._now_s, float(self._came_s[src, chunk]))
        self._free_s[resource] = np.maximum(self._free_s[resource], start_s) + self._matching._busy_s[link, : len(resource)] \
            if len(resource) == links.resource.shape[1] else (
                np.maximum(self._free_s[resource], start_s)
                + self._matching._busy_s[link][links.resource[link] != NONE])
        sent_s = max(start_s + float(self._matching._alone_s[link]), float(self._free_s[resource].max(initial=0.0)))
        came_s = sent_s + float(links.fixed_s[link])
        self._came_s[dst, chunk] = came_s
        self._here_or_coming[dst, chunk] = True
        self._holders[chunk] += 1
        for island, in_island in zip(self._islands, self._in_island, strict=True):
            in_island[island[dst], chunk] = True
        heapq.heappush(self._coming, (came_s, dst, chunk))
        self._rows.append((link, chunk, start_s, came_s))


def _any_of_island(island: Ints, held: Bools) -> Bools:
    """Return whether some rank of an island has a chunk, (num_ranks, num_chunks); islands have the number of a rank."""
    in_island = np.zeros_like(held)
    np.logical_or.at(in_island, island, held)
    return in_island
