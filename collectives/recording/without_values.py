"""`WithoutValues`: the values of tensors without data, and the integers that have data."""

import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import CodeType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from collectives.recording import balanced, placement
from collectives.recording.fake_mode import COMPARED, CachingFakeMode, value_of
from collectives.recording.operands import DEVICE, OnPlainTensors, named, written
from collectives.recording.placement import CPU, FROM_PYTHON, gpu_of, place_made, tensors_in, with_data
from collectives.recording.replacements import warn

aten = torch.ops.aten
TORCH = Path(torch.__file__).parent
# Files of torch between a call of the program, such as `tensor.item()`, and this module.
_CALLERS = "_compile", "_dynamo/eval_frame", "_ops", "_subclasses/fake_tensor", "_tensor", "_tensor_str"
_ON_THE_WAY = {f"{TORCH / name}.py" for name in _CALLERS}
_COMPARING = aten.equal.default, aten.allclose.default
_WRITING = aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default
_INDEXING = aten.index.Tensor, *_WRITING
_INTO = *_WRITING, aten.index_add.default, aten.index_add_.default
# Operators that make numbers with data, also fractions: of schedules, and of choices by chance.
_SPACED = aten.linspace.default, aten.logspace.default, aten.arange.default, aten.arange.start, aten.arange.start_step
_EMPTY = aten.empty.memory_format  # of few fractions, which `uniform_` then draws, such as the change of a colour
_ZEROS = aten.zeros.default  # of a single fraction, to which a program adds whether a gradient has overflowed
_ONES = aten.ones.default  # of few fractions, such as the sizes of an image by which boxes are scaled
_MAKING = *_SPACED, aten.rand.default, aten.rand.generator, aten.full.default, _EMPTY, _ZEROS, _ONES
_FILLING = {_ZEROS: 0, _ONES: 1}
_MASKING = aten.scatter.src, aten.scatter.value, aten.cat.default  # which make masks of zeros and ones
# Operators on booleans whose outcome is this value if one operand is, as in a loop that generates until a length.
_ABSORBING = {
    **dict.fromkeys((aten.bitwise_and.Tensor, aten.logical_and.default), False),
    **dict.fromkeys((aten.bitwise_or.Tensor, aten.logical_or.default), True),
}
_COPYING = aten.clone.default, aten.nan_to_num.default  # whose outcomes are equal if their operands are
_SPARSE = aten._sparse_coo_tensor_with_dims_and_tensors.default
_SUMS = aten.add.Tensor, aten.sub.Tensor  # which of sparse tensors have the elements of both
_UNSCALING = aten._amp_foreach_non_finite_check_and_unscale_.default
# The dtypes of tensors that may have data.
INTEGERS = torch.bool, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64
_BYTES_AND_INTEGERS = torch.uint8, *INTEGERS
MAX_INTEGERS = 2**22
MAX_FRACTIONS = 2**16  # also bytes, such as pickled objects that programs send
MAX_MADE = {_EMPTY: 64, _ZEROS: 1, _ONES: 16}  # fractions of these operators
MAX_READS = 100_000  # by one line, before another line reads: a loop that waits for other values
MAX_ON_HOST = 2**27  # of a data set, if the model is on a GPU
NEEDING_VALUES = DataDependentOutputException, DynamicOutputShapeException  # raised where numbers decide
_META = torch.device("meta")
DATA: Any = Tensor.data
_FILLED = "_filled"  # attribute of zeros and ones: the value, and the version with which all elements have it
_COPIED = "_copied"  # attribute of a copy: what was copied, and the versions of both
_OURS = str(Path(__file__).parent)
READ_AT: list[str] = []  # the last line of the program that read values


