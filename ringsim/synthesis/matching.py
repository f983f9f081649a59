"""Overlays, each with a few links of a network, and a greedy matching of chunks to an overlay's links over time.

Islands are sets of ranks, such as hosts and racks, whose links cost less than the links between the sets. An overlay
reserves a share of each resource for each of its links. On networks with ports and switches each rank sends to a few
fixed ranks, so that max-min fair shares always hold: without a clock, one late message at a port delays all.
The matching follows TACOS (Won et al., MICRO 2024): whenever a link is free or a chunk arrives, every rank chooses
missing chunks for its free incoming links, the rarest first. A chunk enters an island once.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise, product
from typing import NamedTuple, Self

import numpy as np

from ringsim.analysis import Links
from ringsim.network import NONE, Floats, Ints
from ringsim.schedule import Bools
from ringsim.simulation import fair_rates

MAX_LINKS_OF_RANK = 64  # of an overlay that has all links
MAX_COMBINATIONS = 1000  # of patterns, of which many have the same links
LEAST_SHARE = 0.02  # least share of a resource that remains when others use it
LEVEL_COST_RATIO = 1.5  # times as much, from which on a link leads to another island
NO_TIME = 1e-30  # seconds a byte, where nothing limits a link


def islands_of(links: Links) -> list[Ints]:
    """Return for each level of the network, such as hosts and racks, the island of each rank, (num_ranks,).

    A level ends where links cost `LEVEL_COST_RATIO` times as much as the next cheaper links, which connect its islands.
    A link costs the seconds per byte if all ranks that share it send at once. Islands of one rank each, or of all
    ranks, are no level. An island has the number of its lowest rank.
    """
    sharing = np.append(np.minimum(*links.spread()), 0)[links.resource]
    prices = np.maximum((links.s_per_byte * sharing).max(axis=1, initial=0.0), links.alone_s_per_byte)
    steps = np.unique(prices)
    last_of_step = steps[:-1][steps[1:] > LEVEL_COST_RATIO * steps[:-1]]
    levels: list[Ints] = []
    for price in last_of_step.tolist():
        island = _connected(links.num_ranks, links.src[prices <= price], links.dst[prices <= price])
        if 1 < len(np.unique(island)) < links.num_ranks and not any(np.array_equal(island, one) for one in levels):
            levels.append(island)
    return levels


def is_connected(links: Links) -> bool:
    """Return whether each rank can be reached from every other."""
    forward, backward = (_reached(links.num_ranks, *ends) for ends in ((links.src, links.dst), (links.dst, links.src)))
    return bool(forward.all() and backward.all())


def _reached(num_ranks: int, src: Ints, dst: Ints) -> Bools:
    reached: Bools = np.arange(num_ranks) == 0
    while (new := reached[src] & ~reached[dst]).any():
        reached[dst[new]] = True
    return reached


def _connected(num_ranks: int, src: Ints, dst: Ints) -> Ints:
    lowest = np.arange(num_ranks)
    while True:
        before = lowest.copy()
        np.minimum.at(lowest, src, before[dst])
        np.minimum.at(lowest, dst, lowest[src])
        lowest = lowest[lowest]
        if np.array_equal(lowest, before):
            return lowest


@dataclass(frozen=True, slots=True, eq=False)
class Overlay:
    """Some links and the rate of each: (num_links,), bytes per second."""

    links: Links
    bytes_per_s: Floats

    @classmethod
    def of(cls, links: Links, busy: Floats | None = None) -> Self:
        """Return the links with max-min fair shares. busy: (num_resources,), the fraction of each that others use."""
        room = np.ones(len(links.names)) if busy is None else np.maximum(1 - busy, LEAST_SHARE)
        is_used = links.resource != NONE
        resource, use = np.where(is_used, links.resource, len(room)), np.where(is_used, links.s_per_byte, 0.0)
        most = 1 / np.maximum(links.alone_s_per_byte, NO_TIME)
        return cls(links, fair_rates(resource.T, use.T, most, np.append(room, np.inf)))

    def reversed(self) -> "Overlay":
        return Overlay(self.links.reversed(), self.bytes_per_s)


def overlays(links: Links, islands: list[Ints]) -> Iterator[Overlay]:
    """Yield different overlays, those with few links first.

    Each rank of an innermost island is joined to the ranks at some offsets, and each island, rank by rank, to islands
    within the same outer island.
    """
    levels = [np.arange(links.num_ranks), *islands, np.zeros(links.num_ranks, dtype=np.int64)]
    seen: set[bytes] = set()
    used = links.resource[links.resource != NONE]
    if len(np.unique(used)) == len(used):  # no links have a resource in common
        yield Overlay.of(links)
        return
    rows = np.full((links.num_ranks, links.num_ranks), NONE)
    rows[links.src, links.dst] = np.arange(len(links.src))
    choices = [_ways_to_join(inner, outer, rows != NONE) for inner, outer in pairwise(levels)]
    for ways in islice(product(*choices), MAX_COMBINATIONS):
        row = np.sort(rows[np.logical_or.reduce(ways)])
        if row.tobytes() in seen or len(row) > MAX_LINKS_OF_RANK * links.num_ranks:
            continue
        seen.add(row.tobytes())
        mask = np.zeros(len(links.src), dtype=np.bool_)
        mask[row] = True
        yield Overlay.of(links.rows(mask))
    if len(links.src) <= MAX_LINKS_OF_RANK * links.num_ranks and np.arange(len(links.src)).tobytes() not in seen:
        yield Overlay.of(links)


_OFFSETS = ((1,), (1, -1), (1, 2, -1, -2), (1, 2, 4, 8, 16, 32), None)  # how many places further on; None: all


def _ways_to_join(inner: Ints, outer: Ints, is_linked: Bools) -> list[Bools]:
    ways = [_joined(inner, outer, offsets) & is_linked for offsets in _OFFSETS]
    return list({way.tobytes(): way for way in ways}.values())


def _joined(inner: Ints, outer: Ints, offsets: tuple[int, ...] | None) -> Bools:
    joined = np.zeros((len(inner), len(inner)), dtype=np.bool_)
    for island in np.unique(outer):
        members = [np.flatnonzero((inner == part) & (outer == island)) for part in np.unique(inner[outer == island])]
        count = len(members)
        further = range(1, count) if offsets is None else {offset % count for offset in offsets} - {0}
        for place, offset in product(range(count), further):
            first, second = members[place], members[(place + offset) % count]
            width = np.arange(max(len(first), len(second)))
            joined[first[width % len(first)], second[width % len(second)]] = True
    return joined


TOLERANCE = 0.1  # of the median time of a message: events within it count as simultaneous


class NotConnectedError(Exception):
    """The links do not lead every chunk to every rank."""


class MatchedCopies(NamedTuple):
    """The copies of chunks by their starts, (num_copies,) each. link: its row among the links."""

    link: Ints
    chunk: Ints
    start_s: Floats
    end_s: Floats


class ChunkMatching:
    """A search for the link and the time of every copy until all ranks have all chunks.

    islands: see `islands_of`. held: (num_ranks, num_chunks), whether a rank has a chunk at the start. rng: for equally
    good copies.
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
        """Return all copies. Raises NotConnectedError if the links do not lead to all ranks."""
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
        return self._now_s + self._tolerance_s

    def _match(self) -> None:
        receivers = np.unique(self._links.dst[self._free_s <= self._soon_s])
        receivers = receivers[~self._here_or_coming[receivers].all(axis=1)]
        while len(receivers):
            self._rng.shuffle(receivers)
            receivers = np.array([rank for rank in receivers.tolist() if self._take(rank)], dtype=np.int64)

    def _take(self, rank: int) -> bool:
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
        if len(offers) > 1:  # prefer the link that is done first, then the link with the fewest useful chunks
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
    in_island = np.zeros_like(held)
    np.logical_or.at(in_island, island, held)
    return in_island
