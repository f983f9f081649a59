"""`pretended_cuda`: a program that asks for CUDA devices gets the CPU, and torch reports GPUs.

Streams are torch's placeholders for a CPU, which show the recorder the stream of each call.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, serialization
from torch.amp import autocast_mode
from torch.library import _scoped_library, fallthrough_kernel
from torch.nn import attention
from torch.utils._pytree import tree_map_only

from collectives.recording.attention import HALVES, attention_of_gpus
from collectives.recording.placement import CPU, PINNED, Arguments, Device, OnCuda, Options, pinned, placed_on_cuda
from collectives.recording.pretended_gpu import EXTENDED, devices, stand_in
from collectives.recording.recurrent import recurrent_layers
from collectives.recording.replacements import Replacement, changed, fixing, replaced, returning, run_within

aten = torch.ops.aten
_GENERATOR, _AUTOCAST = torch.Generator, autocast_mode.autocast.__init__
_PROGRAMS = Path(__file__).parent / "path"  # nvidia-smi
_PARSE_TO = torch._C._nn._parse_to  # reads the arguments of a module's `to`

# torch's C++ has a kernel of autocast for each operator on its list (`autocast_mode.h`), also the kernels for CUDA in a
# build for CPUs. These leave tensors of a CPU as they are, so that only their names are of use.
_LISTED = torch._C._dispatch_get_registrations_for_dispatch_key
_KEY = torch._C.DispatchKey.AutocastCPU
# Operators on a GPU's list that compute in a half, or in the widest dtype of their arguments.
_OTHERS = re.compile(
    "convolution|attention|_cell|add(mv|r|cdiv|cmul)$|chain_matmul|einsum|mv$|linalg_multi_dot"
    "|atan2|bilinear$|cross$|v?dot$|grid_sampler|index_put|tensordot|scatter_add"
)
# Operators that convert as they compute, if they are given the dtype.
_CONVERTING = re.compile("(log_)?softmax|cumprod|cumsum|linalg_(vector|matrix)_norm|sum|norm")
# Operators on the list of a CPU that a GPU runs in any dtype, or by operators that are on its list.
_ANY = re.compile(r"cross_entropy_loss|(reflection|replication)_pad\dd|(avg|max|adaptive_avg|adaptive_max)_pool3d")
_FUSED = {"softmax": aten._softmax.default, "log_softmax": aten._log_softmax.default}  # of float16


def _on_cpu(value: Any) -> Any:
    if isinstance(value, str):
        return "cpu" if value.partition(":")[0] == "cuda" else value
    return CPU if isinstance(value, Device) and value.type == "cuda" else value


def _device_on_cpu(device: Any) -> Any:
    return CPU if type(device) is int else _on_cpu(device)


class CpuForCuda(OnCuda):
    """Replaces a CUDA device by the CPU in functions of torch that make or move tensors."""

    def put(self, device: Any) -> Any:
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
        accelerator = "torch._C._get_accelerator", returning(Device("cuda"))
        placed = [accelerator, *recurrent_layers()] if is_fake else _on_the_cpu()
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
    with replaced((f"torch.{of}.{name}", answers[name]) for of in ("cuda", "accelerator") for name in answers):
        yield


def _without_gpu() -> Iterator[Replacement]:
    generator = stand_in("Generator", _make_generator, lambda thing: isinstance(thing, _GENERATOR), __module__="torch")
    yield "torch.Generator", generator
    yield "torch.Tensor.pin_memory", pinned  # also in the thread of a data loader
    yield "torch.Tensor.is_pinned", lambda tensor, *_, **__: hasattr(tensor.untyped_storage(), PINNED)
    yield "torch.serialization._package_registry", list(serialization._package_registry)
    for kind in ("UntypedStorage", "TypedStorage"):
        yield f"torch.{kind}.cuda", lambda itself, *_, **__: itself
    yield "torch.amp.autocast_mode.autocast.__init__", _autocast
    yield fixing("torch.nn.parallel.DistributedDataParallel.__init__", device_ids=None, output_device=None)
    for name in ("get_autocast", "set_autocast"):
        yield f"torch.{name}_gpu_dtype", partial(getattr(torch, f"{name}_dtype"), "cpu")
        yield changed(f"torch.{name}_dtype", _all_on_cpu)
    yield changed("torch.is_autocast_enabled", lambda args, kwargs: _all_on_cpu(args or ("cuda",), kwargs))
    yield changed("torch.set_autocast_enabled", lambda args, kwargs: _all_on_cpu(("cuda", *args)[-2:], kwargs))


@wraps(_AUTOCAST)
def _autocast(
    itself: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
) -> None:
    """Cast on the CPU as on a GPU, also to float32, which the CPU lacks."""
    is_wide = dtype is torch.float32 and device_type != "cpu"
    _AUTOCAST(itself, _on_cpu(device_type), None if is_wide else dtype, enabled, cache_enabled)
    if is_wide:
        itself.fast_dtype = dtype


def _on_the_cpu() -> Iterator[Replacement]:
    """Yield the replacements for what takes a device without a function of a tensor."""
    yield from run_within(CpuForCuda, "threading.Thread._bootstrap_inner")
    yield "torch.Tensor.cuda", lambda itself, *_, **__: itself
    yield "torch.nn.parallel.data_parallel._get_available_device_type", returning(None)  # DataParallel calls its module
    # A GPU has kernels of attention that a CPU lacks.
    yield "torch.nn.attention.sdpa_kernel", wraps(attention.sdpa_kernel)(lambda *_, **__: nullcontext())
    yield fixing("torch.distributed.fsdp.FullyShardedDataParallel.__init__", device_id=CPU)
    yield changed("torch.distributed.device_mesh.DeviceMesh.__init__", _all_on_cpu)
    yield changed("torch.utils._device.DeviceContext.__init__", _all_on_cpu)
    yield changed("torch.amp.autocast_mode._cast", _all_on_cpu)


def _all_on_cpu(args: Arguments, kwargs: Options) -> tuple[Arguments, Options]:
    return tuple(_on_cpu(value) for value in args), {name: _on_cpu(value) for name, value in kwargs.items()}


def _make_generator(device: Any = CPU) -> torch.Generator:
    return _GENERATOR(_device_on_cpu(device))


def _storage_of_cuda(storage: Any, location: str) -> Any:
    return storage if location.partition(":")[0] == "cuda" else None


@contextmanager
def autocast_of_gpus(is_fake: bool) -> Iterator[None]:
    """Let autocast on a CPU choose dtypes as on a GPU within the block, with other operators in float32."""
    on_gpu, on_cpu = ({name.removeprefix("aten::") for name in _LISTED(key)} for key in ("AutocastCUDA", _KEY.name))
    with _scoped_library("aten", "IMPL") as library:
        for name in on_gpu - on_cpu:
            packet = name.partition(".")[0]
            if not _OTHERS.search(packet):
                library.impl(name, _in_float32(packet, is_fake), _KEY.name)
        with warnings.catch_warnings(action="ignore"):  # torch warns of replaced kernels
            for name in filter(_ANY.fullmatch, on_cpu):
                library.impl(name, fallthrough_kernel, _KEY.name, allow_override=True)
        yield


def _in_float32(packet: str, is_fake: bool) -> Callable[..., Any]:
    operator = getattr(aten, packet)

    def widened(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype in HALVES else tensor

    def compute(*args: Any, **options: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            if not _CONVERTING.fullmatch(packet):
                return operator(*tree_map_only(Tensor, widened, args), **options)
            if args[0].dtype not in HALVES or options.get("dtype") or isinstance(args[-1], torch.dtype):
                return operator(*args, **options)
            if is_fake and packet in _FUSED and args[0].dtype is torch.float16:
                return _FUSED[packet](args[0], args[1], True)
            return operator(*args, **{**options, "dtype": torch.float32})

    return compute
