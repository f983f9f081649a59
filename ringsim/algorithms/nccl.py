"""NCCL's algorithms for hosts with several NICs: its rings, its trees, and NVLS, its reduction in the switch of a host.

Ranks are counted host by host, m on each of h hosts, and every rank has its own NIC. The NICs in the same place of all
hosts are a *rail*, with its own ring or trees, channels and share of the data. If hosts have different numbers of
ranks, m is the smallest (`initTransportsRank`, src/init.cc), and each ring or tree still goes through all ranks.

ranks_per_host, of all functions: a number for all hosts, of which the last has the rest; or a list, one per host; by
default 8.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from ringsim.algorithms.direct import direct_broadcast, direct_reduce
from ringsim.algorithms.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from ringsim.algorithms.rings import chain
from ringsim.algorithms.tree import binary_trees
from ringsim.schedule import Collective, Ints, Schedule, merge, on_channel, on_groups, permute_ranks, pipeline, then

SEGMENT_BYTES = 2**16
NVLS_SEGMENTS = 32
RANKS_PER_HOST = 8  # GPUs of a DGX or HGX host
RanksPerHost = int | Sequence[int] | None


def fill_hosts(num_ranks: int, ranks_per_host: RanksPerHost = None) -> list[int]:
    """Return the number of ranks of each host.

    Raises ValueError for a list that does not sum to `num_ranks`, or a host without ranks.

    >>> fill_hosts(20)
    [8, 8, 4]
    """
    if ranks_per_host is None:
        ranks_per_host = RANKS_PER_HOST
    if isinstance(ranks_per_host, Sequence):
        if sum(ranks_per_host) != num_ranks or min(ranks_per_host) < 1:
            raise ValueError(f"ranks_per_host {list(ranks_per_host)}: must be {num_ranks} ranks, at least 1 on each")
        return list(ranks_per_host)
    if ranks_per_host < 1:
        raise ValueError(f"ranks_per_host {ranks_per_host}: must be at least 1")
    full, left = divmod(num_ranks, ranks_per_host)
    return [ranks_per_host] * full + [left] * (left > 0)


def nccl_ring_all_reduce(num_ranks: int, ranks_per_host: RanksPerHost = None) -> Schedule:
    """NCCL's rings: m at once, each over its own rails with 1/m of the data; 2(n - 1) steps each.

    See `rail_orders`.
    """
    return _along_rails(ring_all_reduce(num_ranks), ranks_per_host)


def nccl_ring_reduce_scatter(num_ranks: int, ranks_per_host: RanksPerHost = None) -> Schedule:
    """NCCL's ring reduce-scatters: m at once, each over its own rails; n - 1 steps a ring."""
    return _along_rails(ring_reduce_scatter(num_ranks), ranks_per_host)


def nccl_ring_all_gather(num_ranks: int, ranks_per_host: RanksPerHost = None) -> Schedule:
    """NCCL's ring all-gathers: m at once, each over its own rails; n - 1 steps a ring."""
    return _along_rails(ring_all_gather(num_ranks), ranks_per_host)


def rail_orders(hosts: Sequence[int]) -> Ints:
    """Return the order in which each of NCCL's rings goes through all ranks of these hosts, (m, num_ranks).

    On two hosts of 4 the first two are 0 3 2 1 | 5 6 7 4, which changes hosts on rail 1, and 1 2 3 0 | 4 7 6 5, which
    uses the same rails the other way. In every second host a ring takes the path of its neighbour, and therefore never
    changes rails between hosts (ncclTopoPostset in src/graph/connect.cc; printed in
    github.com/NVIDIA/nccl/issues/1671). An odd number of rings all go the same way round and change rails.
    """
    rings, first = min(hosts), np.cumsum([0, *hosts]).tolist()
    is_even = rings % 2 == 0
    ways = {
        size: [(ring + (1 if is_even and ring % 2 else -1) * np.arange(size)) % size for ring in range(rings)]
        for size in set(hosts)
    }
    return np.array([
        np.concatenate([first[host] + ways[size][ring ^ (is_even and host % 2)] for host, size in enumerate(hosts)])
        for ring in range(rings)
    ])  # fmt: skip


def nccl_tree_all_reduce(num_ranks: int, segments: int | None = None, ranks_per_host: RanksPerHost = None) -> Schedule:
    """NCCL's trees: two binary trees over the hosts on each rail, and a chain over the ranks of each host.

    A segment goes along the chain of each host to the rank on the rail, up a tree over these ranks, and back: 2(m - 1)
    + 2 ceil(log2(h)) hops.

    segments: of each of the 2 m trees; by default 4 per hop from the furthest rank to the root.
    """
    hosts = fill_hosts(num_ranks, ranks_per_host)
    count = _tree_segments(hosts) if segments is None else segments
    return _on_rails(chain, binary_trees(Collective.ALL_REDUCE, len(hosts)), hosts, count, "nccl_tree")


