"""`BenchmarkCase`: one collective of one size, which all implementations do alike; its data and its memory.

A rank's elements repeat its own table, of random whole numbers. The table's length is a large prime, so that an
element also tells its place: a chunk that went astray is seen. And what must come of many millions of elements
follows from a few tables.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch.distributed import ReduceOp

from ringsim.schedule import Collective

DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
}
OPS = {
    "sum": ReduceOp.SUM,
    "avg": ReduceOp.AVG,
    "prod": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "band": ReduceOp.BAND,
    "bor": ReduceOp.BOR,
    "bxor": ReduceOp.BXOR,
}
NO_OP = "none"


@dataclass(frozen=True, slots=True)
class BenchmarkCase:
    """One collective of one size among `num_ranks` ranks.

    num_elements: of the whole tensor: of the input of reduce_scatter and scatter, of the output of all_gather and
    gather; in an all_to_all of a rank's input, and of its output.
    dtype, op: names, of DTYPES and OPS; op is NO_OP where nothing is reduced.
    """

    collective: Collective
    num_elements: int
    dtype: str
    op: str
    num_ranks: int
    in_place: bool

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` itself."""
        return torch_dtype(self.dtype)

    @property
    def size_bytes(self) -> int:
        """Of the whole tensor."""
        return self.num_elements * self.torch_dtype.itemsize

    @property
    def share(self) -> int:
        """Elements of a rank's equal share."""
        return self.num_elements // self.num_ranks

    @property
    def num_sent(self) -> int:
        """Elements that a rank contributes."""
        return self.share if self.collective in (Collective.ALL_GATHER, Collective.GATHER) else self.num_elements

    @property
    def is_shared_out(self) -> bool:
        """Whether the result of a rank is its share."""
        return self.collective in (Collective.REDUCE_SCATTER, Collective.SCATTER)

    def __str__(self) -> str:
        """For messages."""
        place = "in place" if self.in_place else "out of place"
        return f"{self.collective.value} of {self.size_bytes} bytes, {self.dtype}, {place}"


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of that name, one of DTYPES."""
    dtype = DTYPES[name]
    assert isinstance(dtype, torch.dtype)
    return dtype


def elements_of(collective: Collective, size_bytes: int, dtype: str, num_ranks: int) -> int:
    """As many elements as fit into `size_bytes`, in equal shares where every rank gets one.

    Raises ValueError if none fits.
    """
    multiple = num_ranks if collective.num_shares(num_ranks) > 1 else 1
    least_bytes = multiple * torch_dtype(dtype).itemsize
    if size_bytes < least_bytes:
        raise ValueError(
            f"size {size_bytes} B: {collective.value} of {dtype} on {num_ranks} ranks needs at least {least_bytes}; "
            "begin (-b) with this size"
        )
    return size_bytes // least_bytes * multiple


PERIOD = 65521
MAX_VALUE = 1000  # small numbers show as much
# The largest whole number up to which all have a place in the dtype; sums up to there are the same in any order.
_EXACT = {torch.bfloat16: 2**8, torch.float16: 2**11}
_BITWISE = ("band", "bor", "bxor")


@dataclass(frozen=True, slots=True)
class Pattern:
    """The data of one case.

    tables: (num_ranks, PERIOD), int64.
    """

    case: BenchmarkCase
    tables: torch.Tensor

    def given(self, rank: int) -> torch.Tensor:
        """Return what `rank` gives, (case.num_sent,)."""
        return self._repeat(self.tables[rank], self.case.num_sent)

    def result(self, rank: int) -> torch.Tensor | None:
        """Return what `rank` must hold in the end.

        None where that is left open, as with reduce on all ranks but the root.
        """
        case = self.case
        own = slice(rank * case.share, (rank + 1) * case.share)
        if case.collective in (Collective.REDUCE, Collective.GATHER) and rank != 0:
            return None
        if case.collective in (Collective.ALL_GATHER, Collective.GATHER):
            return torch.cat([self.given(other) for other in range(case.num_ranks)])
        if case.collective is Collective.ALL_TO_ALL:
            return torch.cat([self.given(other)[own] for other in range(case.num_ranks)])
        if case.collective.reduces:
            whole = self._repeat(_combined(self.tables, case.op), case.num_elements)
        else:
            whole = self.given(0)
        return whole[own] if case.is_shared_out else whole

    def count_wrong(self, rank: int, output: torch.Tensor) -> int:
        """How many elements of `rank`'s output are not what they must be."""
        result = self.result(rank)
        if result is None:
            return 0
        if self.case.op == "avg":  # to divide and to multiply by the inverse may differ in the last bit
            wrong = ~torch.isclose(output, result, rtol=2 * torch.finfo(output.dtype).eps, atol=0)
        else:
            wrong = output != result
        return int(wrong.sum())

    def _repeat(self, table: torch.Tensor, length: int) -> torch.Tensor:
        return table.to(self.case.torch_dtype).repeat(-(-length // PERIOD))[:length]


def pattern(case: BenchmarkCase, seed: int) -> Pattern:
    """Return the data of `case`, the same for the same seed.

    Raises ValueError if a sum over this number of ranks could be rounded.
    """
    low, high = _values(case)
    generator = torch.Generator().manual_seed(seed)
    return Pattern(case, torch.randint(low, high, (case.num_ranks, PERIOD), generator=generator))


def _values(case: BenchmarkCase) -> tuple[int, int]:
    """From which number up to, but not with, which the values are; none is ever -1, nor is a result."""
    if case.op == "prod":
        return 1, 3  # powers of two are never rounded
    if case.op in _BITWISE:
        return 0, 2**7
    exact = _largest_exact(case.torch_dtype)
    high = min((exact - 1) // (case.num_ranks if case.op in ("sum", "avg") else 1), MAX_VALUE)
    if high < 2:
        raise ValueError(
            f"dtype {case.dtype}: sums of {case.num_ranks} ranks cannot all be exact: choose a larger dtype"
        )
    return 0, high


def _largest_exact(dtype: torch.dtype) -> int:
    if dtype.is_floating_point:
        return _EXACT.get(dtype, 2**24)
    return torch.iinfo(dtype).max


def _combined(tables: torch.Tensor, op: str) -> torch.Tensor:
    """Return the tables of all ranks made one; of avg in float64, since it need not be whole."""
    if op == "sum":
        return tables.sum(dim=0)
    if op == "avg":
        return tables.sum(dim=0).double() / len(tables)
    if op == "prod":
        return tables.prod(dim=0)
    if op == "min":
        return tables.amin(dim=0)
    if op == "max":
        return tables.amax(dim=0)
    return _combined_bits(tables, op)


def _combined_bits(tables: torch.Tensor, op: str) -> torch.Tensor:
    function = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}[op]
    combined = tables[0]
    for table in tables[1:]:
        combined = function(combined, table)
    return combined


UNTOUCHED = -1  # in every dtype a value that no result has


@dataclass(frozen=True, slots=True)
class Buffers:
    """One rank's memory.

    data: what it gives; never changed.
    input, output: what an implementation is called with. In place they share memory: they are the same, or the smaller
    one is this rank's share of the larger.
    """

    data: torch.Tensor
    input: torch.Tensor
    output: torch.Tensor

    @classmethod
    def of(cls, pattern: Pattern, rank: int, allocate: Callable[..., torch.Tensor] = torch.empty) -> Self:
        """Return the tensors of `rank` for the pattern's case. allocate: what makes them, as `torch.empty` does."""
        case, given = pattern.case, pattern.given(rank)

        def new(length: int) -> torch.Tensor:
            return allocate(length, dtype=case.torch_dtype)

        data = new(len(given)).copy_(given)
        own = slice(rank * case.share, (rank + 1) * case.share)
        if case.collective in (Collective.ALL_GATHER, Collective.GATHER):
            output = new(case.num_elements)
            return cls(data, output[own] if case.in_place else data, output)
        input_ = new(len(data)).copy_(data) if case.in_place else data
        if case.is_shared_out:
            return cls(data, input_, input_[own] if case.in_place else new(case.share))
        return cls(data, input_, input_ if case.in_place else new(len(data)))

    def refill(self) -> None:
        """Undo what an implementation working in place did to the input."""
        if self.input is not self.data:
            self.input.copy_(self.data)

    def spoil(self) -> None:
        """Fill the output with what cannot be right, so that an implementation that does nothing is found out."""
        self.output.copy_(torch.tensor(UNTOUCHED).to(self.output.dtype))
