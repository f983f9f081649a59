"""`placed_on_cuda`: tensors without data are on the CUDA device that the program asks for, as far as Python sees.

C++ sees tensors of the CPU, since a build for CPUs has neither streams nor an autograd engine for CUDA.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from numbers import Integral
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch._dynamo.utils import get_torch_function_mode_stack, set_torch_function_mode_stack
from torch._functorch import config
from torch._guards import active_fake_mode
from torch._ops import OpOverload
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from collectives.recording.replacements import Replacement, replaced, run_within, within

Arguments = tuple[Any, ...]
Options = dict[str, Any]
T = TypeVar("T")

Device = torch.device
CPU = Device("cpu")
FROM_PYTHON = Device("cpu", 0)  # where a program moves a tensor to the CPU; C++ gives the CPU no index
_BUFFER = GradBucket.buffer
_PARSE_TO, _TO, _NEW_TENSOR = torch._C._nn._parse_to, Tensor.to, Tensor.new_tensor
_NEW: Any = Tensor.new
_ASK_CPP: Any = Tensor.device.__get__
_MAKE_SUBCLASS, _DISPATCH = Tensor._make_subclass, FakeTensor.__torch_dispatch__
_MAKE_WRAPPER: Any = Tensor._make_wrapper_subclass
_RUN_IN_MODE = FakeTensorMode.dispatch
_SAVE = saved_tensors_hooks.__init__
_PAD = torch._C._nn.pad_sequence
_RUN = fake_tensor.run_fallback_kernel
_DEVICE = torch.ops.prim.device.default
PINNED = "_is_said_to_be_pinned"  # attribute of a storage
_PLACE = "_place"  # attribute of a tensor with data


def device_of(tensor: Tensor) -> Device:
    """Return the device where the program has placed a tensor."""
    if isinstance(tensor, FakeTensor):
        return tensor.device
    if isinstance(tensor, FunctionalTensor):
        return device_of(torch._from_functional_tensor(tensor.elem))
    if is_traceable_wrapper_subclass(tensor):
        return device_of(getattr(tensor, tensor.__tensor_flatten__()[0][0]))
    device: Device = getattr(tensor, _PLACE, None) or _ASK_CPP(tensor)
    return device


def tensors_in(*values: Any) -> list[Tensor]:
    """Return the tensors in lists, tuples and dictionaries."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += tensors_in(*value)
        elif isinstance(value, dict):
            tensors += tensors_in(*value.values())
    return tensors


def gpu_of(*values: Any) -> Device | None:
    """Return the device of the first tensor on a GPU, if any."""
    return next((device for device in map(device_of, tensors_in(*values)) if device.type == "cuda"), None)


def place(tensor: Tensor, device: Device) -> None:
    """Remember that the program has placed a tensor there."""
    if isinstance(tensor, FakeTensor):
        tensor.fake_device = with_index(device)
    elif device.type == "cuda" or hasattr(tensor, _PLACE):
        setattr(tensor, _PLACE, with_index(device))


def place_made(made: Any, device: Device | None) -> None:
    """Place tensors that C++ has made on the CPU."""
    for tensor in tensors_in(made) if device else ():
        if device and device_of(tensor).type == "cpu":
            place(tensor, device)


def with_data(at: Device, function: Callable[..., T], /, *args: Any, **options: Any) -> T:
    """Call a function on tensors with data, where all others have none, and place its results."""
    with torch._C._DisableTorchDispatch():
        outcome = function(*args, **options)
    for tensor in tensors_in(outcome):
        place(tensor, at)
    return outcome


def with_index(device: Any) -> Any:
    """Return the current CUDA device for one without index, or a number's CUDA device."""
    if type(device) is int:
        return Device("cuda", device)
    if isinstance(device, str | Device) and (parsed := Device(device)).type == "cuda":
        return Device("cuda", torch.cuda.current_device()) if parsed.index is None else parsed
    return device


