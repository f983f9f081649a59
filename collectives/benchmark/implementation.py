"""`Implementation`: one of those that a case is timed with: an algorithm of ours, torch's own, or a plain ring."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import collectives
from collectives.benchmark.case import NO_OP, OPS, BenchmarkCase, Buffers, Pattern
from ringsim.measurements import PLAIN_RING, TORCH
from ringsim.schedule import Collective


@dataclass(frozen=True, slots=True)
class Implementation:
    """A competitor in a case, on one rank; every rank calls the same methods in the same order.

    name: in place of an algorithm's in tables and files.
    run: does the collective once.
    """

    name: str
    run: Callable[[Buffers], object]

    def count_wrong(self, data: Pattern, buffers: Buffers, rank: int) -> int:
        """Do the case once; return how many elements of `rank` are wrong."""
        buffers.spoil()
        buffers.refill()
        self.run(buffers)
        return data.count_wrong(rank, buffers.output)

    def turn(self, buffers: Buffers, calls: int) -> tuple[float, float]:
        """Do the case `calls` times in a row; return when that began and ended here, on `time.perf_counter`."""
        begin_s = time.perf_counter()
        for _ in range(calls):
            self.run(buffers)
        return begin_s, time.perf_counter()


# Newer versions of torch have the same under another name, and warn at each call by the old one, which takes time.
_RENAMED = {"reduce_scatter_tensor": "reduce_scatter_single", "all_gather_into_tensor": "all_gather_single"}


def ours(case: BenchmarkCase, algorithm: str, group: dist.ProcessGroup) -> Implementation:
    """One of our algorithms."""
    return Implementation(algorithm, _call(collectives, case, group, algorithm=algorithm))


def native(case: BenchmarkCase, group: dist.ProcessGroup) -> Implementation:
    """torch.distributed's own."""
    return Implementation(TORCH, _call(dist, case, group))


def _call(library: Any, case: BenchmarkCase, group: dist.ProcessGroup, **options: Any) -> Callable[[Buffers], object]:
    """Return the function of `library`, which is `collectives` or `torch.distributed`.

    Their signatures are the same.
    """
    op: Any = OPS.get(case.op)
    is_root = group.rank() == 0
    options |= {"group": group}
    reduce_scatter, all_gather = (
        _function(library, "reduce_scatter_tensor"),
        _function(library, "all_gather_into_tensor"),
    )

    def shares(tensor: torch.Tensor) -> list[torch.Tensor] | None:
        return list(tensor.split(case.share)) if is_root else None

    runs: dict[Collective, Callable[[Buffers], object]] = {
        Collective.ALL_REDUCE: lambda b: library.all_reduce(_copied(b), op=op, **options),
        Collective.REDUCE_SCATTER: lambda b: reduce_scatter(b.output, b.input, op=op, **options),
        Collective.ALL_GATHER: lambda b: all_gather(b.output, b.input, **options),
        Collective.BROADCAST: lambda b: library.broadcast(_copied(b, is_root), group_src=0, **options),
        Collective.REDUCE: lambda b: library.reduce(_copied(b), group_dst=0, op=op, **options),
        Collective.GATHER: lambda b: library.gather(b.input, shares(b.output), group_dst=0, **options),
        Collective.SCATTER: lambda b: library.scatter(b.output, shares(b.input), group_src=0, **options),
        Collective.ALL_TO_ALL: lambda b: library.all_to_all_single(b.output, b.input, **options),
    }
    return runs[case.collective]


def _function(library: Any, name: str) -> Callable[..., object]:
    function: Callable[..., object] = getattr(library, _RENAMED[name], None) or getattr(library, name)
    return function


def _copied(buffers: Buffers, copies: bool = True) -> Any:
    """Return the output, with the input in it.

    No library has these collectives out of place, so to copy is part of them.
    """
    if copies and buffers.output is not buffers.input:
        buffers.output.copy_(buffers.input)
    return buffers.output


def plain_ring(case: BenchmarkCase, group: dist.ProcessGroup) -> Implementation | None:
    """Return a ring of isend and irecv as one writes it by hand, the least that a library should be measured by.

    None for other collectives, and for other operations than a sum.
    """
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
    """One rank's part, for chunks of at most `length` elements.

    Whole chunks go round, one step after the other; a sum is formed in place. Buffers are kept, as in our executors.
    """

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
