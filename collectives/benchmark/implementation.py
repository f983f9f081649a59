"""`call_of`: a collective of ours or of torch; `plain_ring`: a hand-written one for comparison."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from collectives.benchmark.case import BenchmarkCase, Buffers
from collectives.calls import FIRST
from ringsim.schedule import Collective

Run = Callable[[Buffers], object]  # does a collective once, on one rank; all ranks call the same


def call_of(library: Any, case: BenchmarkCase, group: dist.ProcessGroup, **options: Any) -> Run:
    """Return the call of `case` with `library`: `collectives` or `torch.distributed`."""
    function, is_root = FIRST[case.collective], group.rank() == 0
    # Newer versions of torch name some functions like the methods, and warn at each call by an old name.
    newest = function.methods.split()[0]
    call: Callable[..., object] = getattr(library, newest, None) or getattr(library, function.name)
    options |= {"group": group} | ({f"group_{function.root}": 0} if function.root else {})
    operands = _OPERANDS.get(case.collective, _whole if function.is_in_place else _both)
    return lambda buffers: call(*function.arguments(*operands(buffers, is_root)), **options)


def _both(buffers: Buffers, _: bool) -> tuple[Any, Any]:
    return buffers.output, buffers.input


def _whole(buffers: Buffers, _: bool) -> tuple[Any, Any]:
    return buffers.copied(), None


def _shares(whole: torch.Tensor, share: torch.Tensor, is_root: bool) -> list[torch.Tensor] | None:
    return list(whole.split(len(share))) if is_root else None


# The output and the input of functions in which the root's operands differ.
_OPERANDS: dict[Collective, Callable[[Buffers, bool], tuple[Any, Any]]] = {
    Collective.BROADCAST: lambda b, is_root: (b.copied() if is_root else b.output, None),
    Collective.GATHER: lambda b, is_root: (_shares(b.output, b.data, is_root), b.input),
    Collective.SCATTER: lambda b, is_root: (b.output, _shares(b.input, b.output, is_root)),
}


def plain_ring(case: BenchmarkCase, group: dist.ProcessGroup) -> Run | None:
    """Return a hand-written ring of isend and irecv; None except for all_reduce, reduce_scatter and all_gather."""
    ring = _PlainRing(group, -(-case.num_elements // group.size()), case.torch_dtype)
    runs: dict[Collective, Run] = {
        Collective.ALL_REDUCE: lambda b: ring.all_reduce(b.copied()),
        Collective.REDUCE_SCATTER: lambda b: ring.reduce_scatter(b.input, b.output),
        Collective.ALL_GATHER: lambda b: ring.all_gather(b.input, b.output),
    }
    return runs.get(case.collective)


class _PlainRing:
    def __init__(self, group: dist.ProcessGroup, length: int, dtype: torch.dtype) -> None:
        self._group, self._rank, self._num_ranks = group, group.rank(), group.size()
        self._sum, self._arriving = torch.empty(length, dtype=dtype), torch.empty(length, dtype=dtype)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        chunks = self._from_here_on(tensor)
        for step in range(self._num_ranks - 1):
            arriving = self._arriving[: len(chunks[-step - 1])]
            self._exchange(chunks[-step], arriving)
            chunks[-step - 1].add_(arriving)
        for step in range(self._num_ranks - 1):
            self._exchange(chunks[1 - step], chunks[-step])

    def reduce_scatter(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        chunks = self._from_here_on(tensor)
        total, arriving = self._sum.copy_(chunks[-1]), self._arriving
        for step in range(self._num_ranks - 1):
            self._exchange(total, arriving)
            total, arriving = arriving.add_(chunks[-step - 2]), total
        output.copy_(total)

    def all_gather(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        chunks = self._from_here_on(output)
        chunks[0].copy_(tensor)
        for step in range(self._num_ranks - 1):
            self._exchange(chunks[-step], chunks[-step - 1])

    def _from_here_on(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        chunks = tensor.tensor_split(self._num_ranks)
        return [*chunks[self._rank :], *chunks[: self._rank]]

    def _exchange(self, sent: torch.Tensor, arriving: torch.Tensor) -> None:
        sending = self._group.send([sent], (self._rank + 1) % self._num_ranks, 0)
        self._group.recv([arriving], (self._rank - 1) % self._num_ranks, 0).wait()
        sending.wait()
