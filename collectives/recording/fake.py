"""`without_data`: run a program on tensors without data, which computes nothing and uses no memory.

The tensors are PyTorch's fake tensors, with shape, dtype, device and storage. Tensors that PyTorch reads in C++, or
that describe the job and not the model, are real.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache, wraps
from inspect import signature
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, UntypedStorage
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.amp.grad_scaler import GradScaler
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.device_mesh import DeviceMesh
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from collectives.recording.pretended_cuda import Replacement, replaced

_TORCH = Path(torch.__file__).parent
# Files of torch between a call of the program, such as `tensor.item()`, and this module.
_CALLERS = "_compile", "_dynamo/eval_frame", "_ops", "_subclasses/fake_tensor", "_tensor", "_tensor_str"
_ON_THE_WAY = {f"{_TORCH / name}.py" for name in _CALLERS}
_WITH_DATA = (torch.int8, torch.int16, torch.int32, torch.int64)
MAX_INTEGERS = 2**22
_DEEPCOPY, _ADDRESS, _ASARRAY = Tensor.__deepcopy__, UntypedStorage.data_ptr, torch.asarray
_MAKE_LOADER = DataLoader.__init__
_LARGEST = 2**43  # bytes of a storage, and of the places at which storages begin
_MAP_NORESERVE = 0x4000  # Linux's; Python has it from 3.13 on
_OURS = str(Path(__file__).parent)


class WithoutValues(TorchDispatchMode):
    """Returns False, 1 or 1.0 for an element, and warns once if the program itself reads it.

    Small integer tensors that are not computed from fractions have data: tokens, file offsets, bucket sizes. The mode
    below takes cpu:0 for another device than cpu, so the index of a CPU is left out.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._has_warned = False

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(device := kwargs.get("device"), torch.device) and device.type == "cpu":
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if _has_data(func, args, kwargs):
            with _disable_current_modes():
                return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default and _is_unknown(args[0]):
            self._warn_once()
            return _value_of(args[0].dtype)
        outcome = func(*args, **kwargs)
        if func._schema.is_mutable:
            _forget_written(func, args, kwargs)
        return outcome

    def array_of(self, tensor: FakeTensor) -> np.ndarray[Any, Any]:
        self._warn_once()
        with unset_fake_temporarily():
            dtype = torch.empty(0, dtype=tensor.dtype).numpy().dtype
        return np.full(tuple(tensor.shape), _value_of(tensor.dtype), dtype)

    def _warn_once(self) -> None:
        """Warn about the line that reads, unless it is torch's, which needs no real numbers."""
        frame = sys._getframe(1)
        while frame.f_back and (frame.f_code.co_filename in _ON_THE_WAY or frame.f_code.co_filename.startswith(_OURS)):
            frame = frame.f_back
        if not self._has_warned and not frame.f_code.co_filename.startswith(str(_TORCH)):
            self._has_warned = True
            message = "the program reads values, and with --fake there are none: it gets False, 1 or 1.0"
            warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def _value_of(dtype: torch.dtype) -> float | int | bool:
    return False if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1


