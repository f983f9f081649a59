"""`FUNCTIONS`: how a collective of ours and of torch is called; and a plain ring, which is compared with both."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from collectives.benchmark.case import BenchmarkCase, Buffers
from ringsim.schedule import Collective

Run = Callable[[Buffers], object]  # does a collective once, on one rank; all ranks call the same


class Function(NamedTuple):
    """A function that both `collectives` and torch.distributed have, with the same arguments.

    name: of the function, and of the collective in the command line.
    algorithm: which one is timed if the command line names none.
    tensors: called with a rank's buffers and whether the rank is the root; returns the positional arguments.
    root: the keyword argument for the root, such as group_src; "" if there is no root.
    preferred: another name of the function, which is called instead in a library that has it.
    """

    name: str
    algorithm: str
    tensors: Callable[[Buffers, bool], tuple[Any, ...]]
    root: str = ""
    preferred: str = ""


def _shares(whole: torch.Tensor, share: torch.Tensor, is_root: bool) -> list[torch.Tensor] | None:
    return list(whole.split(len(share))) if is_root else None


def _copied(buffers: Buffers, _: bool) -> tuple[Any, ...]:
    return (buffers.copied(),)


def _both(buffers: Buffers, _: bool) -> tuple[Any, ...]:
    return buffers.output, buffers.input


FUNCTIONS = {
    Collective.ALL_REDUCE: Function("all_reduce", "ring", _copied),
    # Newer versions of torch have these under another name, and warn at each call by the old one, which takes time.
    Collective.REDUCE_SCATTER: Function("reduce_scatter_tensor", "ring", _both, preferred="reduce_scatter_single"),
    Collective.ALL_GATHER: Function("all_gather_into_tensor", "ring", _both, preferred="all_gather_single"),
    Collective.BROADCAST: Function(
        "broadcast", "binomial_tree", lambda b, is_root: (b.copied() if is_root else b.output,), root="group_src"
    ),
    Collective.REDUCE: Function("reduce", "binomial_tree", _copied, root="group_dst"),
    Collective.GATHER: Function(
        "gather", "direct", lambda b, is_root: (b.input, _shares(b.output, b.data, is_root)), root="group_dst"
    ),
    Collective.SCATTER: Function(
        "scatter", "direct", lambda b, is_root: (b.output, _shares(b.input, b.output, is_root)), root="group_src"
    ),
    Collective.ALL_TO_ALL: Function("all_to_all", "direct", _both, preferred="all_to_all_single"),
}


def call_of(library: Any, case: BenchmarkCase, group: dist.ProcessGroup, **options: Any) -> Run:
    """Return the call that does `case` with `library`, which is `collectives` or `torch.distributed`."""
    function, is_root = FUNCTIONS[case.collective], group.rank() == 0
    call: Callable[..., object] = getattr(library, function.preferred, None) or getattr(library, function.name)
    options |= {"group": group} | ({function.root: 0} if function.root else {})
    return lambda buffers: call(*function.tensors(buffers, is_root), **options)


def plain_ring(case: BenchmarkCase, group: dist.ProcessGroup) -> Run | None:
    """Return a ring of isend and irecv as one writes it by hand, the least that a library should be measured by.

    None for other collectives.
    """
    ring = _PlainRing(group, -(-case.num_elements // group.size()), case.torch_dtype)
    runs: dict[Collective, Run] = {
        Collective.ALL_REDUCE: lambda b: ring.all_reduce(b.copied()),
        Collective.REDUCE_SCATTER: lambda b: ring.reduce_scatter(b.input, b.output),
        Collective.ALL_GATHER: lambda b: ring.all_gather(b.input, b.output),
    }
    return runs.get(case.collective)


class _PlainRing:
    """One rank's part, for chunks of at most `length` elements.

    Whole chunks go round, one step after the other; a sum is formed in place. Buffers are kept, as in our executors.
    """

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
        """Return the chunks of `tensor`, this rank's first."""
        chunks = tensor.tensor_split(self._num_ranks)
        return [*chunks[self._rank :], *chunks[: self._rank]]

    def _exchange(self, sent: torch.Tensor, arriving: torch.Tensor) -> None:
        """Send to the next rank, and receive from the one before."""
        sending = self._group.send([sent], (self._rank + 1) % self._num_ranks, 0)
        self._group.recv([arriving], (self._rank - 1) % self._num_ranks, 0).wait()
        sending.wait()