def _tree_segments(hosts: Sequence[int]) -> int:
    return max(1, 4 * (max(hosts) - 1 + (len(hosts) - 1).bit_length()))


def nccl_tree_segments(num_ranks: int, size_bytes: int, ranks_per_host: RanksPerHost = None) -> int:
    """Return the number of segments of the share of each tree: of 64 KiB, but at most the default.

    NCCL cuts by its buffers (src/enqueue.cc).
    """
    hosts = fill_hosts(num_ranks, ranks_per_host)
    return max(1, min(_tree_segments(hosts), -(-size_bytes // (2 * min(hosts) * SEGMENT_BYTES))))


def nvls_all_reduce(num_ranks: int, segments: int | None = None, ranks_per_host: RanksPerHost = None) -> Schedule:
    """NCCL's NVLS: two-shot within each host, and between hosts (NVLSTree) two trees on every rail.

    The owner of a share reads its sum from the switch, and writes the result to all ranks of its host at once. If the
    switch adds and copies (see `InSwitch`), a link carries (1 + 1/m) of the data in each direction; otherwise (m - 1)/m
    in each phase.

    segments: of the share of each rank in a tree; by default 32.
    """
    hosts = fill_hosts(num_ranks, ranks_per_host)
    trees = binary_trees(Collective.ALL_REDUCE, len(hosts))[: 2 if len(hosts) > 1 else 1]
    count = NVLS_SEGMENTS if segments is None else segments
    return _on_rails(_straight, trees, hosts, count, "nvls")


def nvls_segments(num_ranks: int, size_bytes: int, ranks_per_host: RanksPerHost = None) -> int:
    """Return the number of segments of a rank's share in a tree: of 64 KiB, but at most the default."""
    hosts = fill_hosts(num_ranks, ranks_per_host)
    num_shares = min(hosts) * (2 if len(hosts) > 1 else 1)
    return max(1, min(NVLS_SEGMENTS, -(-size_bytes // (num_shares * SEGMENT_BYTES))))


def _along_rails(ring: Schedule, ranks_per_host: RanksPerHost) -> Schedule:
    orders = rail_orders(fill_hosts(ring.num_ranks, ranks_per_host))
    return merge(*(permute_ranks(ring, order) for order in orders), algorithm="nccl_ring")


_Half = Callable[[Collective, int], Schedule]  # to the first rank of a host of some size, or from it


def _straight(collective: Collective, size: int) -> Schedule:
    return direct_reduce(size) if collective is Collective.REDUCE else direct_broadcast(size)


def _on_rails(half: _Half, trees: Sequence[Schedule], hosts: Sequence[int], segments: int, algorithm: str) -> Schedule:
    first_rail = [pipeline(_across_hosts(half, tree, hosts, algorithm), segments) for tree in trees]
    places = list(zip(_first_ranks(hosts), hosts, strict=True))
    rails = [
        np.concatenate([first + (np.arange(size) + rail) % size for first, size in places])
        for rail in range(min(hosts))
    ]  # fmt: skip
    return merge(*(permute_ranks(one, rail) for one in first_rail for rail in rails), algorithm=algorithm)


def _first_ranks(hosts: Sequence[int]) -> Ints:
    return np.cumsum([0, *hosts[:-1]])


def _across_hosts(half: _Half, tree: Schedule, hosts: Sequence[int], algorithm: str) -> Schedule:
    """Send one segment to the first rank of each host, along a tree over these, and back to all ranks."""
    first, num_ranks = _first_ranks(hosts), sum(hosts)

    def within(collective: Collective, channel: int) -> Schedule:
        groups = {size: first[np.equal(hosts, size), None] + np.arange(size) for size in sorted(set(hosts))}
        parts = [on_groups(half(collective, size), ranks, num_ranks, 1, collective) for size, ranks in groups.items()]
        return on_channel(reduce(lambda done, part: then(done, part, collective, algorithm), parts), channel)

    across = on_groups(tree, first[None], num_ranks, 1, Collective.ALL_REDUCE)  # on the channels 0 to 2
    up = then(within(Collective.REDUCE, 3), across, Collective.ALL_REDUCE, algorithm)
    return then(up, within(Collective.BROADCAST, 4), Collective.ALL_REDUCE, algorithm)
