"""`Pattern`: what each rank gives, and what must come of it to the last bit.

A rank's elements repeat a table of its own, of random whole numbers. The table's length is a large prime, so that an
element also tells its place: a chunk that went astray is seen. And what must come of many millions of elements
follows from a few tables.
"""

from dataclasses import dataclass

import torch

from collectives.benchmark.case import BenchmarkCase
from ringsim.schedule import Collective

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
        """What `rank` gives, (case.num_sent,)."""
        return self._repeat(self.tables[rank], self.case.num_sent)

    def result(self, rank: int) -> torch.Tensor | None:
        """What `rank` must hold in the end; None where that is left open, as with reduce on all ranks but the root."""
        case = self.case
        if case.collective is Collective.ALL_GATHER:
            return torch.cat([self.given(other) for other in range(case.num_ranks)])
        if case.collective is Collective.BROADCAST:
            return self.given(0)
        if case.collective is Collective.REDUCE and rank != 0:
            return None
        whole = self._repeat(_combined(self.tables, case.op), case.num_elements)
        if case.collective is Collective.REDUCE_SCATTER:
            return whole[rank * case.share : (rank + 1) * case.share]
        return whole

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
    """The data of `case`, the same for the same seed. Raises ValueError if sums of so many ranks could be rounded."""
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
        raise ValueError(f"dtype {case.dtype}: sums of {case.num_ranks} ranks cannot all be exact; take a larger one")
    return 0, high


def _largest_exact(dtype: torch.dtype) -> int:
    if dtype.is_floating_point:
        return _EXACT.get(dtype, 2**24)
    return torch.iinfo(dtype).max


def _combined(tables: torch.Tensor, op: str) -> torch.Tensor:
    """The tables of all ranks made one; of avg in float64, since it need not be whole."""
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
