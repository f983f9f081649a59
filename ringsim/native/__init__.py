"""What is known of torch.distributed, Gloo and NCCL themselves: their algorithms, threads and copies."""

from ringsim.native.backend import BACKENDS, Backend, all_reduce_of
from ringsim.native.executed import executed_schedule, gloo_pieces
from ringsim.native.local_work import NEW_BEYOND_BYTES, LocalWork, local_s, local_work
from ringsim.native.rival import rival_schedule

__all__ = [
    "BACKENDS",
    "NEW_BEYOND_BYTES",
    "Backend",
    "LocalWork",
    "all_reduce_of",
    "executed_schedule",
    "gloo_pieces",
    "local_s",
    "local_work",
    "rival_schedule",
]
