"""`Transport`: how the messages of a tensor travel, which its device and the group's backend for that device decide."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from enum import Enum
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist

from collectives.runtime.tags import Tag
from collectives.shared_memory import TimeLimit

CPU = torch.device("cpu")
GLOO = "gloo"


class Transport(Enum):
    """A way for messages to travel."""

    POSTED = "each by itself, to where a receive is posted ahead"  # a tensor of the CPU on Gloo
    BATCHED = "all that a rank sends and receives in a step as one group"  # NCCL, where two by themselves can deadlock
    STAGED = "as POSTED, from and to pinned memory of the host"  # a CUDA tensor on Gloo, which sends none


# By themselves, because each call asks, and Python 3.11 takes long to find a member of an Enum.
POSTED, BATCHED, STAGED = Transport


class Transports:
    """The transports of one group, found when first asked for; and its communicator for batched transfers.

    on_cpu: that of the CPU's tensors, by far the most often asked for; None until it is.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.on_cpu: Transport | None = None
        self._group = ref(group)  # so that the group can go
        self._by_device: dict[torch.device, Transport] = {}
        self._has_communicator = False

    def of(self, tensor: torch.Tensor) -> Transport:
        """Return the transport of `tensor`. Raises ValueError if the group cannot send from where it is."""
        return (self.on_cpu if tensor.is_cpu else self._by_device.get(tensor.device)) or self._find(tensor.device)

    def _find(self, device: torch.device) -> Transport:
        group = self._group()
        if group is None:
            raise ValueError("the process group has been destroyed")
        self._by_device[device] = transport = find_transport(group, device)
        self.on_cpu = self._by_device.get(CPU)
        return transport

    def start_communicator(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """Let NCCL create the communicator of `group` on `device`, unless this has been done.

        NCCL creates one in the first operation of the group, in which all of its ranks must take part; a schedule may
        send between some of them only. So every rank calls this before its first run, which does an all_reduce of one
        element.
        """
        if not self._has_communicator:
            backend: Any = group._get_backend(device)  # torch's stubs lack its methods
            backend.allreduce([torch.zeros(1, device=device)]).wait()
            self._has_communicator = True


def find_transport(group: dist.ProcessGroup, device: torch.device) -> Transport:
    """Return the transport of tensors on `device`. Raises ValueError if the group cannot send from there."""
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"the tensor is on {device}: must be on the CPU or on a CUDA device")
    if _backend_name(group, device) != GLOO:
        return BATCHED
    if device.type == "cpu":
        return POSTED
    _backend_name(group, CPU)  # which does the sending
    return STAGED


def close_connections(group: dist.ProcessGroup) -> None:
    """Let all who wait for this rank see that it has failed: on Gloo a timeout closes all connections of the group."""
    if has_backend(group, CPU):
        for peer in set(range(group.size())) - {group.rank()}:
            with suppress(RuntimeError):  # at once, if this connection is closed already
                nothing = torch.empty(1, dtype=torch.uint8)
                group.recv([nothing], peer, Tag.CLOSED_CONNECTION).wait(timedelta(milliseconds=1))


def has_backend(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether `group` has one for tensors on `device`."""
    try:
        group._get_backend(device)
    except RuntimeError:
        return False
    return True


def _backend_name(group: dist.ProcessGroup, device: torch.device) -> str:
    if not has_backend(group, device):
        raise ValueError(
            f"the group has no backend for tensors on {device.type}: move them, or create the process group with one, "
            'such as dist.init_process_group("cpu:gloo,cuda:nccl")'
        )
    return group._get_backend(device).name()


def home_of(group: dist.ProcessGroup) -> torch.device:
    """Where our small messages are: the CPU, or the current CUDA device if the group has no backend for it."""
    return CPU if has_backend(group, CPU) else torch.device("cuda")


_CALL_TIMEOUT_S = ContextVar[float | None]("the timeout of the call that this is a part of", default=None)


@contextmanager
def call_timeout(timeout: timedelta) -> Iterator[None]:
    """In the block a rank waits for others as long in each collective that is called; unset, as torch has it: < 0."""
    token = _CALL_TIMEOUT_S.set(timeout.total_seconds() if timeout >= timedelta() else None)
    try:
        yield
    finally:
        _CALL_TIMEOUT_S.reset(token)


def time_limit_of(group: dist.ProcessGroup) -> Callable[[], TimeLimit]:
    """Return what tells how long a rank of `group` waits for another one: as the call says, or as the group does."""
    backend: Any = group._get_backend(home_of(group))
    options = backend.options  # which keep no group, and change with it

    def limit() -> TimeLimit:
        timeout_s = _CALL_TIMEOUT_S.get()
        if timeout_s is None:
            return TimeLimit(options._timeout.total_seconds())
        return TimeLimit(timeout_s, ", the timeout of this call")

    return limit


def new_buffer(length: int, dtype: torch.dtype, device: torch.device = CPU, pinned: bool = False) -> torch.Tensor:
    """Return new memory, (length,), which may be written to in any mode, whatever the mode is now.

    pinned: as a GPU copies from and to fastest; not heeded where there is no GPU.
    """
    # What is made in inference mode must not be written to outside of it, where it is used again.
    with torch.inference_mode(mode=False):
        return torch.empty(length, dtype=dtype, device=device, pin_memory=pinned and torch.cuda.is_available())


def reused_buffer(
    kept: torch.Tensor, length: int, dtype: torch.dtype, device: torch.device = CPU, pinned: bool = False
) -> torch.Tensor:
    """Return `kept`, or a new buffer if that is too short or of another kind: new memory costs more than sending."""
    if kept.dtype == dtype and len(kept) >= length and kept.device == device:
        return kept
    return new_buffer(length, dtype, device, pinned)
