"""The backends of a process group: the `Transport` of a tensor's messages, timeouts, and Gloo's threads."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args
from weakref import ref

import torch
import torch.distributed as dist

from collectives.shared_memory import TimeLimit

CPU = torch.device("cpu")
GLOO = "gloo"


class Transport(Enum):
    """A way for messages to travel."""

    POSTED = "each by itself, to where a receive is posted ahead"  # a tensor of the CPU on Gloo
    BATCHED = "all that a rank sends and receives in a step as one group"  # NCCL, where two by themselves can deadlock
    STAGED = "as POSTED, from and to pinned memory of the host"  # a CUDA tensor on Gloo, which sends none


# Module constants, because each call uses them and Python 3.11 is slow to look up a member of an Enum.
POSTED, BATCHED, STAGED = Transport


class Transports:
    """The transports of one group by device, and its communicator for batched transfers.

    on_cpu: of CPU tensors, the most frequent; None until first used.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.on_cpu: Transport | None = None
        self._group = ref(group)  # so that the group can go
        self._by_device: dict[torch.device, Transport] = {}
        self._has_communicator = False

    def of(self, tensor: torch.Tensor) -> Transport:
        return (self.on_cpu if tensor.is_cpu else self._by_device.get(tensor.device)) or self._find(tensor.device)

    def _find(self, device: torch.device) -> Transport:
        group = self._group()
        if group is None:
            raise ValueError("the process group has been destroyed")
        self._by_device[device] = transport = find_transport(group, device)
        self.on_cpu = self._by_device.get(CPU)
        return transport

    def start_communicator(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """Let NCCL create the communicator of `group` on `device`, once, by an all_reduce of one element.

        All ranks must take part, unlike in a schedule.
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


def has_backend(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether `group` has a backend for tensors on `device`."""
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
    """Return the device of our small messages: the CPU, or the current CUDA device without a backend for the CPU."""
    return CPU if has_backend(group, CPU) else torch.device("cuda")


_CALL_TIMEOUT_S = ContextVar[float | None]("the timeout of the call that this is a part of", default=None)


class CallTimeout:
    """Sets the timeout of each collective called in the block; a negative one is unset, as in torch."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds() if timeout >= timedelta() else None

    def __enter__(self) -> None:
        self._token = _CALL_TIMEOUT_S.set(self._timeout_s)

    def __exit__(self, *_: object) -> None:
        _CALL_TIMEOUT_S.reset(self._token)


def time_limit_of(group: dist.ProcessGroup) -> Callable[[], TimeLimit]:
    """Return a function that returns how long a rank of `group` waits for another: the timeout of the call or group."""
    backend: Any = group._get_backend(home_of(group))
    options = backend.options  # which keep no group, and change with it

    def limit() -> TimeLimit:
        timeout_s = _CALL_TIMEOUT_S.get()
        if timeout_s is None:
            return TimeLimit(options._timeout.total_seconds())
        return TimeLimit(timeout_s, ", the timeout of this call")

    return limit


def new_buffer(length: int, dtype: torch.dtype, device: torch.device = CPU, pinned: bool = False) -> torch.Tensor:
    """Return new memory, (length,), writable inside and outside of inference mode.

    pinned: page-locked, for fast copies to and from a GPU; ignored without one.
    """
    # A tensor made in inference mode must not be written to outside of it, where the buffer is used again.
    with torch.inference_mode(mode=False):
        return torch.empty(length, dtype=dtype, device=device, pin_memory=pinned and torch.cuda.is_available())


def writing_to(tensors: Iterable[torch.Tensor]) -> AbstractContextManager[object]:
    """Return a context in which `tensors` may be written: inference mode, if one was made in it."""
    is_made_in_it = any(tensor.is_inference() for tensor in tensors)
    return torch.inference_mode() if is_made_in_it else nullcontext()


def reused_buffer(
    kept: torch.Tensor, length: int, dtype: torch.dtype, device: torch.device = CPU, pinned: bool = False
) -> torch.Tensor:
    """Return `kept`, or a new buffer if it is too short or of another kind: new memory costs more than sending."""
    if kept.dtype == dtype and len(kept) >= length and kept.device == device:
        return kept
    return new_buffer(length, dtype, device, pinned)


# Gloo watches its sockets in a thread. If a message wakes it while its process writes to the same connection, it finds
# the connection locked and polls the lock (gloo/transport/tcp/pair.cc, handleEvents). If it has the writer's core, the
# writer cannot continue and unlock until the kernel preempts the thread, a millisecond or more later. A SCHED_BATCH
# thread gets an idle core at once, but none in use (sched(7)); docs/collectives.md has the gain.
GLOO_THREAD = "gloo_tcp_loop"
TASKS = Path("/proc/self/task")  # Linux; elsewhere there is no such folder
NAMING_S = 0.5  # how long to wait for a new thread's name, where the transport has such threads at all

GlooThreadPolicy = Literal["batch", "normal"]
GLOO_THREAD_POLICIES: tuple[GlooThreadPolicy, ...] = get_args(GlooThreadPolicy)


def set_gloo_thread_policy(policy: GlooThreadPolicy = "batch") -> int:
    """Set the scheduling policy of all of Gloo's polling threads of this process; returns how many there are.

    Each process group has its own thread: call this once all groups are made. It needs no privilege; where the system
    forbids it, nothing changes.

    policy: "batch" (SCHED_BATCH: a thread takes no core from a running one) or "normal" (SCHED_OTHER, the system's
    default); else raises ValueError.

        >>> collectives.set_gloo_thread_policy("batch") > 0
        True
    """
    if policy not in GLOO_THREAD_POLICIES:
        raise ValueError(f"policy {policy!r}: must be one of {', '.join(GLOO_THREAD_POLICIES)}")
    return _set_policy(_gloo_threads(), policy)


@contextmanager
def batch_policy_for_new_groups() -> Iterator[None]:
    """Set the policy "batch" for the threads of groups made in the block."""
    before = _gloo_threads()
    yield
    _set_policy(_appeared_since(before), "batch")


def have_gloo_threads_batch_policy() -> bool:
    """Whether this process has Gloo threads, and all of them are SCHED_BATCH."""
    policies = set()
    for thread in _gloo_threads():
        with suppress(OSError):
            policies.add(os.sched_getscheduler(thread))
    return bool(policies) and policies == {os.SCHED_BATCH}  # other systems than Linux do not know the name


def _appeared_since(before: set[int]) -> set[int]:
    """Return the new Gloo threads, once they have set their names."""
    deadline = time.monotonic() + NAMING_S
    while not (new := _gloo_threads() - before) and TASKS.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    return new


def _gloo_threads() -> set[int]:
    if not hasattr(os, "SCHED_BATCH"):
        return set()
    return {int(task.name) for task in TASKS.glob("*") if _name(task) == GLOO_THREAD}


def _set_policy(threads: set[int], policy: GlooThreadPolicy) -> int:
    num_set = 0
    for thread in threads:
        with suppress(OSError):  # it has ended meanwhile, or the system forbids it
            os.sched_setscheduler(thread, os.SCHED_BATCH if policy == "batch" else os.SCHED_OTHER, os.sched_param(0))
            num_set += 1
    return num_set


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended meanwhile
        return ""
