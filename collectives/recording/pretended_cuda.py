"""`pretended_cuda`: a program that asks for CUDA devices gets the CPU, and torch reports GPUs.

Tensors stay on the CPU. Streams are torch's placeholders for a CPU, which show the recorder the stream of each call.
"""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial, wraps
from inspect import isfunction
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn, serialization
from torch.amp import autocast_mode
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import attention
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from ringsim.training_step import GPUS

Arguments = tuple[Any, ...]
Options = dict[str, Any]
Replacement = tuple[Any, str, Any]  # an object, the name of its attribute, and the value in its place

Device, Generator = torch.device, torch.Generator
CPU = Device("cpu")
_PARSE_TO = torch._C._nn._parse_to  # reads the arguments of a module's `to`

# A recent GPU: programs choose dtypes and kernels by its capability, and sizes by its memory.
NAME, MAJOR, MINOR, VERSION, GPU = "pretended by ringsim trace", 9, 0, "12.8", GPUS["h100"]
NCCL_VERSION = (2, 27, 5)  # hooks of DistributedDataParallel that send bfloat16 ask for 2.10

_MODULES = torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.nvtx, torch.cuda.profiler, torch.accelerator
# Their functions with these prefixes do nothing or return 0, unless they are defined below.
_NO_EFFECT = "_record", "empty_", "ipc_", "manual_", "mark", "range_", "reset_", "seed", "set_", "start", "stop", "sync"
_ARE_ZERO = "initial_seed", "max_memory_", "memory_", "utilization"
_FACTS: dict[str, Any] = {
    "is_available": True,
    "is_bf16_supported": True,
    "is_tf32_supported": True,
    "can_device_access_peer": True,
    "is_current_stream_capturing": False,
    "current_accelerator": Device("cuda"),
    "get_arch_list": ["sm_90"],
    "get_device_name": NAME,
    "get_device_capability": (MAJOR, MINOR),
    "get_device_properties": SimpleNamespace(
        name=NAME, major=MAJOR, minor=MINOR, total_memory=GPU.memory_bytes, multi_processor_count=GPU.multiprocessors
    ),
    "get_memory_info": (GPU.memory_bytes, GPU.memory_bytes),
    "mem_get_info": (GPU.memory_bytes, GPU.memory_bytes),
    "memory_snapshot": [],
    "memory_stats": defaultdict(int),
    "memory_stats_as_nested_dict": defaultdict(int),
    "memory_summary": NAME,
}


def _returns(value: Any) -> Callable[..., Any]:
    """Return a new function that returns the value; torch.compile needs distinct functions."""
    return lambda *_, **__: value


class CpuForCuda(TorchFunctionMode):
    """Makes or moves tensors on the CPU, not pinned, where a function of torch is given a CUDA device."""

    def __torch_function__(self, func: Any, types: Any, args: Arguments = (), kwargs: Options | None = None) -> Any:
        if func is Device:
            return Device("cuda", *args) if args and type(args[0]) is int else Device(*args, **kwargs or {})
        kwargs = kwargs or {}
        args = tuple(_on_cpu(argument) for argument in args)
        if func in (Tensor.to, _PARSE_TO):  # for which a number is a CUDA device
            place = 1 if func is Tensor.to else 0
            args = (*args[:place], *map(_device_on_cpu, args[place : place + 1]), *args[place + 1 :])
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _device_on_cpu(kwargs["device"])}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, str):
        return "cpu" if value.partition(":")[0] == "cuda" else value
    return CPU if isinstance(value, Device) and value.type == "cuda" else value


def _device_on_cpu(device: Any) -> Any:
    """Like `_on_cpu`, but a number is a CUDA device."""
    return CPU if type(device) is int else _on_cpu(device)


class _GeneratorMeta(type):
    """The metaclass of the class that replaces torch.Generator, which cannot be changed; it makes CPU generators."""

    def __call__(cls, device: Any = CPU) -> torch.Generator:
        return Generator(_device_on_cpu(device))

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Generator)


