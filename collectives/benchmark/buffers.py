"""`Buffers`: the memory that a cell's competitors work on, the same for all of them."""

from dataclasses import dataclass
from typing import Self

import torch

from collectives.benchmark.pattern import Pattern
from ringsim.schedule import OWNED, Collective

UNTOUCHED = -1  # in every dtype a value that no result has


@dataclass(frozen=True, slots=True)
class Buffers:
    """One rank's memory.

    data: what it gives; never changed.
    input, output: what a competitor is called with. In place they share memory: they are the same, or the smaller
    one is this rank's share of the larger.
    """

    data: torch.Tensor
    input: torch.Tensor
    output: torch.Tensor

    @classmethod
    def of(cls, pattern: Pattern, rank: int) -> Self:
        """Those of `rank` for the pattern's cell."""
        cell, data = pattern.cell, pattern.given(rank)
        own = slice(rank * cell.share, (rank + 1) * cell.share)
        if cell.collective is Collective.ALL_GATHER:
            output = torch.empty(cell.num_elements, dtype=cell.torch_dtype)
            return cls(data, output[own] if cell.in_place else data, output)
        input_ = data.clone() if cell.in_place else data
        if cell.collective in OWNED:
            return cls(data, input_, input_[own] if cell.in_place else torch.empty_like(data[own]))
        return cls(data, input_, input_ if cell.in_place else torch.empty_like(data))

    def refill(self) -> None:
        """Undo what a competitor working in place did to the input."""
        if self.input is not self.data:
            self.input.copy_(self.data)

    def spoil(self) -> None:
        """Fill the output with what cannot be right, so that a competitor that does nothing is found out."""
        self.output.copy_(torch.tensor(UNTOUCHED).to(self.output.dtype))
