"""The algorithms: pure functions from a number of ranks to a `Schedule`."""

from ringsim.algorithms.chain import ring_broadcast, ring_reduce
from ringsim.algorithms.direct import (
    direct_all_gather,
    direct_all_reduce,
    direct_broadcast,
    direct_reduce,
    direct_reduce_scatter,
    two_shot_all_reduce,
)
from ringsim.algorithms.hierarchical import (
    hierarchical_all_reduce,
    hosts_of,
    split_into_hosts,
    torus_all_reduce,
    torus_of,
)
from ringsim.algorithms.naive import naive_ring_all_reduce, parameter_server_all_reduce
from ringsim.algorithms.nccl import (
    nccl_ring_all_gather,
    nccl_ring_all_reduce,
    nccl_ring_reduce_scatter,
    nccl_tree_all_reduce,
    nccl_tree_segments,
    nvls_all_reduce,
    nvls_segments,
)
from ringsim.algorithms.recursive import (
    halving_doubling_all_gather,
    halving_doubling_all_reduce,
    halving_doubling_reduce_scatter,
    recursive_doubling_all_gather,
    recursive_doubling_all_reduce,
)
from ringsim.algorithms.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from ringsim.algorithms.rings import (
    bidirectional_ring_all_gather,
    bidirectional_ring_all_reduce,
    bidirectional_ring_reduce_scatter,
    gloo_ring_all_gather,
    gloo_ring_all_reduce,
    gloo_segments_per_rank,
    multi_ring_all_gather,
    multi_ring_all_reduce,
    multi_ring_reduce_scatter,
)
from ringsim.algorithms.tree import (
    binomial_tree_all_reduce,
    binomial_tree_broadcast,
    binomial_tree_reduce,
    double_binary_tree_all_reduce,
    double_binary_tree_broadcast,
    double_binary_tree_reduce,
)

__all__ = [
    "bidirectional_ring_all_gather",
    "bidirectional_ring_all_reduce",
    "bidirectional_ring_reduce_scatter",
    "binomial_tree_all_reduce",
    "binomial_tree_broadcast",
    "binomial_tree_reduce",
    "direct_all_gather",
    "direct_all_reduce",
    "direct_broadcast",
    "direct_reduce",
    "direct_reduce_scatter",
    "double_binary_tree_all_reduce",
    "double_binary_tree_broadcast",
    "double_binary_tree_reduce",
    "gloo_ring_all_gather",
    "gloo_ring_all_reduce",
    "gloo_segments_per_rank",
    "halving_doubling_all_gather",
    "halving_doubling_all_reduce",
    "halving_doubling_reduce_scatter",
    "hierarchical_all_reduce",
    "hosts_of",
    "multi_ring_all_gather",
    "multi_ring_all_reduce",
    "multi_ring_reduce_scatter",
    "naive_ring_all_reduce",
    "nccl_ring_all_gather",
    "nccl_ring_all_reduce",
    "nccl_ring_reduce_scatter",
    "nccl_tree_all_reduce",
    "nccl_tree_segments",
    "nvls_all_reduce",
    "nvls_segments",
    "parameter_server_all_reduce",
    "recursive_doubling_all_gather",
    "recursive_doubling_all_reduce",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_broadcast",
    "ring_reduce",
    "ring_reduce_scatter",
    "split_into_hosts",
    "torus_all_reduce",
    "torus_of",
    "two_shot_all_reduce",
]
