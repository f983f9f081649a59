"""`trees_of`: the trees along which a run sends, if it does, and `tree_places`: where their ranks are drawn."""

import math
from collections import defaultdict

import numpy as np
import numpy.typing as npt

from ringsim.schedule import Ints
from ringsim.simulation import Timeline

Edges = Ints  # (num_edges, 2): the two ranks of each
Places = npt.NDArray[np.float64]  # (num_ranks, 2): x and y

_MAX_TREES = 2
_MOST_LEVELS = 2.0  # times the base-2 logarithm of the number of ranks: a chain is no tree to look at


def edges_of(timeline: Timeline) -> Edges:
    """Returns the pairs that send, (num_pairs, 2): sender and receiver."""
    return np.unique(np.column_stack([timeline.src, timeline.dst]).astype(np.int64), axis=0)


def trees_of(timeline: Timeline) -> list[Edges]:
    """Returns the edges of one tree or two, if all chunks are sent along one of them; else nothing."""
    pairs = np.sort(np.column_stack([timeline.src, timeline.dst]).astype(np.int64), axis=1)
    key = pairs[:, 0] * timeline.num_ranks + pairs[:, 1]
    used = np.unique(np.column_stack([timeline.chunk.astype(np.int64), key]), axis=0)
    kinds: dict[bytes, Edges] = {}
    for chunk in np.unique(used[:, 0]).tolist():
        keys = used[used[:, 0] == chunk, 1]
        kinds.setdefault(keys.tobytes(), np.column_stack(np.divmod(keys, timeline.num_ranks)))
        if len(kinds) > _MAX_TREES:
            return []
    trees = list(kinds.values())
    return trees if trees and all(_is_tree(edges, timeline.num_ranks) for edges in trees) else []


def _is_tree(edges: Edges, num_ranks: int) -> bool:
    """Whether it reaches all ranks without a cycle, is neither a star nor a chain."""
    levels = _levels(edges)
    if len(edges) != num_ranks - 1 or len(levels) != num_ranks:
        return False
    return 2 <= max(levels.values()) <= _MOST_LEVELS * math.log2(num_ranks)


def _levels(edges: Edges) -> dict[int, int]:
    """How far each rank is from rank 0, of those that can be reached."""
    neighbours = _neighbours(edges)
    levels, front = {0: 0}, [0]
    while front:
        reached = {near: levels[rank] + 1 for rank in front for near in neighbours[rank] if near not in levels}
        levels |= reached
        front = list(reached)
    return levels


def _neighbours(edges: Edges) -> dict[int, list[int]]:
    neighbours: dict[int, list[int]] = defaultdict(list)
    for one, other in edges.tolist():
        neighbours[one].append(other)
        neighbours[other].append(one)
    return neighbours


def tree_places(edges: Edges, num_ranks: int) -> dict[int, tuple[float, float]]:
    """Returns x (0 to 1) and y (0 for the root, rank 0, to -1) of every rank: leaves side by side, parents between."""
    levels, neighbours = _levels(edges), _neighbours(edges)
    below = {rank: sorted(near for near in neighbours[rank] if levels[near] > levels[rank]) for rank in levels}
    leaves = sum(not ranks for ranks in below.values())
    x: dict[int, float] = {}
    for rank in _leaves_first(below):
        children = below[rank]
        x[rank] = sum(x[child] for child in children) / len(children) if children else len(
            [done for done in x if not below[done]]) / max(leaves - 1, 1)  # fmt: skip
    depth = max(levels.values())
    return {rank: (x[rank], -levels[rank] / depth) for rank in range(num_ranks)}


def _leaves_first(below: dict[int, list[int]]) -> list[int]:
    """Every rank after all that hang below it, from left to right."""
    order: list[int] = []
    stack = [(0, False)]
    while stack:
        rank, is_done = stack.pop()
        if is_done or not below[rank]:
            order.append(rank)
        else:
            stack += [(rank, True), *((child, False) for child in reversed(below[rank]))]
    return order