class OnCuda(TorchFunctionMode):
    """Takes a number for a CUDA device, and pins no memory."""

    def put(self, device: Any) -> Any:
        """Return a tensor's device; a method, as Dynamo guards no function of a class."""
        return with_index(device)

    def __torch_function__(self, func: Any, types: Any, args: Arguments = (), kwargs: Options | None = None) -> Any:
        if not kwargs and func is not Device and func is not torch.tensor:  # most calls
            return func(*args)
        kwargs = kwargs or {}
        if func is Device:
            return Device("cuda", *args) if args and type(args[0]) is int else Device(*args, **kwargs)
        if "device" in kwargs:
            device = self.put(kwargs["device"])
            is_on_cpu = device is not None and Device(device).type == "cpu"
            kwargs = {**kwargs, "device": FROM_PYTHON if is_on_cpu and _copies_attributes(func) else device}
        if func is torch.tensor and any(type(part) is FakeTensor for part in tensors_in(args)):
            return _joined(args[0], **kwargs)
        if kwargs.get("pin_memory"):
            return pinned(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)


class WithDataOnCuda(OnCuda):
    """Runs functions on tensors with data, such as another thread's, and places results on CUDA."""

    def __torch_function__(self, func: Any, types: Any, args: Arguments = (), kwargs: Options | None = None) -> Any:
        kwargs = dict(kwargs or {})
        device = gpu_of(args)
        if func not in (_PARSE_TO, _parse) and kwargs.get("device") is not None:
            device = with_index(kwargs["device"])
            kwargs["device"] = CPU if Device(device).type == "cuda" else device
        outcome = super().__torch_function__(func, types, args, kwargs)
        place_made(outcome, device)
        return outcome


