"""`ALGORITHMS`: all built-in algorithms, by collective and name."""

from collections.abc import Callable

from ringsim.algorithms import all_to_all, direct, hierarchical, nccl, recursive, ring, rings, tree
from ringsim.schedule import Collective, Schedule

Algorithm = Callable[..., Schedule]  # given the number of ranks; TWO_LEVEL also ranks_per_host, by name

ALGORITHMS: dict[tuple[Collective, str], Algorithm] = {
    (Collective.ALL_REDUCE, "ring"): ring.ring_all_reduce,
    (Collective.ALL_REDUCE, "gloo_ring"): rings.gloo_ring_all_reduce,
    (Collective.ALL_REDUCE, "bidirectional_ring"): rings.bidirectional_ring_all_reduce,
    (Collective.ALL_REDUCE, "multi_ring"): rings.multi_ring_all_reduce,
    (Collective.ALL_REDUCE, "recursive_doubling"): recursive.recursive_doubling_all_reduce,
    (Collective.ALL_REDUCE, "halving_doubling"): recursive.halving_doubling_all_reduce,
    (Collective.ALL_REDUCE, "binomial_tree"): tree.binomial_tree_all_reduce,
    (Collective.ALL_REDUCE, "double_binary_tree"): tree.double_binary_tree_all_reduce,
    (Collective.ALL_REDUCE, "direct"): direct.direct_all_reduce,
    (Collective.ALL_REDUCE, "two_shot"): direct.two_shot_all_reduce,
    (Collective.ALL_REDUCE, "torus"): hierarchical.torus_all_reduce,
    (Collective.ALL_REDUCE, "hierarchical"): hierarchical.hierarchical_all_reduce,
    (Collective.ALL_REDUCE, "nccl_ring"): nccl.nccl_ring_all_reduce,
    (Collective.ALL_REDUCE, "nccl_tree"): nccl.nccl_tree_all_reduce,
    (Collective.ALL_REDUCE, "nvls"): nccl.nvls_all_reduce,
    (Collective.ALL_REDUCE, "parameter_server"): direct.parameter_server_all_reduce,
    (Collective.ALL_REDUCE, "naive_ring"): rings.naive_ring_all_reduce,
    (Collective.REDUCE_SCATTER, "ring"): ring.ring_reduce_scatter,
    (Collective.REDUCE_SCATTER, "bidirectional_ring"): rings.bidirectional_ring_reduce_scatter,
    (Collective.REDUCE_SCATTER, "multi_ring"): rings.multi_ring_reduce_scatter,
    (Collective.REDUCE_SCATTER, "nccl_ring"): nccl.nccl_ring_reduce_scatter,
    (Collective.REDUCE_SCATTER, "halving_doubling"): recursive.halving_doubling_reduce_scatter,
    (Collective.REDUCE_SCATTER, "direct"): direct.direct_reduce_scatter,
    (Collective.ALL_GATHER, "ring"): ring.ring_all_gather,
    (Collective.ALL_GATHER, "gloo_ring"): rings.gloo_ring_all_gather,
    (Collective.ALL_GATHER, "bidirectional_ring"): rings.bidirectional_ring_all_gather,
    (Collective.ALL_GATHER, "multi_ring"): rings.multi_ring_all_gather,
    (Collective.ALL_GATHER, "nccl_ring"): nccl.nccl_ring_all_gather,
    (Collective.ALL_GATHER, "recursive_doubling"): recursive.recursive_doubling_all_gather,
    (Collective.ALL_GATHER, "halving_doubling"): recursive.halving_doubling_all_gather,
    (Collective.ALL_GATHER, "direct"): direct.direct_all_gather,
    (Collective.BROADCAST, "ring"): rings.ring_broadcast,
    (Collective.BROADCAST, "binomial_tree"): tree.binomial_tree_broadcast,
    (Collective.BROADCAST, "double_binary_tree"): tree.double_binary_tree_broadcast,
    (Collective.BROADCAST, "direct"): direct.direct_broadcast,
    (Collective.REDUCE, "ring"): rings.ring_reduce,
    (Collective.REDUCE, "binomial_tree"): tree.binomial_tree_reduce,
    (Collective.REDUCE, "double_binary_tree"): tree.double_binary_tree_reduce,
    (Collective.REDUCE, "direct"): direct.direct_reduce,
    (Collective.GATHER, "binomial_tree"): tree.binomial_tree_gather,
    (Collective.GATHER, "direct"): direct.direct_gather,
    (Collective.SCATTER, "binomial_tree"): tree.binomial_tree_scatter,
    (Collective.SCATTER, "direct"): direct.direct_scatter,
    (Collective.ALL_TO_ALL, "pairwise"): all_to_all.pairwise_all_to_all,
    (Collective.ALL_TO_ALL, "direct"): all_to_all.direct_all_to_all,
    (Collective.ALL_TO_ALL, "bruck"): all_to_all.bruck_all_to_all,
    (Collective.ALL_TO_ALL, "hierarchical"): all_to_all.hierarchical_all_to_all,
}
NCCL_ALGORITHMS = ("nccl_ring", "nccl_tree", "nvls")  # for hosts with a NIC for each rank, and a switch within
TWO_LEVEL = ("hierarchical", *NCCL_ALGORITHMS)  # those that divide the ranks into hosts
# Algorithms whose number of segments depends on the size: the function for that number, and the one for the schedule.
BY_SIZE: dict[tuple[Collective, str], tuple[Callable[..., int], Algorithm]] = {
    (Collective.ALL_REDUCE, "gloo_ring"): (rings.gloo_segments_per_rank, rings.gloo_ring_all_reduce),
    (Collective.ALL_REDUCE, "nccl_tree"): (nccl.nccl_tree_segments, nccl.nccl_tree_all_reduce),
    (Collective.ALL_REDUCE, "nvls"): (nccl.nvls_segments, nccl.nvls_all_reduce),
}


def built_in(
    collective: Collective, name: str, num_ranks: int, size_bytes: int | None, **hosts: nccl.RanksPerHost
) -> Schedule:
    """Return the schedule of a built-in algorithm for a size; None: a small one. hosts: ranks_per_host, or nothing."""
    if size_bytes is None or (collective, name) not in BY_SIZE:
        return ALGORITHMS[collective, name](num_ranks, **hosts)
    num_segments, make = BY_SIZE[collective, name]
    return make(num_ranks, num_segments(num_ranks, size_bytes, **hosts), **hosts)
