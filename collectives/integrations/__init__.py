"""The schedules inside PyTorch: a backend, a DDP communication hook, and FSDP2."""

from collectives.integrations.backend import NAME, BackendOptions, RingGroup
from collectives.integrations.ddp_hook import HookState, ddp_comm_hook
