"""`Reduction`: how arrived data is combined with a chunk, for each of torch.distributed's operations."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch.distributed import ReduceOp

from collectives.runtime import reduce_into

Combine = Callable[[torch.Tensor, torch.Tensor], object]


def _chosen_by(choose: Callable[..., torch.Tensor]) -> Combine:
    def combine(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
        choose(chunk, arrived.to(chunk.dtype), out=chunk)
        if chunk.is_floating_point():
            chunk.add_(0)  # each -0 becomes +0: which of them is chosen depends on their order, and on the processor

    return combine


def _add_parts(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    """Add complex numbers as pairs of numbers, as torch.distributed does.

    `add_` multiplies its second argument by the complex 1, which can change a zero's sign: the sum would depend on the
    order.
    """
    torch.view_as_real(chunk).add_(torch.view_as_real(arrived.to(chunk.dtype)))


# All are in place and commutative to the bit, so that an exchange leaves the same bits on both ranks. (Of two NaNs the
# first wins: the result is NaN, but its bits may differ.)
_COMBINE: dict[ReduceOp.RedOpType, Combine] = {
    ReduceOp.SUM: torch.Tensor.add_,
    ReduceOp.AVG: torch.Tensor.add_,
    ReduceOp.PRODUCT: torch.Tensor.mul_,
    ReduceOp.MIN: _chosen_by(torch.minimum),
    ReduceOp.MAX: _chosen_by(torch.maximum),
    ReduceOp.BAND: torch.Tensor.bitwise_and_,
    ReduceOp.BOR: torch.Tensor.bitwise_or_,
    ReduceOp.BXOR: torch.Tensor.bitwise_xor_,
}
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


@dataclass(frozen=True, slots=True)
class Reduction:
    """An operation on tensors of one dtype.

    combine: combines its first argument, a chunk, with its second, the arrived data, in place.
    averages: divide the sum by the number of ranks. divides_first: divide each contribution instead.
    """

    name: str
    combine: Combine
    averages: bool = False
    divides_first: bool = False

    def begin(self, tensor: torch.Tensor, num_ranks: int) -> None:
        if self.divides_first:
            _divide(tensor, num_ranks)

    def finish(self, tensor: torch.Tensor, num_ranks: int) -> None:
        if self.averages:
            _divide(tensor, num_ranks)


def _divide(tensor: torch.Tensor, num_ranks: int) -> None:
    """Divide in place: integers towards zero, as NCCL, and each part of a complex number, as Gloo."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    tensor.div_(num_ranks, rounding_mode=None if tensor.is_floating_point() else "trunc")


class ReductionDtypes(NamedTuple):
    """The dtypes of a collective: sums are in `state`, messages in `wire`."""

    state: torch.dtype
    wire: torch.dtype

    def __str__(self) -> str:
        return "" if self.state == self.wire else f", added in {self.state}, sent in {self.wire}"

    @property
    def are_narrow(self) -> bool:
        """Whether a sum, but not the mean, may overflow: in float16 and float8."""
        return any(torch.finfo(dtype).max < torch.finfo(torch.bfloat16).max for dtype in self if _has_range(dtype))


def _has_range(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


@lru_cache
def reduction_of(
    op: ReduceOp.RedOpType | ReduceOp | None, dtype: torch.dtype, wire: torch.dtype | None = None
) -> tuple[Reduction, ReductionDtypes]:
    """Return the reduction for `op` on tensors of `dtype`, and its dtypes.

    An AVG is correct even if the sum overflows: it divides first in float16 and float8, as DistributedDataParallel
    does, and adds integers in int64.

    Raises ValueError if torch.distributed does not define `op` for the dtype, or torch cannot compute it.
    """
    kind = next((known for known in _COMBINE if op == known), None)
    if kind is None:
        name = next((name for name, other in ReduceOp.RedOpType.__members__.items() if op == other), op)
        raise ValueError(f"op {name}: must be one of {', '.join(known.name for known in _COMBINE)}")
    if wire is not None:
        _check_rounding(wire, dtype)
    dtypes, averages = ReductionDtypes(dtype, wire or dtype), kind == ReduceOp.AVG
    _check_meaning(kind, dtype)
    if averages and not _has_range(dtype) and dtype != torch.uint64:
        dtypes = ReductionDtypes(torch.int64, torch.int64)
    combine = _add_parts if dtype.is_complex else _COMBINE[kind]
    divides_first = averages and dtypes.are_narrow
    reduction = Reduction(kind.name, combine, averages and not divides_first, divides_first)
    _try_out(reduction, dtypes.state)
    return reduction, dtypes


def _check_rounding(wire: torch.dtype, dtype: torch.dtype) -> None:
    if not (wire.is_floating_point and dtype.is_floating_point):
        raise ValueError(f"wire {wire}: only for floating-point tensors, in a floating-point dtype; got {dtype}")
    with suppress(RuntimeError):
        if torch.tensor(-1.0).to(wire).to(dtype) == -1:
            return
    raise ValueError(f"wire {wire}: must hold numbers of either sign, into which torch can convert")


def _check_meaning(kind: ReduceOp.RedOpType, dtype: torch.dtype) -> None:
    name = kind.name
    if kind in _BITWISE and _has_range(dtype):
        raise ValueError(f"op {name}: needs integers or bool, not {dtype}")
    if kind is ReduceOp.AVG and dtype == torch.bool:
        raise ValueError(f"op {name}: needs numbers, not {dtype}; use BAND or BOR")
    if dtype.is_complex and kind not in (ReduceOp.SUM, ReduceOp.AVG):
        raise ValueError(f"op {name}: {dtype} can only be summed or averaged")


def _try_out(reduction: Reduction, dtype: torch.dtype) -> None:
    """Raise ValueError if torch cannot compute it: an error in a collective would break the group."""
    try:
        output, chunk, arrived = (torch.empty(1, dtype=dtype).copy_(torch.ones(1)) for _ in range(3))
        reduction.begin(chunk, 2)
        reduction.combine(chunk, arrived)
        reduce_into(reduction.combine, output, chunk, arrived)
        reduction.finish(chunk, 2)
    except RuntimeError as error:  # NotImplementedError is one
        raise ValueError(
            f"op {reduction.name}: torch cannot do it on tensors of {dtype}; convert them, or gather them as they are"
        ) from error
