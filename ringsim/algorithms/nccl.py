"""NCCL's algorithms for hosts with several NICs: its rings, its trees, and NVLS, its reduction in the switch of a host.

Ranks are counted host by host, m on each of h hosts, and every rank is taken to have its own NIC. NCCL calls the
NICs in the same place of all hosts a *rail*. Both its rings and its trees use every rail: there are m of them side by
side, each on its own channels and for its share of the data.
"""

from collections.abc import Sequence

import numpy as np

from ringsim.algorithms.chain import chain
from ringsim.algorithms.direct import direct_broadcast, direct_reduce
from ringsim.algorithms.hierarchical import split_into_hosts
from ringsim.algorithms.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from ringsim.algorithms.tree import binary_trees
from ringsim.schedule import Collective, Ints, Schedule, merge, on_channel, on_groups, permute_ranks, pipeline, then

SEGMENT_BYTES = 2**16
NVLS_SEGMENTS = 32


def nccl_ring_all_reduce(num_ranks: int, ranks_per_host: int | None = None) -> Schedule:
    """NCCL's rings: m at once, each on 1/m of the data and its own rails; 2(n - 1) steps each, 2(n - 1)/n sent.

    Every ring goes through all ranks of a host before it leaves it (see `rail_orders`). So a NIC carries all that one
    ring sends from host to host, and the link of a rank within its host (m - 1)/m of what the rank sends.

    ranks_per_host: by default the largest divisor of `num_ranks` up to 8.

    Raises ValueError if the ranks do not fill their hosts.
    """
    return _along_rails(ring_all_reduce(num_ranks), ranks_per_host)


def nccl_ring_reduce_scatter(num_ranks: int, ranks_per_host: int | None = None) -> Schedule:
    """Return the first half of the all-reduce of that name: n - 1 steps a ring, (n - 1)/n of the data sent."""
    return _along_rails(ring_reduce_scatter(num_ranks), ranks_per_host)


def nccl_ring_all_gather(num_ranks: int, ranks_per_host: int | None = None) -> Schedule:
    """Return the second half of the all-reduce of that name: n - 1 steps a ring, (n - 1)/n of the data sent."""
    return _along_rails(ring_all_gather(num_ranks), ranks_per_host)


def rail_orders(num_hosts: int, ranks_per_host: int) -> Ints:
    """(ranks_per_host, num_hosts * ranks_per_host): the order in which each of NCCL's rings goes through all ranks.

    On two hosts of 4 the first two rings are 0 3 2 1 | 5 6 7 4 and 1 2 3 0 | 4 7 6 5: the first enters host 0 on rail 0
    and leaves it on rail 1, on which it enters host 1. The second goes the other way on the same two rails. In every
    second host a ring takes the way of its neighbour, so that it never changes rails from host to host (ncclTopoPostset
    in src/graph/connect.cc, "Alternate rings to avoid crossing rails"; such channels are printed in
    github.com/NVIDIA/nccl/issues/1671). With an odd number of ranks on a host all rings go the same way round in all
    hosts, and change rails. Either way each NIC has one ring that enters by it, and one that leaves by it.
    """
    place = np.arange(ranks_per_host)
    ways = np.array([
        (ring + place) % ranks_per_host if ring % 2 and ranks_per_host % 2 == 0 else (ring - place) % ranks_per_host
        for ring in range(ranks_per_host)
    ])  # fmt: skip
    neighbour = place ^ 1 if ranks_per_host % 2 == 0 else place
    hosts = [ways[neighbour if host % 2 else place] + host * ranks_per_host for host in range(num_hosts)]
    return np.concatenate(hosts, axis=1)


def nccl_tree_all_reduce(num_ranks: int, segments: int | None = None, ranks_per_host: int | None = None) -> Schedule:
    """NCCL's trees: on each rail two binary trees over the hosts, in which a chain joins the ranks of each host.

    A segment goes along the chain of every host to the rank on the rail, up a tree over these, and back the same way:
    2(m - 1) + 2 ceil(log2(h)) hops. NCCL since 2.4 (the double binary tree of Sanders, Speck and Traeff 2009).

    segments: of each of the 2 m trees; by default 4 for each hop from the furthest rank to the root, as of the
    double binary tree. ranks_per_host: as of `nccl_ring_all_reduce`.

    Raises ValueError if the ranks do not fill their hosts.
    """
    num_hosts, size = split_into_hosts(num_ranks, ranks_per_host)
    depth = size - 1 + (num_hosts - 1).bit_length()
    count = max(1, 4 * depth) if segments is None else segments
    halves = chain(Collective.REDUCE, size), chain(Collective.BROADCAST, size)
    return _on_rails(halves, binary_trees(Collective.ALL_REDUCE, num_hosts), count, "nccl_tree")