class _Event(torch.cpu.Event):
    """A stream's event that has happened as soon as it is recorded."""

    def __init__(self, *_: object, **__: object) -> None:
        self._recorded_s = 0.0

    def record(self, stream: Any = None) -> None:
        super().record(stream)
        self._recorded_s = time.perf_counter()

    def elapsed_time(self, end_event: "_Event") -> float:
        """Return the milliseconds from this event to a later one."""
        return (end_event._recorded_s - self._recorded_s) * 1e3


# Methods of CUDA streams that torch's placeholders for a CPU lack.
_OF_STREAMS: dict[str, Any] = {
    "__init__": lambda *_, **__: None,
    "synchronize": lambda _: None,
    "query": lambda _: True,
    "is_capturing": lambda _: False,
}


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Replace attributes within the block; all values are made before the first one is in place."""
    with ExitStack() as stack:
        for owner, name, value in list(replacements):
            stack.enter_context(patch.object(owner, name, value, create=owner is torch.cpu.Stream))
        yield


@contextmanager
def pretended_cuda(num_devices: int) -> Iterator[None]:
    """Make torch report `num_devices` CUDA devices within the block, unless the machine has real ones."""
    if torch.cuda.is_available():
        yield
        return
    dtype, set_dtype = torch.get_autocast_dtype("cpu"), torch.set_autocast_dtype
    set_dtype("cpu", torch.get_autocast_dtype("cuda"))
    try:
        with replaced([*_devices(num_devices), *_on_the_cpu()]), CpuForCuda():
            serialization.register_package(15, lambda _: None, _storage_of_cuda)  # before that of CUDA
            yield
    finally:
        set_dtype("cpu", dtype)


@contextmanager
def hidden_cuda() -> Iterator[None]:
    """Make torch report no CUDA devices within the block."""
    answers = {"is_available": _returns(False), "device_count": _returns(0)}
    with replaced((module, *answer) for module in (torch.cuda, torch.accelerator) for answer in answers.items()):
        yield


def _answers(num_devices: int) -> dict[str, Any]:
    current = [0]

    def set_device(device: Any) -> None:
        index = torch.cuda._utils._get_device_index(device, optional=True)
        current[0] = index if index >= 0 else current[0]

    def set_stream(stream: Any) -> None:
        torch.cpu._current_stream = stream

    names = {name for module in _MODULES for name, value in vars(module).items() if isfunction(value)}
    return {
        "init": _returns(None),
        **{name: _returns(None) for name in names if name.startswith(_NO_EFFECT)},
        **{name: _returns(0) for name in names if name.startswith(_ARE_ZERO)},
        **{name: _returns(value) for name, value in _FACTS.items()},
        "device_count": _returns(num_devices),
        **{name: lambda *_: current[0] for name in ("current_device", "current_device_index", "current_device_idx")},
        **{name: lambda *_: current[0] for name in ("_exchange_device", "_maybe_exchange_device")},
        **{name: partial(set_device) for name in ("set_device", "set_device_index", "set_device_idx")},
        "device_index": lambda _: nullcontext(),
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * num_devices,
        "Stream": torch.cpu.Stream,
        "Event": _Event,
        "StreamContext": torch.cpu.StreamContext,
        "stream": torch.cpu.stream,
        "current_stream": torch.cpu.current_stream,
        "default_stream": lambda *_, **__: torch.cpu._default_cpu_stream,
        "set_stream": set_stream,
        "_lazy_init": _refuse,
    }


def _refuse() -> None:
    caller = sys._getframe(1)
    module = caller.f_globals.get("__name__", "")
    name = f"{module}.{caller.f_code.co_name}" if module.startswith("torch.cuda") else "this call"
    raise RuntimeError(f"{name} needs a real GPU; ringsim trace only pretends to have one: leave it out there")


def _devices(num_devices: int) -> Iterator[Replacement]:
    answers = _answers(num_devices)
    for module in _MODULES:
        yield from ((module, name, answers[name]) for name in answers.keys() & vars(module).keys())
    yield from ((torch.cpu.Stream, name, method) for name, method in _OF_STREAMS.items())
    yield torch, "Generator", _GeneratorMeta("Generator", (), {"__module__": "torch"})
    yield torch, "Stream", torch.cpu.Stream
    yield torch, "Event", _Event
    yield torch.version, "cuda", VERSION
    yield torch.cuda.nccl, "version", _returns(NCCL_VERSION)
    yield from ((module, "is_nccl_available", lambda: True) for module in (dist, distributed_c10d))
    yield distributed_c10d, "default_pg_nccl_timeout", distributed_c10d.default_pg_timeout


def _on_the_cpu() -> Iterator[Replacement]:
    """Yield the replacements for methods and classes that take a device without a function of a tensor."""
    for kind in (Tensor, torch.UntypedStorage, torch.TypedStorage):
        yield kind, "cuda", lambda itself, *_, **__: itself
    yield Tensor, "pin_memory", lambda tensor, *_, **__: tensor  # also in the thread of a data loader
    yield Tensor, "record_stream", lambda *_: None
    yield torch._utils, "_get_restore_location", _returns("cpu")  # for torch.load without data
    yield serialization, "_package_registry", list(serialization._package_registry)
    yield torch, "get_autocast_gpu_dtype", partial(torch.get_autocast_dtype, "cpu")
    yield torch, "set_autocast_gpu_dtype", partial(torch.set_autocast_dtype, "cpu")
    # A GPU has kernels of attention that a CPU lacks.
    yield attention, "sdpa_kernel", wraps(attention.sdpa_kernel)(lambda *_, **__: nullcontext())
    begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    yield threading.Thread, "_bootstrap_inner", _with_mode(begin)
    changes: tuple[tuple[Any, str, Callable[..., tuple[Arguments, Options]]], ...] = (
        (nn.parallel.DistributedDataParallel, "__init__", _without_devices),
        (FullyShardedDataParallel, "__init__", lambda args, kwargs: (args, {**kwargs, "device_id": CPU})),
        (autocast_mode.autocast, "__init__", _all_on_cpu),
        (device_mesh.DeviceMesh, "__init__", _all_on_cpu),
        (_device.DeviceContext, "__init__", _all_on_cpu),
        (torch, "is_autocast_enabled", lambda args, kwargs: _all_on_cpu(args or ("cuda",), kwargs)),
        (torch, "get_autocast_dtype", _all_on_cpu),
        (torch, "set_autocast_enabled", lambda args, kwargs: _all_on_cpu(("cuda", *args)[-2:], kwargs)),
        (torch, "set_autocast_dtype", _all_on_cpu),
        (autocast_mode, "_cast", _all_on_cpu),
        (nn.functional, "scaled_dot_product_attention", _without_dropout),
    )
    yield from ((owner, name, _with_changed(vars(owner)[name], change)) for owner, name, change in changes)


def _with_changed(function: Callable[..., Any], change: Callable[..., tuple[Arguments, Options]]) -> Callable[..., Any]:
    @wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change(args, kwargs)
        return function(*args, **kwargs)

    return changed


def _all_on_cpu(args: Arguments, kwargs: Options) -> tuple[Arguments, Options]:
    return tuple(_on_cpu(value) for value in args), {name: _on_cpu(value) for name, value in kwargs.items()}


def _without_devices(args: Arguments, kwargs: Options) -> tuple[Arguments, Options]:
    """Omit DistributedDataParallel's second and third argument, device_ids and output_device."""
    kwargs = {name: value for name, value in kwargs.items() if name not in ("device_ids", "output_device")}
    return (*args[:2], *[None] * len(args[2:4]), *args[4:]), kwargs


def _without_dropout(args: Arguments, kwargs: Options) -> tuple[Arguments, Options]:
    """Omit the dropout of attention, for which only a GPU has kernels."""
    names = "query", "key", "value", "attn_mask", "dropout_p", "is_causal"
    return (), {**dict(zip(names, args, strict=False)), **kwargs, "dropout_p": 0.0}


def _with_mode(begin: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    def begin_with_mode(thread: threading.Thread) -> None:
        with CpuForCuda():
            begin(thread)

    return begin_with_mode


def _storage_of_cuda(storage: Any, location: str) -> Any:
    return storage if location.partition(":")[0] == "cuda" else None
