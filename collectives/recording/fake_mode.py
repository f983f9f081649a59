"""`CachingFakeMode`: make tensors without data, with a cache of outcomes; `value_of`: the values that are read."""

import threading
from contextlib import suppress
from typing import Any, NoReturn
from unittest.mock import patch

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from collectives.recording.placement import CPU

aten = torch.ops.aten
_MAKE_SUBCLASS = Tensor._make_subclass
# Functions by which torch's operators in Python make tensors; programs replace them to choose a device or a dtype.
_FACTORIES = {name: getattr(torch, name) for name in ("empty", "zeros", "ones", "full", "arange", "tensor", "eye")}
_PLACES = "cpu", "cuda"  # kinds of devices
COMPARED = "_compared"  # attribute of the outcome of a comparison


class _StateOfThread(threading.local):
    def __init__(self) -> None:
        self.in_kernel_invocation = False
        self.enter_stack: list[Any] = []


def _of_thread(name: str) -> Any:
    """Return an attribute of a mode per thread; torch has one for all."""
    return property(lambda mode: getattr(mode._state, name), lambda mode, value: setattr(mode._state, name, value))


class CachingFakeMode(FakeTensorMode):
    """A FakeTensorMode with a quicker cache than torch's."""

    in_kernel_invocation, enter_stack = _of_thread("in_kernel_invocation"), _of_thread("enter_stack")

    def __init__(self) -> None:
        self._state = _StateOfThread()
        super().__init__(allow_non_fake_inputs=True)
        self._entries: dict[Any, Any] = {}  # torch's
        self._attributes: dict[str, Any] = {}  # of each FakeTensor but for its device

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Read a value in another thread, which has no other mode; metrics are often collected there."""
        if func is aten._local_scalar_dense.default:
            return value_of(args[0])
        if not (others := [name for name, own in _FACTORIES.items() if getattr(torch, name) is not own]):
            return super().dispatch(func, types, args, kwargs)
        with patch.multiple(torch, **{name: _FACTORIES[name] for name in others}):
            return super().dispatch(func, types, args, kwargs)

    def create_symbolic_nested_int(self, **_: Any) -> NoReturn:
        raise RuntimeError("the lengths in a nested tensor are data, and with --fake there are none: record without it")

    def key(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        state = torch.get_default_dtype(), torch.is_inference_mode_enabled()
        with torch._C.DisableTorchFunction():  # else a mode would run for each attribute that is read
            key = (func, _key_of(args), _key_of(kwargs), state)
        return None if None in key else key

    def note(self, key: Any, func: OpOverload, args: Any, kwargs: Any) -> None:
        """Note the outcome of an operator, if torch caches it and the arguments are unchanged."""
        with suppress(TypeError):  # an argument cannot be hashed
            if key is None or key in self._entries:
                return
            entry = self._entries[key] = None
            with suppress(fake_tensor._BypassDispatchCache):
                state: Any = fake_tensor._CacheKeyState(None)  # type: ignore[attr-defined]
                entry = self.cache.get(self._cache_key(state, func, args, kwargs))
            if isinstance(entry, fake_tensor._DispatchCacheValidEntry) and all(map(_is_quick, entry.output_infos)):
                self._entries[key] = entry if _key_of(args) == key[1] else None

    def known(self, key: Any, func: OpOverload, args: Any) -> Any:
        try:
            entry = self._entries.get(key)
        except TypeError:
            return None
        if entry is None:
            return None
        made = [self._make(info, func, args) for info in entry.output_infos]
        return tuple(made) if entry.is_output_tuple else made[0]

    def _make(self, info: Any, func: OpOverload, args: Any) -> Any:
        if (like := info.metadata) is None:
            return info.constant_value if info.inplace_idx is None else args[info.inplace_idx]
        base = (args[info.view_idx].untyped_storage(), like.storage_offset) if func.is_view else None
        return self.new(like, like.shape, like.stride, base)

    def new(self, like: Any, shape: Any, stride: Any, base: Any = None) -> FakeTensor:
        """Return a tensor that no mode sees made. base: the storage that it views, and its offset."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            empty = torch.empty_strided(shape, stride, dtype=like.dtype, device="meta")
            if base is not None:
                empty.set_(base[0], base[1], shape, stride)
        if not self._attributes:
            self._attributes = vars(FakeTensor(self, empty, like.device))
        made = _MAKE_SUBCLASS(FakeTensor, empty, False, dispatch_device=True, device_for_backend_keys=CPU)
        torch._C._set_throw_on_mutable_data_ptr(made)
        vars(made).update(self._attributes, _fake_device=like.device)
        return made


def _is_quick(info: Any) -> bool:
    """Whether an outcome is an argument, a constant, or given by shape, dtype and device."""
    like = info.metadata
    return like is None or not (like.device.type not in _PLACES or like.requires_grad or like.is_conj or like.is_neg)


def _key_of(value: Any) -> Any:
    """Return what distinguishes arguments, such as shapes; None if one is a tensor with data."""
    kind = type(value)
    if kind is FakeTensor:
        if value.constant is not None or value.layout is not torch.strided:
            return None
        keys = torch._C._dispatch_keys(value).raw_repr()  # which tell conjugates, for example
        layout = value.shape, value.stride(), value.storage_offset()
        return layout, value.dtype, value.fake_device, value.requires_grad, id(value.fake_mode), keys
    if kind is tuple or kind is list:
        parts = tuple(map(_key_of, value))
        return None if None in parts else (kind, parts)
    if kind is dict:
        return _key_of(list(value.items()))
    return None if isinstance(value, Tensor) else (kind, value)


def value_of(tensor: Tensor) -> Any:
    """Return the value of unknown elements; of a comparison of single elements, the outcome for such values."""
    if tensor.dtype == torch.bool:
        return getattr(tensor, COMPARED, False)
    return 1.0 if tensor.dtype.is_floating_point else 1
