"""The collectives of torch.distributed, executed from `ringsim` schedules over send and receive."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("torch") is None:  # before the first import that would end in a bare "No module named 'torch'"
    from ringsim.console import needs_torch

    raise ModuleNotFoundError(needs_torch("collectives"), name="torch")

from collectives.calls import add_candidate, functions, use_network
from collectives.calls.functions import *  # noqa: F403  its __all__: the functions of torch.distributed
from collectives.integrations import BackendOptions, DistributedDataParallel, HookState, backend, ddp_comm_hook
from collectives.runtime import (
    CallCheck,
    CollectiveError,
    Event,
    Executor,
    FlightRecord,
    MismatchError,
    Work,
    check_calls,
    execute,
    explain_failures,
    set_gloo_thread_policy,
    use_transport,
)

if TYPE_CHECKING:
    from collectives.integrations.fsdp import FSDPAllGather, FSDPReduceScatter

__all__ = [
    "BackendOptions", "CallCheck", "CollectiveError", "DistributedDataParallel", "Event", "Executor", "FSDPAllGather",
    "FSDPReduceScatter", "FlightRecord", "HookState", "MismatchError", "Work", "add_candidate", "check_calls",
    "ddp_comm_hook", "execute", "explain_failures", "set_gloo_thread_policy", "use_network", "use_transport",
]  # fmt: skip
__all__ += functions.__all__

backend.register()
for _name in __all__:
    if _name.islower() or _name in ("Executor", "Work"):
        backend.untraced(globals()[_name])


def __getattr__(name: str) -> Any:
    """Import FSDP2's part of torch, which takes a second, only when it is first used."""
    if name in ("FSDPAllGather", "FSDPReduceScatter"):
        from collectives.integrations import fsdp  # noqa: PLC0415

        return getattr(fsdp, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
