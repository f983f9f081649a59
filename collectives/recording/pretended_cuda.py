"""`pretended_cuda`: a program that asks for CUDA devices gets the CPU, and torch reports GPUs.

Tensors stay on the CPU. Streams are torch's placeholders for a CPU, which show the recorder the stream of each call.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn, serialization
from torch.amp import autocast_mode
from torch.distributed import device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import attention
from torch.utils import _device

from collectives.recording.attention import attention_of_gpus
from collectives.recording.autocast import autocast_of_gpus
from collectives.recording.placement import CPU, PINNED, Arguments, Device, OnCuda, Options, pinned, placed_on_cuda
from collectives.recording.pretended_gpu import EXTENDED, devices, stand_in
from collectives.recording.replacements import Replacement, fixing, replaced, returning, within

_GENERATOR = torch.Generator
_AUTOCAST = autocast_mode.autocast.__init__
_PROGRAMS = Path(__file__).parent / "path"  # nvidia-smi
_PARSE_TO = torch._C._nn._parse_to  # reads the arguments of a module's `to`


def _on_cpu(value: Any) -> Any:
    if isinstance(value, str):
        return "cpu" if value.partition(":")[0] == "cuda" else value
    return CPU if isinstance(value, Device) and value.type == "cuda" else value


def _device_on_cpu(device: Any) -> Any:
    """Like `_on_cpu`, but a number is a CUDA device."""
    return CPU if type(device) is int else _on_cpu(device)


class CpuForCuda(OnCuda):
    """Makes or moves tensors on the CPU where a function of torch is given a CUDA device."""

    def put(self, device: Any) -> Any:
        """Return the CPU for a CUDA device."""
        return _device_on_cpu(device)

    def __torch_function__(self, func: Any, types: Any, args: Arguments = (), kwargs: Options | None = None) -> Any:
        if func is not Device:
            args = tuple(_on_cpu(argument) for argument in args)
        if func in (Tensor.to, _PARSE_TO):  # for which a number is a CUDA device
            place = 1 if func is Tensor.to else 0
            args = (*args[:place], *map(_device_on_cpu, args[place : place + 1]), *args[place + 1 :])
        return super().__torch_function__(func, types, args, kwargs)


@contextmanager
def pretended_cuda(num_devices: int, is_fake: bool) -> Iterator[None]:
    """Make torch report `num_devices` CUDA devices within the block, unless the machine has real ones."""
    if torch.cuda.is_available():
        yield
        return
    dtype, set_dtype = torch.get_autocast_dtype("cpu"), torch.set_autocast_dtype
    set_dtype("cpu", torch.get_autocast_dtype("cuda"))
    try:
        # FSDP2 asks for the device of its mesh.
        accelerator = (torch._C, "_get_accelerator", returning(Device("cuda")))
        placed = [accelerator] if is_fake else _on_the_cpu()
        with (
            replaced([*devices(num_devices), *_without_gpu(), *placed], EXTENDED),
            patch.dict(os.environ, {"PATH": f"{_PROGRAMS}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}),
            placed_on_cuda() if is_fake else CpuForCuda(),
            attention_of_gpus(is_fake),
            autocast_of_gpus(is_fake),
        ):
            serialization.register_package(15, lambda _: None, _storage_of_cuda)  # before that of CUDA
            yield
    finally:
        set_dtype("cpu", dtype)


@contextmanager
def hidden_cuda() -> Iterator[None]:
    """Make torch report no CUDA devices within the block."""
    answers = {"is_available": returning(False), "device_count": returning(0)}
    with replaced((module, *answer) for module in (torch.cuda, torch.accelerator) for answer in answers.items()):
        yield


def _without_gpu() -> Iterator[Replacement]:
    """Yield the replacements for methods and classes that need a GPU."""
    yield torch, "Generator", stand_in("Generator", _make_generator, _is_generator, __module__="torch")
    yield Tensor, "pin_memory", pinned  # also in the thread of a data loader
    yield Tensor, "is_pinned", lambda tensor, *_, **__: hasattr(tensor.untyped_storage(), PINNED)
    yield serialization, "_package_registry", list(serialization._package_registry)
    for kind in (torch.UntypedStorage, torch.TypedStorage):
        yield kind, "cuda", lambda itself, *_, **__: itself
    yield torch, "get_autocast_gpu_dtype", partial(torch.get_autocast_dtype, "cpu")
    yield torch, "set_autocast_gpu_dtype", partial(torch.set_autocast_dtype, "cpu")
    yield autocast_mode.autocast, "__init__", _autocast
    yield fixing(nn.parallel.DistributedDataParallel, "__init__", device_ids=None, output_device=None)
    yield _changed(torch, "is_autocast_enabled", lambda args, kwargs: _all_on_cpu(args or ("cuda",), kwargs))
    yield _changed(torch, "set_autocast_enabled", lambda args, kwargs: _all_on_cpu(("cuda", *args)[-2:], kwargs))
    for name in ("get_autocast_dtype", "set_autocast_dtype"):
        yield _changed(torch, name, _all_on_cpu)


@wraps(_AUTOCAST)
def _autocast(
    itself: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
) -> None:
    """Cast on the CPU as on a GPU, also to float32, which torch's CPU lacks."""
    is_wide = dtype is torch.float32 and device_type != "cpu"
    _AUTOCAST(itself, _on_cpu(device_type), None if is_wide else dtype, enabled, cache_enabled)
    if is_wide:
        itself.fast_dtype = dtype


def _on_the_cpu() -> Iterator[Replacement]:
    """Yield the replacements for methods and classes that take a device without a function of a tensor."""
    yield threading.Thread, "_bootstrap_inner", within(CpuForCuda, vars(threading.Thread)["_bootstrap_inner"])
    yield Tensor, "cuda", lambda itself, *_, **__: itself
    yield sys.modules[nn.DataParallel.__module__], "_get_available_device_type", returning(None)  # it calls its module
    # A GPU has kernels of attention that a CPU lacks.
    yield attention, "sdpa_kernel", wraps(attention.sdpa_kernel)(lambda *_, **__: nullcontext())
    yield fixing(FullyShardedDataParallel, "__init__", device_id=CPU)
    for kind in (device_mesh.DeviceMesh, _device.DeviceContext):
        yield _changed(kind, "__init__", _all_on_cpu)
    yield _changed(autocast_mode, "_cast", _all_on_cpu)


def _changed(owner: Any, name: str, change: Callable[..., tuple[Arguments, Options]]) -> Replacement:
    """Replace a function by itself with other arguments."""
    function = vars(owner)[name]

    @wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change(args, kwargs)
        return function(*args, **kwargs)

    return owner, name, changed


def _all_on_cpu(args: Arguments, kwargs: Options) -> tuple[Arguments, Options]:
    return tuple(_on_cpu(value) for value in args), {name: _on_cpu(value) for name, value in kwargs.items()}


def _make_generator(device: Any = CPU) -> torch.Generator:
    return _GENERATOR(_device_on_cpu(device))


def _is_generator(thing: object) -> bool:
    return isinstance(thing, _GENERATOR)


def _storage_of_cuda(storage: Any, location: str) -> Any:
    return storage if location.partition(":")[0] == "cuda" else None
