"""What is known of torch.distributed, Gloo and NCCL themselves: their algorithms, threads and copies."""

from ringsim.native.backends import (
    BACKENDS,
    Backend,
    all_reduce_by_size,
    call_overhead_s,
    native_schedule,
    network_of_calls,
    shared_memory_of_calls,
)
from ringsim.native.local_work import NEW_BEYOND_BYTES, LocalWork, local_s, local_work

__all__ = [
    "BACKENDS",
    "NEW_BEYOND_BYTES",
    "Backend",
    "LocalWork",
    "all_reduce_by_size",
    "call_overhead_s",
    "local_s",
    "local_work",
    "native_schedule",
    "network_of_calls",
    "shared_memory_of_calls",
]
