"""The collectives of torch.distributed, executed from `ringsim` schedules over send and receive."""

from collectives.errors import CollectiveError
from collectives.execute import Event, Executor, execute
from collectives.functions import all_gather_into_tensor, all_reduce, reduce_scatter_tensor

__all__ = [
    "CollectiveError",
    "Event",
    "Executor",
    "all_gather_into_tensor",
    "all_reduce",
    "execute",
    "reduce_scatter_tensor",
]
