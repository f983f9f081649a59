"""`without_data`: run a program on tensors without data, which computes nothing and uses no memory.

The tensors are PyTorch's fake tensors. Tensors that PyTorch reads in C++, or that describe the job and not the model,
are real.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, UntypedStorage, nn
from torch._C import _disabled_torch_function_impl
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.library import Library
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import worker

from collectives.recording.fake_mode import CachingFakeMode
from collectives.recording.placement import device_of, make_with_keys_of_cpu, place, with_data
from collectives.recording.recurrent import packed_sequences
from collectives.recording.replacements import Replacement, replaced, returning, run_within, within
from collectives.recording.saved import MADE_AGAIN, without_saving
from collectives.recording.without_values import DATA, TORCH, WithoutValues, set_data

_DEEPCOPY, _ADDRESS, _ASARRAY = Tensor.__deepcopy__, UntypedStorage.data_ptr, torch.asarray
_SWAP, _PARAMETER, _FAKE_TENSOR = torch.utils.swap_tensors, nn.Parameter.__new__, FakeTensor.__new__
_SHAPE: Any = Tensor.shape.__get__  # type: ignore[attr-defined]
_PART: Any = UntypedStorage.__getitem__
_SET, _BEGIN_LOADING = DataLoader.__setattr__, dataloader._SingleProcessDataLoaderIter.__init__
_NO_WORKERS = {"timeout": 0, "persistent_workers": False, "prefetch_factor": None, "multiprocessing_context": None}
_LAZY = "torch.nn.parameter.UninitializedTensorMixin"  # of parameters and buffers of lazy modules
_KIND_OF_LAZY: Any = resolve_name(_LAZY)
_MATERIALIZE = _KIND_OF_LAZY.materialize
_FAKE = "torch._subclasses.fake_tensor.FakeTensor"
_LARGEST = 2**43  # bytes of a storage, and of the places at which storages begin
_MAP_NORESERVE = 0x4000  # Linux's; Python has it from 3.13 on


def _per_channel(count: int, image: Tensor, *_: object) -> tuple[Tensor, ...]:
    dtype = torch.promote_types(image.dtype, torch.float32)
    return tuple(image.new_empty(image.shape[1], dtype=dtype) for _ in range(count))


# Operators of SyncBatchNorm, which torch has for real GPUs only, by the number of their results per channel.
_PER_CHANNEL = {"batch_norm_stats": 2, "batch_norm_gather_stats_with_counts": 2, "batch_norm_backward_reduce": 4}
_LIBRARY = Library("aten", "IMPL")
for _name, _count in _PER_CHANNEL.items():
    _LIBRARY.impl(_name, partial(_per_channel, _count), "Meta")
for _name in ("batch_norm_elemt", "batch_norm_backward_elemt"):
    _LIBRARY.impl(_name, lambda image, *_: torch.empty_like(image), "Meta")


@contextmanager
def without_data(in_worker: Callable[[], Any], refusals: list[Exception], is_balanced: bool = False) -> Iterator[None]:
    """Let tensors have shapes, dtypes and storages, but no data, within the block.

    in_worker: context of loading in the program's other processes. refusals: gets the first error for want of data.
    is_balanced: experts get equally many tokens.
    """
    mode = CachingFakeMode()
    values = WithoutValues(mode, refusals, is_balanced)
    with (
        replaced([*_with_real_tensors(in_worker), *without_saving(), *_of_values(values)], [_FAKE]),
        mode,
        values,
        torch.serialization.safe_globals(MADE_AGAIN),
    ):
        yield


def _of_values(values: WithoutValues) -> Iterator[Replacement]:
    yield f"{_FAKE}.numpy", lambda tensor, **_: values.array_of(tensor)
    yield f"{_FAKE}.__format__", _formatted
    yield from packed_sequences()
    name = "torch.distributed._broadcast_coalesced"
    yield name, values.keeping(resolve_name(name))
    for kind in ("Map", "Iterable"):
        fetch = f"torch.utils.data._utils.fetch._{kind}DatasetFetcher.fetch"
        yield fetch, values.loading(resolve_name(fetch))


def _with_real_tensors(in_worker: Callable[[], Any]) -> Iterator[Replacement]:
    # DistributedDataParallel compares shapes with all ranks in C++.
    yield "torch.distributed._verify_params_across_processes", returning(None)
    # A mesh is an array of ranks, and its methods read it.
    meshes = [name for name, module in sys.modules.items() if "init_device_mesh" in vars(module)]
    yield from run_within(unset_fake_temporarily, *(f"{name}.init_device_mesh" for name in meshes))
    of_mesh = (f"torch.distributed.device_mesh.DeviceMesh.{name}" for name in ("__init__", "__getitem__", "_flatten"))
    yield from run_within(unset_fake_temporarily, *of_mesh)
    yield "torch._subclasses.fake_tensor.log.disabled", True  # it logs errors of operators with their tracebacks
    # `module.to()` swaps a tensor with another one only without weak references; the mode has one to each tensor.
    yield "torch.utils.weakref", SimpleNamespace(getweakrefs=lambda _: [])
    yield "torch.utils.swap_tensors", _swap
    yield "torch.Tensor.data", property(DATA.__get__, set_data)
    yield f"{_FAKE}.as_subclass", lambda tensor, _: tensor  # it has a class already
    yield "torch.Tensor._make_subclass", staticmethod(_subclass)
    yield f"{_LAZY}.materialize", _materialize
    yield "torch.nn.parameter.UninitializedBuffer.__torch_function__", classmethod(_still_lazy)
    yield f"{_LAZY}.shape", property(_SHAPE)
    yield "torch.nn.Parameter.__new__", staticmethod(_parameter)
    yield f"{_FAKE}.__new__", staticmethod(_fake_tensor)
    # Objects travel as tensors of bytes.
    for name in ("all_gather_object", "gather_object"):
        modules = "torch.distributed", "torch.distributed.distributed_c10d"
        yield from run_within(unset_fake_temporarily, *(f"{module}.{name}" for module in modules))
    yield "torch.Tensor.__deepcopy__", _deepcopy
    # A storage copies by new tensors of bytes, which would have no data.
    share = within(_disable_current_modes, UntypedStorage.share_memory_)
    storage = "torch.UntypedStorage"
    yield f"{storage}.share_memory_", lambda storage: share(storage) if storage.device.type == "cpu" else storage
    yield from run_within(_disable_current_modes, *(f"{storage}.{name}" for name in ("copy_", "fill_", "from_buffer")))
    yield f"{storage}.__getitem__", _part_of_storage
    yield "torch.asarray", _asarray
    yield f"{_FAKE}.data_ptr", _address_of_tensor
    yield f"{storage}.data_ptr", _address
    # As without overflow.
    scaler = "torch.amp.grad_scaler.GradScaler"
    yield f"{scaler}._maybe_opt_step", lambda _, optimizer, __, *args, **options: optimizer.step(*args, **options)
    yield "torch.distributions.Distribution._validate_args", False  # it compares values
    # A data loader loads in the program's process: other processes cannot send tensors without data.
    yield "torch.utils.data.DataLoader.__setattr__", _load_here
    iterating = "torch.utils.data.dataloader._SingleProcessDataLoaderIter.__init__"
    yield iterating, lambda iterator, loader: _begin_loading(iterator, loader, in_worker)
    for module in ("torch.optim.optimizer", "torch.utils._foreach_utils"):  # many tensors of these classes at once
        name = f"{module}._foreach_supported_types"
        yield name, [*resolve_name(name), FakeTensor]
    yield "torch.optim.LBFGS.step", _refuse_search
    yield "torch.nn.init._no_grad_trunc_normal_", _drawn_once


class _Elsewhere(int):
    """No workers, where the program has asked for some."""


def _load_here(loader: Any, name: str, value: Any) -> None:
    """Set an attribute of a data loader, also of a subclass, as if it had no workers."""
    is_elsewhere = name == "num_workers" and (value > 0 or isinstance(value, _Elsewhere))
    _SET(loader, name, _Elsewhere() if is_elsewhere else _NO_WORKERS.get(name, value))


def _begin_loading(iterator: Any, loader: Any, in_worker: Callable[[], Any]) -> None:
    """Begin an epoch; where the program asks for workers, it is that of an only one, which takes all samples."""
    if not isinstance(loader.num_workers, _Elsewhere):
        _BEGIN_LOADING(iterator, loader)
        return
    info = worker.WorkerInfo(id=0, num_workers=1, seed=torch.initial_seed(), dataset=loader.dataset)

    @contextmanager
    def in_only_worker() -> Iterator[None]:
        with in_worker(), patch.object(worker, "_worker_info", info):
            yield

    with in_only_worker():
        if loader.worker_init_fn:
            loader.worker_init_fn(0)
        _BEGIN_LOADING(iterator, loader)
    iterator._next_data = within(in_only_worker, iterator._next_data)


def _deepcopy(tensor: Tensor, memo: dict[int, Any]) -> Any:
    """Copy a tensor with its data or, without data, its attributes, among them known values.

    Its mode is not copied: a copied StorageWeakRef would free the reference of another, and corrupt the memory.
    """
    if isinstance(tensor, FakeTensor):
        memo[id(tensor.fake_mode)] = tensor.fake_mode
    if isinstance(tensor, FakeTensor) or is_traceable_wrapper_subclass(tensor):
        return _DEEPCOPY(tensor, memo)  # type: ignore[no-untyped-call]
    return with_data(device_of(tensor), _DEEPCOPY, tensor, memo)


def _parameter(kind: Any, data: Tensor | None = None, requires_grad: bool = True) -> Any:
    """Make a parameter without data, also from numbers that have data, as it will be trained.

    kind: the class; the program's own class becomes a subclass of FakeTensor.
    """
    if type(data) is Tensor and data.is_floating_point():
        data = torch.empty_strided(data.shape, data.stride(), dtype=data.dtype, device=device_of(data))
    made = _PARAMETER(kind, data.detach() if isinstance(data, FakeTensor) else data, requires_grad)
    if isinstance(made, FakeTensor) and kind is not nn.Parameter:
        if not issubclass(kind, FakeTensor):
            kind.__bases__ = FakeTensor, *kind.__bases__
        made.__class__ = kind
    place(made, made.device if data is None else device_of(data))
    return made


def _subclass(kind: Any, data: Tensor, *args: Any, **options: Any) -> Any:
    is_lazy = issubclass(kind, _KIND_OF_LAZY)
    if not (is_lazy or (isinstance(data, FakeTensor) and issubclass(kind, nn.Parameter))):
        return make_with_keys_of_cpu(kind, data, *args, **options)
    made = _parameter(kind, data, *args, **options)
    made._is_param = issubclass(kind, nn.Parameter)
    return made


def _still_lazy(kind: Any, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
    """Run a function, such as `to`, on a buffer of a lazy module."""
    made = _disabled_torch_function_impl(function, types, args, options or {})
    if isinstance(made, FakeTensor):
        made.__class__ = kind
    return made


def _materialize(tensor: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    """Give a parameter or buffer of a lazy module its shape."""
    if isinstance(tensor, FakeTensor):
        tensor.data = torch.empty(shape, device=device or device_of(tensor), dtype=dtype or tensor.dtype)
        tensor.__class__ = FakeTensor
    else:
        _MATERIALIZE(tensor, shape, device, dtype)


def _fake_tensor(kind: Any, *args: Any, **options: Any) -> Any:
    """Make a tensor without data, or a parameter as `type(parameter)(data)` does in loaders of checkpoints."""
    if isinstance(args[0], Tensor) and options.keys() <= {"requires_grad"}:
        return _parameter(kind if issubclass(kind, nn.Parameter) else nn.Parameter, *args, **options)
    return _FAKE_TENSOR(kind, *args, **options)


def _swap(tensor: Tensor, other: Tensor) -> None:
    """Move a parameter as `module.to()` does with data, also where a graph holds it for a weight norm."""
    if isinstance(tensor, FakeTensor) and isinstance(other, FakeTensor) and tensor.is_meta == other.is_meta:
        tensor.data = other
    else:
        _SWAP(tensor, other)  # type: ignore[no-untyped-call]


def _asarray(source: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """Return a tensor without data for a storage with data, such as a file's."""
    if isinstance(source, UntypedStorage):
        dtype = dtype or torch.get_default_dtype()
        return torch.empty_strided((source.nbytes() // dtype.itemsize,), (1,), dtype=dtype)
    return _ASARRAY(source, dtype=dtype, **options)


def _part_of_storage(storage: Any, part: Any) -> Any:
    if storage.device.type == "meta":
        raise RuntimeError("with --fake a storage cannot be sliced: slice its tensor, or record without --fake")
    return _PART(storage, part)


def _address(storage: Any) -> Any:
    """Return an address that distinguishes storages without data.

    All share the memory at these addresses, which libraries such as safetensors may read and write.
    """
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if storage.device.type != "meta":
        return _ADDRESS(storage)
    caller = frame.f_code.co_filename
    if not storage.nbytes() or (caller.startswith(str(TORCH)) and not caller.startswith(str(TORCH / "distributed"))):
        return 0  # as torch expects, but for FSDP, which compares storages
    return _memory().ctypes.data + storage._cdata % _LARGEST


@cache
def _memory() -> np.ndarray[Any, Any]:
    return np.frombuffer(mmap(-1, 2 * _LARGEST, MAP_PRIVATE | MAP_ANONYMOUS | _MAP_NORESERVE), np.uint8)


def _address_of_tensor(tensor: FakeTensor) -> Any:
    address = _address(tensor.untyped_storage())
    return address and address + tensor.storage_offset() * tensor.itemsize


def _refuse_search(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("LBFGS evaluates the loss until its values end the search: record without --fake")


@torch.no_grad()
def _drawn_once(tensor: Tensor, mean: float, std: float, *_: Any, **options: Any) -> Tensor:
    """Draw an initial weight once; torch would draw again until all values are within bounds."""
    return tensor.normal_(mean, std, **options)


def _formatted(tensor: Tensor, specification: str) -> str:
    """Format a tensor of one number like the number, as torch does for its own class only."""
    return format(tensor.item() if tensor.dim() == 0 else str(tensor), specification)
