"""The collectives, with torch.distributed's signatures: what they check, and which algorithm they take."""

from collectives.calls.algorithm_choice import add_candidate, chooser_of, use_network
from collectives.calls.call import AUTO, CollectiveCall
from collectives.calls.exchange import all_to_all, all_to_all_single
from collectives.calls.functions import (
    Op,
    all_gather,
    all_gather_into_tensor,
    all_reduce,
    reduce_scatter,
    reduce_scatter_tensor,
)
from collectives.calls.rehearsal import fill_cyclically, name_of, reduced
from collectives.calls.rooted import barrier, broadcast, gather, reduce, scatter
from collectives.calls.shared_tensors import empty
