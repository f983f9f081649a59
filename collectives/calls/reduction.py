"""`Reduction`: how what arrives is combined with what is there, for each of torch.distributed's operations."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch.distributed import ReduceOp

from collectives.runtime import reduce_into

Combine = Callable[[torch.Tensor, torch.Tensor], object]


def _minimum(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    torch.minimum(chunk, arrived.to(chunk.dtype), out=chunk)
    _one_zero(chunk)


def _maximum(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    torch.maximum(chunk, arrived.to(chunk.dtype), out=chunk)
    _one_zero(chunk)


def _add_parts(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    """Add complex numbers as pairs of numbers, as torch.distributed does.

    `add_` multiplies the second one by the complex number 1, which can change the sign of a zero, so that the sum would
    depend on which comes first.
    """
    torch.view_as_real(chunk).add_(torch.view_as_real(arrived.to(chunk.dtype)))


def _one_zero(chunk: torch.Tensor) -> None:
    """Make each -0 a +0: which of the two is the smaller depends on which comes first, and on the processor."""
    if chunk.is_floating_point():
        chunk.add_(0)


# All in place, and the same bits with the two exchanged, so that an exchange leaves both ranks with the same. (Of two
# NaNs the first wins: they stay NaN, but not the same one.)
_COMBINE: dict[ReduceOp.RedOpType, Combine] = {
    ReduceOp.SUM: torch.Tensor.add_,
    ReduceOp.AVG: torch.Tensor.add_,
    ReduceOp.PRODUCT: torch.Tensor.mul_,
    ReduceOp.MIN: _minimum,
    ReduceOp.MAX: _maximum,
    ReduceOp.BAND: torch.Tensor.bitwise_and_,
    ReduceOp.BOR: torch.Tensor.bitwise_or_,
    ReduceOp.BXOR: torch.Tensor.bitwise_xor_,
}
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


@dataclass(frozen=True, slots=True)
class Reduction:
    """An operation on tensors of one dtype.

    combine: called with a chunk and what arrived for it; changes the chunk in place.
    """

    name: str
    combine: Combine
    averages: bool

    def finish(self, tensor: torch.Tensor, num_ranks: int) -> None:
        """Do in place what is left once all contributions are combined.

        An AVG of integers is truncated towards zero, as NCCL does it. Each part of a complex number is divided, as
        torch.distributed does it.
        """
        if not self.averages:
            return
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        whole = not tensor.is_floating_point()
        tensor.div_(num_ranks, rounding_mode="trunc" if whole else None)


@lru_cache
def reduction_of(op: ReduceOp.RedOpType | ReduceOp, dtype: torch.dtype) -> Reduction:
    """Return what `op` means for `dtype`.

    Raises ValueError where torch.distributed has no meaning for it, or torch no sum.
    """
    kind = next((known for known in _COMBINE if op == known), None)
    if kind is None:
        raise ValueError(f"op {op}: must be one of {', '.join(known.name for known in _COMBINE)}")
    name = kind.name
    if kind in _BITWISE and (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"op {name}: needs integers or bool, not {dtype}")
    if kind is ReduceOp.AVG and dtype == torch.bool:
        raise ValueError(f"op {name}: needs numbers, not {dtype}; use BAND or BOR")
    if dtype.is_complex and kind not in (ReduceOp.SUM, ReduceOp.AVG):
        raise ValueError(f"op {name}: {dtype} can only be summed or averaged")
    combine = _add_parts if dtype.is_complex else _COMBINE[kind]
    reduction = Reduction(name, combine, averages=kind == ReduceOp.AVG)
    _try_out(reduction, dtype)
    return reduction


def _try_out(reduction: Reduction, dtype: torch.dtype) -> None:
    """Raise ValueError if torch cannot do it: in the middle of a collective that would break the group."""
    try:
        output, chunk, arrived = (torch.empty(1, dtype=dtype).copy_(torch.ones(1)) for _ in range(3))
        reduction.combine(chunk, arrived)
        reduce_into(reduction.combine, output, chunk, arrived)
        reduction.finish(chunk, 2)
    except RuntimeError as error:  # NotImplementedError is one
        raise ValueError(
            f"op {reduction.name}: torch cannot do it on tensors of {dtype}; convert them, or gather them as they are"
        ) from error


class ReductionDtypes(NamedTuple):
    """In which dtypes a collective is done: `state` is added up, `wire` travels."""

    state: torch.dtype
    wire: torch.dtype

    def __str__(self) -> str:
        return "" if self.state == self.wire else f", added in {self.state}, sent in {self.wire}"


@lru_cache
def reduction_dtypes(
    dtype: torch.dtype, accumulate: torch.dtype | None = None, wire: torch.dtype | None = None
) -> ReductionDtypes:
    """Return those for a tensor of `dtype`.

    Raises ValueError if one of the others is given where nothing is rounded.
    """
    for name, given in (("accumulate", accumulate), ("wire", wire)):
        if given is not None and not (given.is_floating_point and dtype.is_floating_point):
            raise ValueError(f"{name} {given}: only for floating-point tensors, in a floating-point dtype; got {dtype}")
    return ReductionDtypes(accumulate or dtype, wire or dtype)
