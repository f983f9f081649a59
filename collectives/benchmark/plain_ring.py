"""`plain_ring`: a ring of isend and irecv as one writes it by hand, the least that a library should be measured by.

Whole chunks go round, one step after the other; a sum is formed in place. The buffers are kept, as in our executors.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from collectives.benchmark.buffers import Buffers
from collectives.benchmark.case import NO_OP, BenchmarkCase
from collectives.benchmark.implementation import Implementation
from ringsim.measurements import PLAIN_RING
from ringsim.schedule import Collective


def plain_ring(case: BenchmarkCase, group: dist.ProcessGroup) -> Implementation | None:
    """The ring of `case`; None for what it does not do: other collectives, and other operations than a sum."""
    runs: dict[Collective, Callable[[Buffers], object]] = {
        Collective.ALL_REDUCE: lambda b: ring.all_reduce(b.input, b.output),
        Collective.REDUCE_SCATTER: lambda b: ring.reduce_scatter(b.input, b.output),
        Collective.ALL_GATHER: lambda b: ring.all_gather(b.input, b.output),
    }
    if case.collective not in runs or case.op not in ("sum", NO_OP):
        return None
    ring = _Ring(group, -(-case.num_elements // group.size()), case.torch_dtype)
    return Implementation(PLAIN_RING, runs[case.collective])


class _Ring:
    """One rank's part, for chunks of at most `length` elements."""

    def __init__(self, group: dist.ProcessGroup, length: int, dtype: torch.dtype) -> None:
        self._group, self._rank, self._num_ranks = group, group.rank(), group.size()
        self._sum, self._arriving = torch.empty(length, dtype=dtype), torch.empty(length, dtype=dtype)

    def all_reduce(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        if output is not tensor:
            output.copy_(tensor)
        chunks = output.tensor_split(self._num_ranks)
        for step in range(self._num_ranks - 1):
            chunk = self._of(chunks, -step - 1)
            arriving = self._arriving[: len(chunk)]
            self._exchange(self._of(chunks, -step), arriving)
            chunk.add_(arriving)
        for step in range(self._num_ranks - 1):
            self._exchange(self._of(chunks, 1 - step), self._of(chunks, -step))

    def reduce_scatter(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        chunks = tensor.tensor_split(self._num_ranks)
        total, arriving = self._sum.copy_(self._of(chunks, -1)), self._arriving
        for step in range(self._num_ranks - 1):
            self._exchange(total, arriving)
            total, arriving = arriving.add_(self._of(chunks, -step - 2)), total
        output.copy_(total)

    def all_gather(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        chunks = output.tensor_split(self._num_ranks)
        self._of(chunks, 0).copy_(tensor)
        for step in range(self._num_ranks - 1):
            self._exchange(self._of(chunks, -step), self._of(chunks, -step - 1))

    def _of(self, chunks: tuple[torch.Tensor, ...], offset: int) -> torch.Tensor:
        return chunks[(self._rank + offset) % self._num_ranks]

    def _exchange(self, sent: torch.Tensor, arriving: torch.Tensor) -> None:
        """Send to the next rank, and receive from the one before."""
        sending = self._group.send([sent], (self._rank + 1) % self._num_ranks, 0)
        self._group.recv([arriving], (self._rank - 1) % self._num_ranks, 0).wait()
        sending.wait()
