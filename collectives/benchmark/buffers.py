"""`Buffers`: the memory that a case's implementations work on, the same for all of them."""

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
    input, output: what an implementation is called with. In place they share memory: they are the same, or the smaller
    one is this rank's share of the larger.
    """

    data: torch.Tensor
    input: torch.Tensor
    output: torch.Tensor

    @classmethod
    def of(cls, pattern: Pattern, rank: int) -> Self:
        """Those of `rank` for the pattern's case."""
        case, data = pattern.case, pattern.given(rank)
        own = slice(rank * case.share, (rank + 1) * case.share)
        if case.collective is Collective.ALL_GATHER:
            output = torch.empty(case.num_elements, dtype=case.torch_dtype)
            return cls(data, output[own] if case.in_place else data, output)
        input_ = data.clone() if case.in_place else data
        if case.collective in OWNED:
            return cls(data, input_, input_[own] if case.in_place else torch.empty_like(data[own]))
        return cls(data, input_, input_ if case.in_place else torch.empty_like(data))

    def refill(self) -> None:
        """Undo what an implementation working in place did to the input."""
        if self.input is not self.data:
            self.input.copy_(self.data)

    def spoil(self) -> None:
        """Fill the output with what cannot be right, so that an implementation that does nothing is found out."""
        self.output.copy_(torch.tensor(UNTOUCHED).to(self.output.dtype))
