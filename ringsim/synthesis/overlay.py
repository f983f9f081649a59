"""Islands and overlays of links.

Islands are sets of ranks joined by links that cost less than those between the sets, such as hosts and racks. An
overlay is a few of the links, each with a share of what it uses that no other takes.

A schedule has no clock: where a rank may receive from many others, their messages meet at its port, one is late, and
then all are. So on networks with ports and switches each rank sends to a few others only, which are the same all the
time; then the shares that max-min fairness gives these links are what a search may count on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise, product
from typing import Self

import numpy as np

from ringsim.analysis import Links
from ringsim.network import NONE, Floats, Ints
from ringsim.schedule import Bools

MAX_LINKS_OF_RANK = 64  # of an overlay that has all links
MAX_COMBINATIONS = 1000  # of patterns, of which many have the same links
LEAST_SHARE = 0.02  # of a resource, that is left to what uses it beside something else
DEARER = 1.5  # times as much, from which on a link leads to another island
FULL = 1 - 1e-9  # of a resource, from which on it is used up


def islands_of(links: Links) -> list[Ints]:
    """Return for each level of the network, such as hosts and racks, the island of each rank, (num_ranks,).

    A level ends where links cost `DEARER` times as much as the next cheaper ones, and its islands are the ranks that
    the cheaper ones connect. The cost of a link is the seconds that a byte takes on it if all ranks that share it send
    at once: a NIC of eight ranks costs eight times as much as a link of the same bandwidth between two of them. Levels
    are left out whose islands have one rank each, or all ranks. An island has the number of its lowest rank.
    """
    sharing = np.append(np.minimum(*links.spread()), 0)[links.resource]
    prices = np.maximum((links.s_per_byte * sharing).max(axis=1, initial=0.0), links.alone_s_per_byte)
    steps = np.unique(prices)
    last_of_step = steps[:-1][steps[1:] > DEARER * steps[:-1]]
    levels: list[Ints] = []
    for price in last_of_step.tolist():
        island = _connected(links.num_ranks, links.src[prices <= price], links.dst[prices <= price])
        if 1 < len(np.unique(island)) < links.num_ranks and not any(np.array_equal(island, one) for one in levels):
            levels.append(island)
    return levels


def is_connected(links: Links) -> bool:
    """Return whether each rank can be reached from each other one."""
    forward, backward = (_reached(links.num_ranks, *ends) for ends in ((links.src, links.dst), (links.dst, links.src)))
    return bool(forward.all() and backward.all())


def _reached(num_ranks: int, src: Ints, dst: Ints) -> Bools:
    """Return which ranks can be reached from rank 0, (num_ranks,)."""
    reached: Bools = np.arange(num_ranks) == 0
    while (new := reached[src] & ~reached[dst]).any():
        reached[dst[new]] = True
    return reached


def _connected(num_ranks: int, src: Ints, dst: Ints) -> Ints:
    """Return for each rank the lowest rank to which links lead it, whatever their direction."""
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
    """Some links and the rate of each: (num_links,), bytes a second."""

    links: Links
    bytes_per_s: Floats

    @classmethod
    def of(cls, links: Links, busy: Floats | None = None) -> Self:
        """Return the links with max-min fair shares. busy: (num_resources,), the part of each that others use."""
        room = np.ones(len(links.names)) if busy is None else np.maximum(1 - busy, LEAST_SHARE)
        return cls(links, _fair_shares(links, room))

    def reversed(self) -> "Overlay":
        """Return the same, whose links lead the other way."""
        return Overlay(self.links.reversed(), self.bytes_per_s)


def overlays(links: Links, islands: list[Ints]) -> Iterator[Overlay]:
    """Yield overlays, those with few links first; none twice.

    Within the innermost islands each rank is joined to those a few places further on, and likewise each island, rank by
    rank in its order, to the islands a few places further on within the one around both.
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
    """Return which pairs of ranks are joined for each of `_OFFSETS`, as `_joined`, if they are linked; none twice."""
    ways = [_joined(inner, outer, offsets) & is_linked for offsets in _OFFSETS]
    return list({way.tobytes(): way for way in ways}.values())


def _joined(inner: Ints, outer: Ints, offsets: tuple[int, ...] | None) -> Bools:
    """Return which pairs of ranks are joined, (num_ranks, num_ranks): those of inner islands of one outer island."""
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


def _fair_shares(links: Links, room: Floats) -> Floats:
    """Return the rates that progressive filling gives (max-min fair), (num_links,). room: of each resource."""
    rate, is_growing = np.zeros(len(links.src)), np.ones(len(links.src), dtype=np.bool_)
    used = links.resource != NONE
    most = 1 / np.maximum(links.alone_s_per_byte, _NO_TIME)
    left = np.append(room, np.inf)
    while is_growing.any():
        load = np.zeros(len(left))
        growing = used & is_growing[:, None]
        np.add.at(load, links.resource[growing], links.s_per_byte[growing])
        with np.errstate(divide="ignore", invalid="ignore"):
            until = np.where(load > 0, left / load, np.inf)
        step = min(float(until.min()), float((most - rate)[is_growing].min()))
        rate[is_growing] += step
        left -= load * step
        is_full = (load > 0) & (left <= (1 - FULL) * np.append(room, 1.0))
        at_limit = rate >= most * FULL
        is_growing &= ~at_limit & ~(used & is_full[links.resource]).any(axis=1)
    return rate


_NO_TIME = 1e-30  # seconds a byte, where nothing limits a link