def nccl_tree_segments(num_ranks: int, size_bytes: int, ranks_per_host: int | None = None) -> int:
    """Into how many segments `nccl_tree` cuts the share of each tree: of 64 KiB, but no more than its default.

    A few bytes are one segment, as several would only be more messages. NCCL cuts by the size of its buffers and by a
    number of steps that grows with the data (src/enqueue.cc).
    """
    num_hosts, size = split_into_hosts(num_ranks, ranks_per_host)
    most = max(1, 4 * (size - 1 + (num_hosts - 1).bit_length()))
    return max(1, min(most, -(-size_bytes // (2 * size * SEGMENT_BYTES))))


def nvls_all_reduce(num_ranks: int, segments: int | None = None, ranks_per_host: int | None = None) -> Schedule:
    """NVLS, and on several hosts NCCL's NVLSTree: two-shot within each host, and on every rail two trees in between.

    The owner of a share reads the sum of the shares of its host from the switch, and writes the result to all ranks of
    its host at once. Where the switch of a network adds up and copies, the messages that are added to one share are one
    on the way to its owner, and the copies of it are one on the way from it (see `InSwitch`), so that a link carries
    (1 + 1/m) of the data in each direction. Elsewhere it is a two-shot, (m - 1)/m of the data there and back. While one
    segment is spread, the next is reduced: 2 + 2 ceil(log2(h)) + k - 1 steps for each of two trees on each of m rails,
    and k + 1 for each rail on one host.

    segments: of the share of each rank in a tree; by default 32, so that filling and emptying the pipeline takes a
    small part of the time. ranks_per_host: as of `nccl_ring_all_reduce`.

    Raises ValueError if the ranks do not fill their hosts.
    """
    num_hosts, size = split_into_hosts(num_ranks, ranks_per_host)
    trees = binary_trees(Collective.ALL_REDUCE, num_hosts)[: 2 if num_hosts > 1 else 1]
    count = NVLS_SEGMENTS if segments is None else segments
    return _on_rails((direct_reduce(size), direct_broadcast(size)), trees, count, "nvls")


def nvls_segments(num_ranks: int, size_bytes: int, ranks_per_host: int | None = None) -> int:
    """Into how many segments `nvls` cuts the share of a rank in a tree: of 64 KiB, but no more than its default."""
    num_hosts, size = split_into_hosts(num_ranks, ranks_per_host)
    num_shares = size * (2 if num_hosts > 1 else 1)
    return max(1, min(NVLS_SEGMENTS, -(-size_bytes // (num_shares * SEGMENT_BYTES))))


def _along_rails(ring: Schedule, ranks_per_host: int | None) -> Schedule:
    orders = rail_orders(*split_into_hosts(ring.num_ranks, ranks_per_host))
    return merge(*(permute_ranks(ring, order) for order in orders), algorithm="nccl_ring")


def _on_rails(halves: tuple[Schedule, Schedule], trees: Sequence[Schedule], segments: int, algorithm: str) -> Schedule:
    """Return, on each rail, each of the trees over the hosts, between the two halves within all hosts.

    halves: the reduction to the first rank of a host, and the broadcast from it.
    """
    num_hosts, size = trees[0].num_ranks, halves[0].num_ranks
    host, place = np.arange(num_hosts)[:, None] * size, np.arange(size)
    first_rail = [pipeline(_across_hosts(halves, tree, host + place, algorithm), segments) for tree in trees]
    rails = [(host + (place + rail) % size).ravel() for rail in range(size)]
    return merge(*(permute_ranks(one, rail) for one in first_rail for rail in rails), algorithm=algorithm)


def _across_hosts(halves: tuple[Schedule, Schedule], tree: Schedule, hosts: Ints, algorithm: str) -> Schedule:
    """All segments in one: to the first rank of each host, along a tree between these, and from them to all."""
    num_ranks, collective = hosts.size, Collective.ALL_REDUCE
    across = on_groups(tree, hosts[:, :1].T, num_ranks, 1, collective)
    up, down = (
        on_channel(on_groups(half, hosts, num_ranks, 1, half.collective), channel)
        for half, channel in zip(halves, (3, 4), strict=True)  # the tree has 0 to 2
    )
    return then(then(up, across, collective, algorithm), down, collective, algorithm)