class WithoutValues(OnPlainTensors):
    """Returns False, 1 or 1.0 for an element, and warns once if the program itself reads it.

    Small integer tensors that are not computed from fractions have data: tokens, file offsets, bucket sizes. The mode
    below tells cpu:0 from cpu, so the index of a CPU is left out.
    """

    def __init__(self, mode: CachingFakeMode, refusals: list[Exception], is_balanced: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode, self._is_balanced = mode, is_balanced
        self._reads: list[tuple[CodeType, int]] = []  # lines of code, since another line has read
        self._max_integers = balanced.MAX_INTEGERS if is_balanced else MAX_INTEGERS
        self._is_loading = False
        self._refusals = refusals  # of an operator that needs values; the program may catch it

    def loading(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        """Return a data loader's function that fetches a batch, within which all tensors have data."""

        def without(tensor: Tensor) -> Tensor:
            is_large = _has_fractions(tensor) and tensor.numel() > MAX_FRACTIONS
            return self._without_data(tensor) if is_large else tensor

        @wraps(fetch)
        def fetched(*args: Any) -> Any:
            with patch.object(self, "_is_loading", True):
                return tree_map_only(Tensor, without, fetch(*args))

        return fetched

    def keeping(self, broadcast: Callable[..., Any]) -> Callable[..., Any]:
        """Return DDP's broadcast of parameters and buffers, which keep their data, as all ranks do."""
        return lambda group, tensors, *how: broadcast(group, [self._without_data(tensor) for tensor in tensors], *how)

    def _without_data(self, tensor: Tensor) -> Tensor:
        return tensor if is_unknown(tensor) else self._mode.new(tensor, tensor.shape, tensor.stride())

    def run(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        if func is DEVICE:
            return func(*args)
        if func is aten._unsafe_view.default:
            func = aten.view.default  # whose outcome torch keeps; below autograd they are alike
        key = None if self._is_loading else self._mode.key(func, args, kwargs)
        if (outcome := self._mode.known(key, func, args)) is not None:
            return _with_notes(outcome, func, args)
        try:
            return self._first(key, func, args, kwargs)
        except NEEDING_VALUES as refusal:
            if not self._refusals:  # one, as its frames keep tensors alive
                self._refusals.append(refusal)
            raise

    def _first(self, key: Any, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.namespace == "cplib":  # its kernel for tensors without data makes no calls
            raise RuntimeError("context parallelism of FlexAttention cannot be recorded: its calls would be missing")
        if isinstance(device := kwargs.get("device"), torch.device) and device.type == "cpu":
            kwargs = {**kwargs, "device": CPU}
            if device != FROM_PYTHON and (func is aten._to_copy.default or gpu_of(args[:1])):
                del kwargs["device"]  # C++ makes a tensor like this one
            elif device != FROM_PYTHON and func is _SPARSE:  # of indices and values, its last arguments
                kwargs["device"] = gpu_of(args) or CPU
        args = _with_known_values(func, args)
        if self._has_data(func, args, kwargs):
            return _run_with_data(func, args, kwargs)
        if (func is aten._local_scalar_dense.default and is_unknown(args[0])) or func in _COMPARING:
            self._warn_once()
            return False if func in _COMPARING else value_of(args[0])
        if func is aten.masked_select.default and not is_unknown(args[1]):
            shape = torch.broadcast_shapes(*(tensor.shape for tensor in args))
            with _disable_current_modes():
                mask = args[1].expand(shape)
            func, args = aten.index.Tensor, (args[0].expand(shape), [mask])
        if func in _INTO:  # in a backward pass C++ makes zeros, values, and indices of overlapping strides
            place_made([args[0], *args[2:3]], gpu_of(args))
        if func is aten.set_.source_Tensor:
            set_data(*args)
            return args[0]
        if func in _INDEXING:
            args = (args[0], _without_masks(args[1]), *args[2:])
        if self._is_balanced and (outcome := balanced.assumed(func, args, kwargs)) is not None:
            return outcome
        outcome = _run(func, args, kwargs)
        if not (self._is_balanced and func is aten._to_copy.default):  # whose outcome depends on zeros
            self._mode.note(key, func, args, kwargs)
        return outcome

    def _has_data(self, func: OpOverload, args: Any, kwargs: Any) -> bool:
        if not self._is_loading:
            return _has_data(func, args, kwargs, self._max_integers)
        return kwargs.get("device") != _META and not any(map(is_unknown, tensors_in(args, kwargs)))

    def array_of(self, tensor: FakeTensor) -> np.ndarray[Any, Any]:
        self._warn_once()
        with unset_fake_temporarily():
            dtype = torch.empty(0, dtype=tensor.dtype, device=CPU).numpy().dtype
        return np.full(tuple(tensor.shape), value_of(tensor), dtype)

    def _warn_once(self) -> None:
        """Warn about the line that reads, unless it is torch's, which needs no real numbers."""
        frame = sys._getframe(1)
        while frame.f_back and (frame.f_code.co_filename in _ON_THE_WAY or frame.f_code.co_filename.startswith(_OURS)):
            frame = frame.f_back
        if (line := (frame.f_code, frame.f_lineno)) not in self._reads[-1:]:
            self._reads.clear()
        self._reads.append(line)
        if len(self._reads) > MAX_READS:
            raise RuntimeError("a loop waits for other numbers, and with --fake there are none: leave it out there")
        if frame.f_code.co_filename.startswith(str(TORCH)):
            return
        if not READ_AT:
            message = "the program reads values, and with --fake there are none: it gets False, 1 or 1.0"
            warn(message, frame.f_code.co_filename, frame.f_lineno)
        READ_AT[:] = [f"{frame.f_code.co_filename}:{frame.f_lineno}"]


def _run(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func is aten._ctc_loss.Tensor:  # whose second result depends on the longest target, at most the targets' width
        (num_steps, num_samples, _), longest = args[0].shape, args[1].shape[-1]
        return args[0].new_empty(num_samples), args[0].new_empty(num_samples, num_steps, 2 * longest + 1)
    if func is aten.bincount.default and (given := named(func, args, kwargs))["minlength"]:
        # A program gives the number of its classes, so that there are no more counts.
        weighted = None if given["weights"] is None else given["weights"].dtype
        dtype = {None: torch.int64, torch.float32: torch.float32}.get(weighted, torch.float64)
        return args[0].new_empty(given["minlength"], dtype=dtype)
    if func is aten.from_file.default:
        return torch.empty_like(with_data(CPU, func, *args, **kwargs))
    if not written(func):
        return _with_notes(_with_elements(func(*args, **kwargs), func, args), func, args)
    given = named(func, args, kwargs)
    changed = [tensor for name in written(func) for tensor in tensors_in(given[name])]
    if "copy" not in func._schema.name:  # only a copy may go from one device to another
        place_made(changed, gpu_of(args))
    outcome = func(*args, **kwargs)
    forget_written(tensors_in(args[0]) if func is _UNSCALING else changed)  # no gradient has overflowed
    return outcome


def _with_elements(outcome: Any, func: OpOverload, args: tuple[Any, ...]) -> Any:
    """Return a sparse outcome with as many elements as it has at most; torch gives those without data none."""
    if not isinstance(outcome, FakeTensor) or outcome.layout is not torch.sparse_coo or func is aten.zeros_like.default:
        return outcome
    sources = [tensor for tensor in tensors_in(args) if tensor.layout is torch.sparse_coo]
    if outcome._nnz() or func.is_view or not all(tensor.shape == outcome.shape for tensor in sources):
        return outcome
    indices = [tensor._indices() for tensor in (sources if func in _SUMS else sources[:1])]
    if not indices:
        return outcome
    values = outcome._values()
    values = values.new_empty(sum(part.shape[1] for part in indices), *values.shape[1:])
    how = {"layout": outcome.layout, "device": values.device, "is_coalesced": func is aten._coalesce.default}
    return _SPARSE(outcome.sparse_dim(), outcome.dense_dim(), outcome.shape, torch.cat(indices, 1), values, **how)


def _run_with_data(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on tensors with data; place its results where it asks for, or with its arguments."""
    device = kwargs.get("device") or gpu_of(args, kwargs) or CPU
    options = {**kwargs, "device": CPU} if kwargs.get("device") else kwargs
    if func is torch.ops.prims.convert_element_type.default:  # which makes a tensor on the device
        func, args, options = aten._to_copy.default, args[:1], {"dtype": args[1]}

    def run(*args: Any) -> Any:
        try:
            made = func(*args, **options)
            return made.fill_(1) if func is _EMPTY and made.dtype not in INTEGERS else made
        except NotImplementedError:  # a GPU has histograms of integers, for example
            return func(*tree_map_only(Tensor, Tensor.double, args), **options).to(args[0].dtype)

    return with_data(device, run, *args)


def _with_notes(outcome: Any, func: OpOverload, args: tuple[Any, ...]) -> Any:
    """Note the source of a copy, the value of a fill, or the outcome of a comparison of the values that are read."""
    if func in _COPYING and not outcome.is_inference():
        setattr(outcome, _COPIED, (weakref.ref(args[0]), args[0]._version, outcome._version))
    if func in _FILLING and type(outcome) is FakeTensor and not outcome.is_inference():
        setattr(outcome, _FILLED, (_FILLING[func], outcome._version))
    if type(outcome) is not FakeTensor or outcome.dtype is not torch.bool:
        return outcome
    tensors = tensors_in(args)
    if func is aten.eq.Tensor and not _are_alike(*args) and tensors[0].numel() > 1:
        return outcome  # elements are hardly all equal, as of two masks; isfinite compares a tensor with itself
    if all(leaf.numel() == 1 or leaf.is_floating_point() or hasattr(leaf, COMPARED) for leaf in tensors):
        with _disable_current_modes(), suppress(Exception):
            values = [torch.tensor(value_of(leaf)) if isinstance(leaf, Tensor) else leaf for leaf in args]
            setattr(outcome, COMPARED, bool(func(*values)))
    return outcome


def _with_known_values(func: OpOverload, args: Any) -> Any:
    if func in _MASKING:
        filled = tree_map_only(FakeTensor, _filled, args)
        return args if any(map(is_unknown, tensors_in(filled))) else filled
    if written(func):
        return tree_map_only(FakeTensor, _known_number, args)
    return _absorbed(_ABSORBING[func], args) if func in _ABSORBING else args


def _known_number(tensor: FakeTensor) -> Tensor:
    if tensor.numel() > 1 or not hasattr(tensor, COMPARED):
        return tensor
    return with_data(tensor.device, torch.full, tensor.shape, value_of(tensor), dtype=tensor.dtype)


def _filled(tensor: FakeTensor) -> Tensor:
    value, version = getattr(tensor, _FILLED, (None, None))
    if value is None or version != tensor._version or tensor.numel() > MAX_FRACTIONS:
        return tensor
    return with_data(tensor.device, torch.full, tensor.shape, value, dtype=tensor.dtype)


def _absorbed(value: bool, args: Any) -> Any:
    """Return operands with data if one of them consists of `value`, so that the other does not matter."""
    with _disable_current_modes():
        is_known = any(not is_unknown(one) and one.dtype is torch.bool and (one == value).all() for one in args)
    if not is_known or sum(tensor.numel() for tensor in args) > MAX_INTEGERS:
        return args
    return tuple(
        with_data(one.device, torch.full, one.shape, value, dtype=one.dtype) if is_unknown(one) else one for one in args
    )


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Whether tensors are copies of one that nothing but a broadcast has changed since."""
    return _source_of(one) is _source_of(other)


def _source_of(tensor: Tensor) -> Tensor:
    find, *versions = getattr(tensor, _COPIED, (lambda: tensor,))
    source: Tensor | None = find()
    if source is None or source is tensor or versions != [source._version, tensor._version]:
        return tensor
    return _source_of(source)


def _without_masks(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Return masks with data as the indices that they select, of which the number is known."""
    some: list[Tensor | None] = []
    for index in indices:
        if isinstance(index, Tensor) and index.dtype is torch.bool and not is_unknown(index):
            with _disable_current_modes():
                some += index.nonzero().unbind(1)
        else:
            some.append(index)
    return some


def _has_data(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> bool:
    """Whether an operator makes few integers or evenly spaced numbers, or has only few numbers with data."""
    if any(type(argument) is FakeTensor for argument in args):  # most calls
        return False
    tensors = tensors_in(args, kwargs)
    if not tensors:
        return _makes_data(func, args, kwargs, limit)
    if any(map(is_unknown, tensors)):
        return False
    size = sum(tensor.numel() for tensor in tensors)
    limit = MAX_FRACTIONS if any(map(_has_fractions, tensors)) else MAX_ON_HOST if _are_on_host(tensors) else limit
    return size <= limit or func.is_view


def _makes_data(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> bool:
    is_on_meta = torch.device(kwargs.get("device") or "cpu").type == "meta"
    if is_on_meta or (func not in _MAKING and kwargs.get("dtype", torch.uint8) not in _BYTES_AND_INTEGERS):
        return False
    with _disable_current_modes(), suppress(RuntimeError, TypeError):  # it makes no tensor
        made = func(*args, **{**kwargs, "device": "meta"} | ({"generator": None} if "generator" in kwargs else {}))
        if _has_fractions(made):
            return func in _MAKING and made.numel() <= MAX_MADE.get(func, MAX_FRACTIONS)
        limit = MAX_ON_HOST if func is _EMPTY and _are_on_host([]) else limit
        limit = MAX_FRACTIONS if made.dtype is torch.uint8 else limit
        return made.dtype in _BYTES_AND_INTEGERS and made.numel() <= limit
    return func is aten.from_file.default and "dtype" in kwargs


def _has_fractions(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _are_on_host(tensors: list[Tensor]) -> bool:
    return torch.cuda.is_available() and not gpu_of(tensors)


def set_data(tensor: Tensor, other: Tensor) -> None:
    """Set `tensor.data` to another tensor; only one of the two may have data."""
    if isinstance(tensor, FakeTensor) and type(other) in (Tensor, nn.Parameter):
        other = tensor.fake_mode.new(other, other.shape, other.stride())  # type: ignore[attr-defined]
    elif isinstance(other, FakeTensor) and type(tensor) in (Tensor, nn.Parameter):
        other = with_data(other.device, torch.empty, other.shape, dtype=other.dtype)
        forget_written([other])
    DATA.__set__(tensor, other)
    placement.place(tensor, placement.device_of(other))


def is_unknown(tensor: Tensor) -> bool:
    """Whether a tensor has no data, or wrong data."""
    return isinstance(tensor, FakeTensor) or hasattr(tensor.untyped_storage(), "is_unknown")


def forget_written(written: list[Tensor]) -> None:
    """Fill tensors with data into which an operator has written values without data."""
    for tensor in written:
        if not is_unknown(tensor):
            with _disable_current_modes():
                tensor.fill_(value_of(tensor))
            tensor.untyped_storage().is_unknown = True  # type: ignore[attr-defined]