def _has_data(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operator makes few integers from no tensors, or has only few integers with data."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if tensors:
        return sum(tensor.numel() for tensor in tensors) <= MAX_INTEGERS and not any(
            _is_unknown(tensor) or tensor.is_floating_point() or tensor.is_complex() for tensor in tensors
        )
    is_on_cpu = torch.device(kwargs.get("device") or "cpu").type == "cpu"
    if not is_on_cpu or kwargs.get("dtype", _WITH_DATA[0]) not in _WITH_DATA:
        return False
    with _disable_current_modes(), suppress(RuntimeError, TypeError):  # it makes no tensor
        made = func(*args, **{**kwargs, "device": "meta"} | ({"generator": None} if "generator" in kwargs else {}))
        return made.dtype in _WITH_DATA and made.numel() <= MAX_INTEGERS
    return False


def _is_unknown(tensor: Tensor) -> bool:
    """Whether a tensor has no data, or wrong data."""
    return isinstance(tensor, FakeTensor) or hasattr(tensor.untyped_storage(), "is_unknown")


def _forget_written(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Fill tensors with data that an operator has overwritten with values from tensors without data."""
    arguments = {argument.name: argument.alias_info for argument in func._schema.arguments}
    given = {**dict(zip(arguments, args, strict=False)), **kwargs}
    written = [value for name, value in given.items() if (alias := arguments[name]) is not None and alias.is_write]
    for tensor in tree_leaves(written):
        if isinstance(tensor, Tensor) and not _is_unknown(tensor):
            with _disable_current_modes():
                tensor.fill_(_value_of(tensor.dtype))
            tensor.untyped_storage().is_unknown = True  # type: ignore[attr-defined]


@contextmanager
def without_data() -> Iterator[None]:
    """Let tensors have shapes, dtypes and storages, but no data, within the block."""
    with ExitStack() as stack:
        stack.enter_context(replaced([*_with_real_tensors(), *_without_saving()]))
        with suppress(ImportError):
            stack.enter_context(patch("safetensors.torch.save_file", _do_nothing))
        without_values = WithoutValues()
        numpy = (FakeTensor, "numpy", lambda tensor, **_: without_values.array_of(tensor))
        stack.enter_context(replaced([numpy, (FakeTensor, "__format__", _formatted)]))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(without_values)
        yield


def _with_real_tensors() -> Iterator[Replacement]:
    """Yield replacements for functions of torch whose tensors need data or memory."""
    make_mesh = device_mesh.init_device_mesh
    # DistributedDataParallel compares shapes with all ranks in C++.
    yield dist, "_verify_params_across_processes", _do_nothing
    # A mesh is an array of ranks, and its methods read it.
    for module in list(sys.modules.values()):
        if vars(module).get("init_device_mesh") is make_mesh:
            yield module, "init_device_mesh", _within(unset_fake_temporarily, make_mesh)
    for name in ("__init__", "__getitem__", "_flatten"):
        yield DeviceMesh, name, _within(unset_fake_temporarily, vars(DeviceMesh)[name])
    # `module.to()` swaps a tensor with another one only without weak references; the mode has one to each tensor.
    yield torch.utils, "weakref", SimpleNamespace(getweakrefs=lambda _: [])
    # Objects travel as tensors of bytes.
    for name in ("all_gather_object", "gather_object"):
        function = _within(unset_fake_temporarily, getattr(dist, name))
        yield from ((module, name, function) for module in (dist, distributed_c10d))
    yield Tensor, "__deepcopy__", _deepcopy
    # A storage copies by new tensors of bytes, which would have no data.
    for name in ("copy_", "fill_", "share_memory_"):
        yield UntypedStorage, name, _within(_disable_current_modes, getattr(UntypedStorage, name))
    yield torch, "asarray", _asarray
    yield FakeTensor, "data_ptr", _address_of_tensor
    yield UntypedStorage, "data_ptr", _address
    yield GradScaler, "_maybe_opt_step", _step_always
    yield DataLoader, "__init__", _load_here


def _without_saving() -> Iterator[Replacement]:
    """Yield replacements for functions of torch that would overwrite the program's checkpoints."""
    yield torch, "save", _do_nothing
    yield from ((torch._C.ScriptModule, name, lambda *_, **__: b"") for name in ("save", "save_to_buffer"))
    yield state_dict_saver, "_save_state_dict", lambda *_, **__: Metadata({})


def _deepcopy(tensor: Tensor, memo: dict[int, Any]) -> Any:
    """Copy a tensor with its data or, without data, its attributes, among them known values.

    Its mode is not copied: a copied StorageWeakRef would free the reference of another, and corrupt the memory.
    """
    if isinstance(tensor, FakeTensor):
        memo[id(tensor.fake_mode)] = tensor.fake_mode
    with nullcontext() if isinstance(tensor, FakeTensor) else _disable_current_modes():
        return _DEEPCOPY(tensor, memo)  # type: ignore[no-untyped-call]


def _asarray(source: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """Return a tensor without data for a storage with data, such as a file's."""
    if isinstance(source, UntypedStorage):
        dtype = dtype or torch.get_default_dtype()
        return torch.empty(source.nbytes() // dtype.itemsize, dtype=dtype)
    return _ASARRAY(source, dtype=dtype, **options)


def _address(storage: Any) -> Any:
    """Return an address that distinguishes storages without data.

    Storages share the memory there, which libraries such as safetensors may read and write.
    """
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if storage.device.type != "meta":
        return _ADDRESS(storage)
    if frame.f_code.co_filename.startswith(str(_TORCH)):
        return 0  # as torch expects
    return _memory().ctypes.data + storage._cdata % _LARGEST


@cache
def _memory() -> np.ndarray[Any, Any]:
    """Return bytes that take memory only once written."""
    return np.frombuffer(mmap(-1, 2 * _LARGEST, MAP_PRIVATE | MAP_ANONYMOUS | _MAP_NORESERVE), np.uint8)


def _address_of_tensor(tensor: FakeTensor) -> Any:
    address = _address(tensor.untyped_storage())
    return address and address + tensor.storage_offset() * tensor.itemsize


def _do_nothing(*_: object, **__: object) -> None:
    """Replace a function that compares ranks, or saves tensors."""


def _step_always(_: GradScaler, optimizer: Optimizer, __: object, *args: Any, **options: Any) -> Any:
    """Step the optimizer, like a GradScaler without overflow."""
    return optimizer.step(*args, **options)


@wraps(_MAKE_LOADER)
def _load_here(loader: DataLoader[Any], *args: Any, **options: Any) -> None:
    """Make a data loader load in the program's process: other processes cannot send tensors without data."""
    bound = signature(_MAKE_LOADER).bind(loader, *args, **options)
    for name in ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
        bound.arguments.pop(name, None)
    _MAKE_LOADER(*bound.args, **bound.kwargs)


def _formatted(tensor: Tensor, specification: str) -> str:
    """Format a tensor of one number as the number; torch does so only for its own class."""
    return format(tensor.item() if tensor.dim() == 0 else str(tensor), specification)


def _within(make_context: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        with make_context():
            return function(*args, **options)

    return called
