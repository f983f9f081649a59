"""The algorithms: functions from a number of ranks to a `Schedule`."""

from ringsim.algorithms.all_to_all import shift
from ringsim.algorithms.hierarchical import hierarchical_all_reduce, hosts_of, split_into_hosts, torus_of
from ringsim.algorithms.nccl import RANKS_PER_HOST, RanksPerHost, fill_hosts
from ringsim.algorithms.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from ringsim.algorithms.table import ALGORITHMS, BY_SIZE, NCCL_ALGORITHMS, TWO_LEVEL, Algorithm, built_in
from ringsim.algorithms.tree import double_binary_tree_all_reduce
