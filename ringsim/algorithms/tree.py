"""Trees with rank 0 as their root: binomial, and two binary ones on a half of the data each.

The double binary tree (Sanders et al. 2009; NCCL since 2.4) has two trees over the ranks 1 to n - 1. A rank that
forwards in one is a leaf in the other; rank 0 feeds both. For n = 8:

    first half        0              second half        0
                      4                                 5
                  2       6                         3       7
                1   3   5   7                     2   4   6   1

The first tree is numbered from left to right. The second is shifted by one rank or, if the number of ranks below rank 0
is even, mirrored.
"""

import numpy as np

from ringsim.schedule import Collective, Columns, Ints, Schedule, merge, pipeline, then


def binomial_tree_broadcast(num_ranks: int) -> Schedule:
    """Send from all ranks that have the data, twice as many in each step: ceil(log2(n)) steps."""
    distances = reversed(_distances(num_ranks))
    steps: list[Columns] = [(rank, rank + distance, 0, False) for distance, rank in distances]
    return Schedule.from_columns(Collective.BROADCAST, "binomial_tree", num_ranks, 1, steps)


def binomial_tree_reduce(num_ranks: int) -> Schedule:
    """Add up in pairs of ranks until rank 0 has the sum: ceil(log2(n)) steps."""
    steps: list[Columns] = [(rank + distance, rank, 0, True) for distance, rank in _distances(num_ranks)]
    return Schedule.from_columns(Collective.REDUCE, "binomial_tree", num_ranks, 1, steps)


def binomial_tree_all_reduce(num_ranks: int) -> Schedule:
    """Binomial-tree reduce to rank 0, then broadcast: 2 ceil(log2(n)) steps."""
    halves = binomial_tree_reduce(num_ranks), binomial_tree_broadcast(num_ranks)
    return then(*halves, Collective.ALL_REDUCE, "binomial_tree")


def binomial_tree_gather(num_ranks: int) -> Schedule:
    """Collect shares in pairs of ranks until rank 0 has all: ceil(log2(n)) steps."""
    steps: list[Columns] = [(src, dst, share, False) for dst, src, share in _subtrees(num_ranks)]
    return Schedule.from_columns(Collective.GATHER, "binomial_tree", num_ranks, num_ranks, steps)


def binomial_tree_scatter(num_ranks: int) -> Schedule:
    """Hand on half of the shares in each step, from rank 0: ceil(log2(n)) steps."""
    steps: list[Columns] = [(dst, src, share, False) for dst, src, share in reversed(_subtrees(num_ranks))]
    return Schedule.from_columns(Collective.SCATTER, "binomial_tree", num_ranks, num_ranks, steps)


def double_binary_tree_broadcast(num_ranks: int, segments: int | None = None) -> Schedule:
    """Send half of the data down each of two binary trees, in k segments: up to ceil(log2(n)) + k - 1 steps a tree.

    segments: by default 4 per level of the tree.
    """
    return _double(Collective.BROADCAST, num_ranks, segments)


def double_binary_tree_reduce(num_ranks: int, segments: int | None = None) -> Schedule:
    """Add up half of the data along each of two binary trees: as many steps as in the broadcast."""
    return _double(Collective.REDUCE, num_ranks, segments)


def double_binary_tree_all_reduce(num_ranks: int, segments: int | None = None) -> Schedule:
    """Two binary trees, half the data up and down each, in k segments: up to 2 ceil(log2(n)) + k - 1 steps a tree."""
    return _double(Collective.ALL_REDUCE, num_ranks, segments)


def _distances(num_ranks: int) -> list[tuple[int, Ints]]:
    """Return the distances 1, 2, 4, ... in a binomial tree, and the receivers over each in a reduction."""
    distances = [1 << bit for bit in range((num_ranks - 1).bit_length())]
    return [(distance, np.arange(0, num_ranks - distance, 2 * distance)) for distance in distances]


def _subtrees(num_ranks: int) -> list[tuple[Ints, ...]]:
    """Return for each distance all parents, their children, and the shares below each child."""
    levels = []
    for distance, parent in _distances(num_ranks):
        child = (parent + distance)[:, np.newaxis]
        share = child + np.arange(distance)
        exists = share < num_ranks
        columns = np.broadcast_arrays(child - distance, child, share)
        levels.append(tuple(column[exists] for column in columns))
    return levels


def binary_trees(collective: Collective, num_ranks: int) -> tuple[Schedule, Schedule]:
    """Return the two trees over all ranks, each for the whole data."""
    below_root = np.arange(1, num_ranks)
    second = np.roll(below_root, -1) if num_ranks % 2 == 0 else below_root[::-1]
    return _binary_tree(collective, below_root), _binary_tree(collective, second)


def _double(collective: Collective, num_ranks: int, segments: int | None) -> Schedule:
    depth = (num_ranks - 1).bit_length()
    count = max(1, 4 * depth) if segments is None else segments
    return merge(*(pipeline(tree, count) for tree in binary_trees(collective, num_ranks)))


def _binary_tree(collective: Collective, ranks: Ints) -> Schedule:
    """Return a tree over rank 0 and, in order from left to right below it, `ranks`.

    A rank has a channel for its parent and for each child: a segment goes to both children at once.
    """
    rank = np.append(0, ranks)
    parent = _parents(len(ranks))
    depth = np.zeros(len(rank), dtype=np.int64)
    above = np.arange(len(rank))
    while above.any():
        depth += above != 0
        above = parent[above]
    levels = [np.flatnonzero(depth == level) for level in range(1, depth.max() + 1)]
    is_right = (np.arange(len(rank)) > parent).astype(np.int64)
    up: list[Columns] = [(rank[level], rank[parent[level]], 0, True, 0) for level in reversed(levels)]
    down: list[Columns] = [(rank[parent[level]], rank[level], 0, False, 1 + is_right[level]) for level in levels]
    steps = {Collective.REDUCE: up, Collective.BROADCAST: down, Collective.ALL_REDUCE: up + down}
    return Schedule.from_columns(collective, "double_binary_tree", len(rank), 1, steps[collective])


def _parents(num_nodes: int) -> Ints:
    """Return the parent of each node of a binary tree over 1 to `num_nodes`, numbered in order; 0 above the root.

    The lowest bit of a node's number is its height. The nearest existing ancestor replaces a parent beyond the last
    node.
    """
    node = np.arange(num_nodes + 1)
    low = node & -node
    parent = (node ^ low) | (low << 1)
    return np.where(parent <= num_nodes, parent, node ^ low)
