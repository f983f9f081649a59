"""`--assume balanced`: what a router chooses where tensors have no values, so that all experts get equally many tokens.

The indices that topk, sort, argmax and the like return have data: one choice after the other, row by row. So does what
programs compute from them, such as counts, masks and splits.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from collectives.recording.operands import named
from collectives.recording.placement import with_data

aten = torch.ops.aten
MAX_INTEGERS = 2**26  # that have data: masks of all tokens and experts

# Operators that choose along a dimension.
_SORTING = aten.sort.default, aten.sort.stable, aten.argsort.default, aten.argsort.stable
_CHOOSING = *_SORTING, aten.topk.default, aten.argmax.default, aten.max.dim, aten.multinomial.default
_ZEROS = aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default
_INTEGERS = torch.bool, torch.int8, torch.int16, torch.int32, torch.int64
_COUNTING = aten.histc.default, aten.bincount.default


def assumed(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the outcome of an operator that chooses, counts or begins a count, with integers that have data, or None.

    No argument may be a tensor with data.
    """
    if func in _ZEROS:
        zeros = func(*args, **kwargs)
        if zeros.dtype in _INTEGERS and zeros.numel() <= MAX_INTEGERS:
            return _known_zeros(zeros, zeros.dtype)
        zeros.version_of_zeros = None if zeros.is_inference() else zeros._version
        return zeros
    if func is aten._to_copy.default and _are_zeros(args[0]) and kwargs.get("dtype") in _INTEGERS:
        return _known_zeros(args[0], kwargs["dtype"])
    if func in _COUNTING:
        given = named(func, args, kwargs)
        return with_data(args[0].device, _equal_counts, args[0].numel(), given.get("bins", given.get("minlength")))
    if func not in _CHOOSING:
        return None
    outcome = func(*args, **kwargs)
    asked = outcome[1] if isinstance(outcome, tuple | list) else outcome
    dim = named(func, args, kwargs).get("dim", -1)  # multinomial has none
    chosen = with_data(args[0].device, _choices, args[0].shape, dim, asked.shape)
    return (outcome[0], chosen) if isinstance(outcome, tuple | list) else chosen


def _known_zeros(like: Tensor, dtype: torch.dtype) -> Tensor:
    return with_data(like.device, torch.zeros, like.shape, dtype=dtype)


def _are_zeros(tensor: Tensor) -> bool:
    """Whether a tensor is unchanged since it was made of zeros; its views share its version."""
    version = getattr(tensor, "version_of_zeros", None)
    return version is not None and version == tensor._version


def _equal_counts(total: int, num_bins: int) -> Tensor:
    ends = torch.arange(num_bins + 1) * total // max(1, num_bins)
    return ends.diff()


def _choices(given: torch.Size, dim: int | None, asked: torch.Size) -> Tensor:
    """Return the indices of the choices along a dimension. given, asked: shapes of the values and the indices."""
    if dim is None or not given:  # the choice of one of all elements
        return torch.zeros(asked, dtype=torch.int64)
    is_kept = len(asked) == len(given)
    shape = list(asked) if is_kept else [*asked, 1]
    num_choices, num_chosen = given[dim], shape.pop(dim if is_kept else -1)
    rows = torch.arange(math.prod(shape))[:, None]
    # Rows that choose everything begin one later each, so that the first few choices of all rows are balanced, too.
    chosen = rows * (num_chosen if num_chosen < num_choices else 1) + torch.arange(num_chosen)
    chosen = (chosen % num_choices).view(*shape, num_chosen)
    return chosen.movedim(-1, dim).contiguous() if is_kept else chosen.view(asked)
