"""`ChunkMatching`: a greedy matching of chunks to links over time (TACOS, Won et al., MICRO 2024).

Time goes on from one moment at which a link is free or a chunk arrives to the next. At each, every rank takes over the
links to it that are free chunks that it lacks, the rarest first. A link, which has a share of the ports, NICs and
uplinks on its way (see `Overlay`), carries one message after the other.

A chunk enters an *island* (see `islands_of`) once: what is dear to bring to a host is not brought to two of its ranks.
"""

import heapq
from typing import NamedTuple

import numpy as np

from ringsim.network import Floats, Ints
from ringsim.schedule import Bools
from ringsim.synthesis.overlay import Overlay

TOLERANCE = 0.1  # of the time of most messages: what happens within it happens at once


class NotConnectedError(Exception):
    """The links do not lead every chunk to every rank."""


class MatchedCopies(NamedTuple):
    """The copies of chunks in the order of their starts, (num_copies,) each. link: its row among the links."""

    link: Ints
    chunk: Ints
    start_s: Floats
    end_s: Floats


class ChunkMatching:
    """A search for the link and the time of every copy by which all ranks get all chunks.

    overlay: the links to use, and their rates. islands: of each level, (num_ranks,), see `islands_of`.
    held: (num_ranks, num_chunks), whether a rank has a chunk at the start. rng: decides between equally good copies.
    """

    def __init__(
        self, overlay: Overlay, islands: list[Ints], chunk_bytes: float, held: Bools, rng: np.random.Generator
    ) -> None:
        self._links, self._busy_s, self._rng = overlay.links, chunk_bytes / overlay.bytes_per_s, rng
        self._into = [np.flatnonzero(self._links.dst == rank) for rank in range(self._links.num_ranks)]
        self._tolerance_s = TOLERANCE * float(np.median(self._busy_s + self._links.fixed_s))
        self._here = held.copy()
        self._here_or_coming = held.copy()
        self._came_s = np.where(held, 0.0, np.inf)
        self._holders = held.sum(axis=0).astype(np.float64)
        self._islands = islands
        self._in_island = [_any_of_island(island, held) for island in islands]
        self._free_s = np.zeros(len(self._links.src))
        self._coming: list[tuple[float, int, int]] = []
        self._rows: list[tuple[int, int, float, float]] = []
        self._now_s = 0.0

    def run(self) -> MatchedCopies:
        """Return all copies.

        Raises NotConnectedError if the links do not lead to all ranks.
        """
        missing = int((~self._here_or_coming).sum())
        while missing > 0:
            before = len(self._rows)
            self._match()
            missing -= len(self._rows) - before
            if missing > 0 and not self._go_on():
                if not self._islands:
                    raise NotConnectedError("some ranks cannot be reached over these links")
                self._islands = []  # links that lead one way only: a chunk may have to enter twice
        columns = np.array(self._rows).reshape(-1, 4)
        link, chunk, start_s, end_s = columns[np.argsort(columns[:, 2], kind="stable")].T
        return MatchedCopies(link.astype(np.int64), chunk.astype(np.int64), start_s, end_s)

    def _go_on(self) -> bool:
        """Go on to the next moment at which something changes; return False if nothing will."""
        busy_s = self._free_s[self._free_s > self._soon_s]
        next_s = min(busy_s.min(initial=np.inf), self._coming[0][0] if self._coming else np.inf)
        if next_s == np.inf:
            return False
        self._now_s = max(float(next_s), self._now_s)
        while self._coming and self._coming[0][0] <= self._soon_s:
            _, rank, chunk = heapq.heappop(self._coming)
            self._here[rank, chunk] = True
        return True

    @property
    def _soon_s(self) -> float:
        """Until when things happen that count as happening now."""
        return self._now_s + self._tolerance_s

    def _match(self) -> None:
        """Let each rank take what it can now, one chunk after the other, until none can."""
        receivers = np.unique(self._links.dst[self._free_s <= self._soon_s])
        receivers = receivers[~self._here_or_coming[receivers].all(axis=1)]
        while len(receivers):
            self._rng.shuffle(receivers)
            receivers = np.array([rank for rank in receivers.tolist() if self._take(rank)], dtype=np.int64)

    def _take(self, rank: int) -> bool:
        """Begin to bring one chunk to a rank; return False if there is none."""
        rows = self._into[rank]
        rows = rows[self._free_s[rows] <= self._soon_s]
        if not len(rows):
            return False
        lacking = np.flatnonzero(~self._here_or_coming[rank])
        src = self._links.src[rows]
        useful = self._here[src[:, None], lacking]
        for island, in_island in zip(self._islands, self._in_island, strict=False):
            useful &= ~((island[src] != island[rank])[:, None] & in_island[island[rank], lacking])
        offered = np.flatnonzero(useful.any(axis=0))
        if not len(offered):
            return False
        rarity = self._holders[lacking[offered]] + self._rng.random(len(offered))
        column = int(offered[rarity.argmin()])
        offers = np.flatnonzero(useful[:, column])
        if len(offers) > 1:  # over the link that is soonest done, and of such ones over the one with the least choice
            keys = self._rng.random(len(offers)), useful[offers].sum(axis=1), self._busy_s[rows[offers]]
            offers = offers[np.lexsort(keys)]
        self._send(int(rows[offers[0]]), rank, int(lacking[column]))
        return True

    def _send(self, link: int, dst: int, chunk: int) -> None:
        start_s = max(self._now_s, self._free_s[link], self._came_s[self._links.src[link], chunk])
        sent_s = start_s + self._busy_s[link]
        came_s = float(sent_s + self._links.fixed_s[link])
        self._free_s[link] = sent_s
        self._came_s[dst, chunk] = came_s
        self._here_or_coming[dst, chunk] = True
        self._holders[chunk] += 1
        for island, in_island in zip(self._islands, self._in_island, strict=False):
            in_island[island[dst], chunk] = True
        heapq.heappush(self._coming, (came_s, dst, chunk))
        self._rows.append((link, chunk, float(start_s), came_s))


def _any_of_island(island: Ints, held: Bools) -> Bools:
    """Return whether some rank of an island has a chunk, (num_ranks, num_chunks); islands have the number of a rank."""
    in_island = np.zeros_like(held)
    np.logical_or.at(in_island, island, held)
    return in_island