def _joined(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """Return `torch.tensor(data)` of lists of tensors, whose numbers C++ would read."""
    if isinstance(data, list | tuple):
        joined = torch.stack([_joined(part) for part in data])
    else:
        joined = data.detach() if isinstance(data, Tensor) else torch.tensor(data)
    return joined.to("cpu" if device is None else device, dtype or joined.dtype).requires_grad_(requires_grad)


@cache
def _copies_attributes(func: Any) -> bool:
    """Whether a function, not an operator called by C++, makes a tensor like its argument, as `zeros_like`."""
    name = "" if isinstance(func, OpOverload) else getattr(func, "__name__", "")
    return name.startswith("new_") or name.endswith("_like")


def pinned(tensor: Tensor, *_: object, **__: object) -> Tensor:
    """Remember that the program has pinned a tensor's memory."""
    setattr(tensor.untyped_storage(), PINNED, True)
    return tensor


def _parse(*args: Any, **kwargs: Any) -> Any:
    if "device" in kwargs:
        kwargs["device"] = with_index(kwargs["device"])
    return _PARSE_TO(*map(with_index, args[:1]), *args[1:], **kwargs)


def _moved(tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Any:
    if "other" in kwargs or (args and isinstance(args[0], Tensor)):
        other, *rest = (kwargs.pop("other"), *args) if "other" in kwargs else args
        args = device_of(other), other.dtype, *rest
    if len(args) > 2 and type(args[-2]) is bool:
        args, copy = args[:-1], args[-1]
    device, dtype, non_blocking, memory_format = _parse(*args, **kwargs)
    options = {"non_blocking": non_blocking, "memory_format": memory_format or torch.preserve_format}
    if device is None or device == device_of(tensor):
        return _TO(tensor, dtype=dtype or tensor.dtype, copy=copy, **options)
    if active_fake_mode() is None and not isinstance(tensor, FakeTensor):
        return with_data(device, _TO, tensor, dtype=dtype or tensor.dtype, copy=True, **options)
    device = FROM_PYTHON if device == CPU else device
    return torch.ops.aten._to_copy(tensor, dtype=dtype, device=device, **options)


def _on_gpu(tensor: Tensor, device: Any = None, non_blocking: bool = False, **options: Any) -> Any:
    return _moved(tensor, "cuda" if device is None else device, non_blocking=non_blocking, **options)


def _run_on_cpu(mode: FakeTensorMode, func: Any, flat_args: Any, *rest: Any) -> Any:
    """Run an operator that has no kernel without data, on zeros of a CPU."""
    places = {tensor: tensor.device for tensor in flat_args if isinstance(tensor, FakeTensor)}
    asked = [value for value in flat_args if isinstance(value, Device)]
    device = asked[0] if asked else gpu_of(flat_args) or CPU
    try:
        for tensor in places:
            place(tensor, CPU)
        outcome = _RUN(mode, func, [CPU if isinstance(value, Device) else value for value in flat_args], *rest)
    finally:
        for tensor, at in places.items():
            place(tensor, at)
    place_made(outcome, device)
    return outcome


def _new(tensor: Tensor, *args: Any, **options: Any) -> Any:
    """Make a tensor of some sizes or numbers, as `Tensor.new`, which C++ makes on the CPU."""
    sizes = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
    if all(isinstance(size, Integral) for size in sizes):
        return tensor.new_empty(sizes, **options)
    return _moved(_NEW(tensor, *args), options.get("device") or device_of(tensor))


def _index_of(tensor: Tensor) -> int:
    device = device_of(tensor)
    return -1 if device.type == "cpu" else device.index or 0


def _padded(tensors: Any, *args: Any, **options: Any) -> Tensor:
    return _moved(_PAD(tensors, *args, **options), device_of(tensors[0]))  # type: ignore[no-any-return]


def _scatter(tensor: Tensor, devices: list[int] | None = None, *_: Any, **__: Any) -> tuple[Tensor, ...]:
    if not devices or len(devices) > 1:
        raise RuntimeError("nn.DataParallel on several devices cannot be recorded: use DistributedDataParallel")
    return (tensor.to(with_index(devices[0])),)


def _buffer(bucket: Any) -> Tensor:
    """Return the bucket of a hook of DistributedDataParallel, which C++ has made on the CPU."""
    buffer: Tensor = _BUFFER(bucket)
    place(buffer, device_of(bucket.parameters()[0]))
    return buffer


def _save_on_cuda(hooks: Any, pack_hook: Any, unpack_hook: Any) -> None:
    _SAVE(hooks, within(OnCuda, pack_hook), unpack_hook)


_OURS: dict[Any, Callable[..., Any]] = {
    Tensor.to: _moved,
    Tensor.cuda: _on_gpu,
    Tensor.cpu: lambda tensor, **options: _moved(tensor, CPU, **options),
    Tensor.type_as: _moved,
    Tensor.new_tensor: lambda tensor, *args, **options: _NEW_TENSOR(
        tensor, *args, **{"device": device_of(tensor), **options}
    ),
    Tensor.new: _new,
    Tensor.get_device: _index_of,
}


def in_cpp(tensor: FakeTensor) -> Device:
    """Return the device of a tensor in torch's C++."""
    return CPU if tensor.device.type == "cuda" else tensor.device


def make_with_keys_of_cpu(*args: Any, **options: Any) -> Any:
    """Make a tensor as `Tensor._make_subclass`; C++ takes one on CUDA for one of the CPU."""
    if getattr(options.get("device_for_backend_keys"), "type", "") == "cuda":
        options["device_for_backend_keys"] = CPU
    return _MAKE_SUBCLASS(*args, **options)


def _wrapped(*args: Any, **options: Any) -> Tensor:
    """Make a tensor as `Tensor._make_wrapper_subclass`; C++ takes one on CUDA for one of the CPU."""
    devices = [value for value in (*args, with_index(options.get("device"))) if isinstance(value, Device)]
    if not devices or devices[0].type != "cuda":
        return _MAKE_WRAPPER(*args, **options)  # type: ignore[no-any-return]
    if "device" in options:
        options["device"] = CPU
    made: Tensor = _MAKE_WRAPPER(*(CPU if isinstance(value, Device) else value for value in args), **options)
    place(made, devices[0])
    return made


def _dispatched(_: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    return in_cpp(args[0]) if func is _DEVICE else _DISPATCH(func, types, args, kwargs or {})


def _made_in_place(mode: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Run an operator for Dynamo; where C++ makes a tensor like another, use the latter's device."""
    if kwargs and kwargs.get("device") == CPU and type(mode) is FakeTensorMode and args and isinstance(args[0], Tensor):
        kwargs = {**kwargs, "device": device_of(args[0])}
    return _RUN_IN_MODE(mode, func, types, args, kwargs)


class Captured(OnCuda):
    """Runs torch's own methods, captured by Dynamo, as those that replace them."""

    def __torch_function__(self, func: Any, types: Any, args: Arguments = (), kwargs: Options | None = None) -> Any:
        return super().__torch_function__(_OURS.get(func, func), types, args, kwargs)


def as_on_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs what Dynamo has captured, on tensors that Python sees on CUDA."""
    return within(Captured, function)


@contextmanager
def methods_of_torch() -> Iterator[None]:
    """Let tensors have torch's own methods within the block, as Dynamo knows no others."""
    modes = get_torch_function_mode_stack()
    own = [(f"torch.Tensor.{method.__name__}", method) for method in _OURS]
    with ExitStack() as stack:
        stack.callback(set_torch_function_mode_stack, modes)
        set_torch_function_mode_stack([mode for mode in modes if not isinstance(mode, OnCuda)])
        stack.enter_context(replaced([*own, ("torch._C._nn._parse_to", _PARSE_TO)]))
        yield


@contextmanager
def placed_on_cuda() -> Iterator[None]:
    """Let tensors without data be on CUDA devices within the block."""
    with (
        replaced(_replacements()),
        patch.dict(fake_tensor._DISPATCH_META_HANDLERS, {_DEVICE: lambda args: in_cpp(args[0])}),
        # Where C++ makes a tensor for one on CUDA, it is on the CPU.
        config.patch(fake_tensor_prefer_device_type="cuda"),
        OnCuda(),
    ):
        yield


def _replacements() -> Iterator[Replacement]:
    of_fake, tensor = "torch._subclasses.fake_tensor", "torch.Tensor"
    yield from run_within(WithDataOnCuda, "threading.Thread._bootstrap_inner")
    yield f"{of_fake}.FakeTensor.__torch_dispatch__", classmethod(_dispatched)
    yield f"{of_fake}.FakeTensor._normalize_fake_device", staticmethod(_normalized)
    yield f"{of_fake}.FakeTensorMode.dispatch", _made_in_place
    yield f"{of_fake}.FakeTensorMode.avoid_device_init", True
    yield f"{of_fake}.run_fallback_kernel", _run_on_cpu
    # The state of a generator of CUDA, which tensors without data need not follow.
    for module in ("_dispatch", "_random"):
        yield f"torch.distributed.tensor.{module}.is_rng_supported_mesh", lambda _: False
    region = {"distribute_region_enabled": False, "_distribute_region": lambda *_: nullcontext()}
    yield "torch.distributed.tensor._random._rng_tracker", SimpleNamespace(**region)
    yield f"{tensor}._make_wrapper_subclass", staticmethod(_wrapped)
    yield f"{tensor}.device", property(device_of)
    yield f"{tensor}.is_cuda", property(lambda tensor: tensor.device.type == "cuda")
    yield f"{tensor}.is_cpu", property(lambda tensor: tensor.device.type == "cpu")
    yield "torch.get_device", _index_of
    yield from ((f"{tensor}.{method.__name__}", ours) for method, ours in _OURS.items())
    yield from run_within(Captured, "torch._dynamo.utils.run_node")
    yield "torch._C._nn._parse_to", _parse
    yield "torch._C._nn.pad_sequence", _padded
    yield "torch.nn.parallel.comm.scatter", _scatter
    yield "torch._C._distributed_c10d.GradBucket.buffer", _buffer
    # torch leaves modes of functions within a function, and so in the hooks that it calls.
    yield from run_within(OnCuda, "torch.autograd._engine_run_backward")
    yield "torch.autograd.graph.saved_tensors_hooks.__init__", _save_on_cuda


def _normalized(device: Any) -> Any:
    return CPU if device == FROM_PYTHON else with_index(device)
