"""The schedules inside PyTorch: a backend, DistributedDataParallel and its communication hook, and FSDP2."""

from collectives.integrations.backend import NAME, BackendOptions, RingGroup, carries_out
from collectives.integrations.ddp import (
    DistributedDataParallel,
    HookState,
    check_trained_dtypes,
    ddp_comm_hook,
    trained_dtypes,
)
