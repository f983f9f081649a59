"""The schedules inside PyTorch: a backend, a DDP communication hook, and FSDP2."""

from collectives.integrations.backend import BackendOptions
from collectives.integrations.ddp_hook import HookState, ddp_comm_hook
