"""`without_data`: a program runs on tensors without data, so that nothing is computed and no memory is used.

The tensors are those of PyTorch's FakeTensorMode: they have shape, dtype, device and storage. Where PyTorch itself
reads a tensor's data in C++, or makes tensors that describe the job and not the model, these are real.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Reducer
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed import device_mesh, distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

_TORCH = Path(torch.__file__).parent
# Through their lines a call of the program's own, such as `tensor.item()`, comes to us.
_CALLERS = ("_compile.py", "_dynamo/eval_frame.py", "_ops.py", "_tensor.py", "_tensor_str.py")
_ON_THE_WAY = {str(_TORCH / name) for name in _CALLERS}
_OURS = str(Path(__file__).parent)


class WithoutValues(TorchDispatchMode):
    """Gives whoever reads an element a plain number: False, 1 or 1.0; and warns once if that is the program itself.

    The mode below takes cpu:0 for another device than cpu, so the index of a CPU is left out.
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
        if func is not torch.ops.aten._local_scalar_dense.default or not isinstance(args[0], FakeTensor):
            return func(*args, **kwargs)
        self._warn_once()
        return _value_of(args[0].dtype)

    def array_of(self, tensor: FakeTensor) -> np.ndarray[Any, Any]:
        """Return a NumPy array as `tensor.numpy()` does, of the same shape and dtype; all its elements are alike."""
        self._warn_once()
        with unset_fake_temporarily():
            dtype = torch.empty(0, dtype=tensor.dtype).numpy().dtype
        return np.full(tuple(tensor.shape), _value_of(tensor.dtype), dtype)

    def _warn_once(self) -> None:
        """Warn of the line that reads, unless it is torch's: optimizers and data loaders need no real numbers."""
        frame = sys._getframe(1)
        while frame.f_back and (frame.f_code.co_filename in _ON_THE_WAY or frame.f_code.co_filename.startswith(_OURS)):
            frame = frame.f_back
        if not self._has_warned and not frame.f_code.co_filename.startswith(str(_TORCH)):
            self._has_warned = True
            message = "the program reads values, and with --fake there are none: it gets False, 1 or 1.0"
            warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def _value_of(dtype: torch.dtype) -> float | int | bool:
    """Return the number that stands for all of a dtype."""
    if dtype == torch.bool:
        return False
    return 1 if not dtype.is_floating_point else 1.0


class RealIntegers(TorchDispatchMode):
    """Lets integers that are made now have data, and whatever is computed from them alone."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        makes_integers = not tensors and kwargs.get("dtype") in (torch.int32, torch.int64)
        if makes_integers or (tensors and not any(isinstance(tensor, FakeTensor) for tensor in tensors)):
            with _disable_current_modes():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


@contextmanager
def without_data() -> Iterator[None]:
    """In the block tensors have shapes, dtypes and storages, but no data."""
    rebuild, make_mesh = Reducer._rebuild_buckets, device_mesh.init_device_mesh
    with ExitStack() as stack:
        # DistributedDataParallel compares shapes with all ranks, and sends the order of its buckets, in C++.
        stack.enter_context(patch.object(dist, "_verify_params_across_processes", _compare_nothing))
        stack.enter_context(patch.object(Reducer, "_rebuild_buckets", _within(RealIntegers, rebuild)))
        # A mesh is an array of ranks, and its methods read it.
        for module in list(sys.modules.values()):
            if vars(module).get("init_device_mesh") is make_mesh:
                stack.enter_context(
                    patch.object(module, "init_device_mesh", _within(unset_fake_temporarily, make_mesh))
                )
        for name in ("__init__", "__getitem__", "_flatten"):
            method = vars(device_mesh.DeviceMesh)[name]
            stack.enter_context(patch.object(device_mesh.DeviceMesh, name, _within(unset_fake_temporarily, method)))
        stack.enter_context(patch.object(torch.utils, "swap_tensors", _replace_tensor))
        # Objects travel as tensors of bytes.
        for name in ("all_gather_object", "gather_object"):
            function = getattr(dist, name)
            for module in (dist, distributed_c10d):
                stack.enter_context(patch.object(module, name, _within(unset_fake_temporarily, function)))
        # copy.deepcopy() asks a tensor for its address, to see whether it has data, and does right by both.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        without_values = WithoutValues()

        def numpy(tensor: FakeTensor, *, force: bool = False) -> np.ndarray[Any, Any]:  # noqa: ARG001
            return without_values.array_of(tensor)

        stack.enter_context(patch.object(FakeTensor, "numpy", numpy))
        stack.enter_context(patch.object(FakeTensor, "__format__", _formatted))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(without_values)
        yield


def _compare_nothing(*_: object) -> None:
    """Other ranks have the same shapes."""


def _formatted(tensor: Tensor, specification: str) -> str:
    """Write a tensor of one number as the number, which torch does with its own class of tensors only."""
    return format(tensor.item() if tensor.dim() == 0 else str(tensor), specification)


def _within(make_context: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function so that it runs in a context of its own each time."""

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        with make_context():
            return function(*args, **options)

    return called


def _replace_tensor(tensor: Tensor, other: Tensor) -> None:
    """Give `tensor` what `other` has, as `module.to(dtype)` does.

    torch swaps the two, and cannot if there are weak references to one, as the mode has to each of its tensors.
    """
    tensor.data = other
