"""Islands: sets of ranks joined by links that cost less than those between the sets, such as hosts and racks."""

import numpy as np

from ringsim.analysis import Links
from ringsim.network import Floats, Ints
from ringsim.schedule import Bools

DEARER = 1.5  # times as much, from which on a link leads to another island


def link_prices(links: Links) -> Floats:
    """Return the seconds a byte that as many ranks as share the link's scarcest resource need of it: (num_links,).

    A NIC that eight ranks share is eight times as dear as a link of the same bandwidth between two of them.
    """
    num_src, num_dst = links.spread()
    sharing = np.append(np.minimum(num_src, num_dst), 0)[links.resource]
    shared: Floats = (links.s_per_byte * sharing).max(axis=1, initial=0.0)
    return np.maximum(shared, links.alone_s_per_byte)


def islands_of(links: Links) -> list[Ints]:
    """Return the island of each rank, (num_ranks,), for each price that is clearly above the next lower one.

    Those of one rank each, and those of all ranks, are left out.
    """
    prices = link_prices(links)
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
