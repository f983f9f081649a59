"""The collectives of torch.distributed, executed from `ringsim` schedules over send and receive."""

from collectives.agreement import MismatchError
from collectives.errors import CollectiveError
from collectives.execute import Event, Executor, execute
from collectives.functions import all_gather, all_gather_into_tensor, all_reduce, reduce_scatter, reduce_scatter_tensor
from collectives.lane import Work, check_calls
from collectives.ledger import Ledger
from collectives.rooted import barrier, broadcast, reduce

__all__ = [
    "CollectiveError",
    "Event",
    "Executor",
    "Ledger",
    "MismatchError",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "barrier",
    "broadcast",
    "check_calls",
    "execute",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
]
