"""What is known of torch.distributed, Gloo and NCCL themselves: their algorithms, threads and copies."""

from ringsim.native.backends import (
    BACKENDS,
    GLOO,
    OURS,
    Backend,
    Runtime,
    all_reduce_by_size,
    native_schedule,
)
from ringsim.native.local_work import NEW_BEYOND_BYTES, LocalWork, local_s, local_work
