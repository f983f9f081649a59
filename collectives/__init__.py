"""The collectives of torch.distributed, executed from `ringsim` schedules over send and receive."""

from collectives import backend
from collectives.backend import BackendOptions
from collectives.ddp import HookState, ddp_comm_hook
from collectives.errors import CollectiveError
from collectives.execute import Executor, execute
from collectives.failures import explain_failures
from collectives.fingerprint import CallCheck, MismatchError
from collectives.functions import all_gather, all_gather_into_tensor, all_reduce, reduce_scatter, reduce_scatter_tensor
from collectives.lane import check_calls
from collectives.ledger import Ledger
from collectives.polling import calm_polling
from collectives.rooted import barrier, broadcast, reduce
from collectives.run import Event
from collectives.work import Work

__all__ = [
    "BackendOptions",
    "CallCheck",
    "CollectiveError",
    "Event",
    "Executor",
    "HookState",
    "Ledger",
    "MismatchError",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "barrier",
    "broadcast",
    "calm_polling",
    "check_calls",
    "ddp_comm_hook",
    "execute",
    "explain_failures",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
]

backend.register()
