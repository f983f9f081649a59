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

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Reducer
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed import device_mesh
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

# Code of theirs is no line of the program.
_NOT_OF_THE_PROGRAM = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


class ValueReader(TorchDispatchMode):
    """Gives a program that reads an element a plain number: False, 1 or 1.0; and warns of that once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._has_warned = False

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not torch.ops.aten._local_scalar_dense.default or not isinstance(args[0], FakeTensor):
            return func(*args, **(kwargs or {}))
        dtype = args[0].dtype
        value = False if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1
        if not self._has_warned:
            self._has_warned = True
            _warn(f"the program reads a value, and with --fake there is none: it gets {value}, and 1 from now on")
        return value


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


def _warn(message: str) -> None:
    """Warn with the place of the program's line that runs now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_OF_THE_PROGRAM):
        frame = frame.f_back
    warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)


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
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(ValueReader())
        yield


def _compare_nothing(*_: object) -> None:
    """Other ranks have the same shapes."""


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
