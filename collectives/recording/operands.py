"""The operands of an operator, by their names; `OnPlainTensors`, a mode that gets them."""

from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from collectives.recording.placement import in_cpp

DEVICE = torch.ops.prim.device.default


class OnPlainTensors(TorchDispatchMode):
    """Hands operators to `run`; for tensors such as DTensors, the operators on their parts."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Save time: Dynamo leaves the files of this package alone anyway."""
        return False

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and isinstance(args[0], FakeTensor):  # what C++ asks most often
            return in_cpp(args[0])
        if func.namespace == "profiler":  # of which FSDP calls many; it reads no tensors
            with torch._C._DisableTorchDispatch():
                return func(*args, **kwargs or {})
        if _have_parts(types):
            return NotImplemented  # then torch dispatches the operators on the parts
        return self.run(func, args, kwargs or {})

    def run(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError


@cache
def _have_parts(types: Any) -> bool:
    return any(map(is_traceable_wrapper_subclass_type, types))


@cache
def _defaults(func: OpOverload) -> dict[str, Any]:
    return {argument.name: argument.default_value for argument in func._schema.arguments}


def named(func: OpOverload, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return all arguments of an operator by name; None for a missing one."""
    defaults = _defaults(func)  # in the order of the arguments
    return {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}


@cache
def written(func: OpOverload) -> list[str]:
    """Return the names of the arguments that an operator writes."""
    arguments = func._schema.arguments
    return [argument.name for argument in arguments if argument.alias_info is not None and argument.alias_info.is_write]
