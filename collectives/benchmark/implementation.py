"""`Implementation`: one of those that a case is timed with: an algorithm of ours, torch's own, or bare sockets."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch.distributed as dist

import collectives
from collectives.benchmark.buffers import Buffers
from collectives.benchmark.case import OPS, BenchmarkCase
from collectives.benchmark.pattern import Pattern
from ringsim.measurements import TORCH
from ringsim.schedule import Collective


class Timed(Protocol):
    """What a case is timed with, on one rank; every rank calls the same methods in the same order."""

    @property
    def name(self) -> str:
        """In place of an algorithm's in tables and files."""

    def count_wrong(self, data: Pattern, buffers: Buffers, rank: int) -> int | None:
        """Do the case once; returns how many elements of `rank` are wrong, None if there is no result to look at."""

    def turn(self, buffers: Buffers, calls: int) -> tuple[float, float]:
        """Do the case so many times in a row; returns when that began and ended here, on `time.perf_counter`."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """A name, and what does the collective once on one rank.

    reduces: False if it only moves bytes, so that there is no result to look at.
    """

    name: str
    run: Callable[[Buffers], object]
    reduces: bool = True

    def count_wrong(self, data: Pattern, buffers: Buffers, rank: int) -> int | None:
        """See `Timed`."""
        buffers.spoil()
        buffers.refill()
        self.run(buffers)
        return data.count_wrong(rank, buffers.output) if self.reduces else None

    def turn(self, buffers: Buffers, calls: int) -> tuple[float, float]:
        """See `Timed`."""
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


def _call(library: Any, case: BenchmarkCase, group: dist.ProcessGroup, **options: str) -> Callable[[Buffers], object]:
    """The function of `library`, which is `collectives` or `torch.distributed`: their signatures are the same."""
    op: Any = OPS.get(case.op)
    is_root = group.rank() == 0
    if case.collective is Collective.REDUCE_SCATTER:
        scatter = _function(library, "reduce_scatter_tensor")
        return lambda b: scatter(b.output, b.input, op=op, group=group, **options)
    if case.collective is Collective.ALL_GATHER:
        gather = _function(library, "all_gather_into_tensor")
        return lambda b: gather(b.output, b.input, group=group, **options)
    if case.collective is Collective.BROADCAST:
        return lambda b: library.broadcast(_copied(b, is_root), group=group, group_src=0, **options)
    if case.collective is Collective.REDUCE:
        return lambda b: library.reduce(_copied(b), group_dst=0, op=op, group=group, **options)
    return lambda b: library.all_reduce(_copied(b), op=op, group=group, **options)


def _function(library: Any, name: str) -> Callable[..., object]:
    function: Callable[..., object] = getattr(library, _RENAMED[name], None) or getattr(library, name)
    return function


def _copied(buffers: Buffers, copies: bool = True) -> Any:
    """The output, with the input in it: no library has these collectives out of place, so to copy is part of them."""
    if copies and buffers.output is not buffers.input:
        buffers.output.copy_(buffers.input)
    return buffers.output
