"""`measure`: one cell, with each of its contenders in turn."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from collectives.benchmark.buffers import Buffers
from collectives.benchmark.cell import Cell
from collectives.benchmark.contender import Contender
from collectives.benchmark.pattern import Pattern, pattern
from collectives.benchmark.plan import Plan
from collectives.errors import naming_failures
from ringsim.collective_times import CollectiveTimes

TRIED = 3  # rounds, to find out how many fit
MIN_ITERATIONS = 5
MAX_ITERATIONS = 1000


def measure(
    cell: Cell, contenders: Sequence[Contender], plan: Plan, group: dist.ProcessGroup
) -> tuple[CollectiveTimes, ...]:
    """The times of each contender, the same on every rank; collective.

    In each iteration every contender has a turn, another one first each time, so that a slow moment of the machine
    falls on all of them. Every turn begins with torch's own barrier: if it warms anything up, then for torch.
    Raises CollectiveError when a peer fails.
    """
    with naming_failures(f"rank {group.rank()}: {cell} failed"):
        data = pattern(cell, plan.seed)
        buffers = Buffers.of(data, group.rank())
        wrong = [_count_wrong(contender, data, buffers, group) for contender in contenders]
        for turn in range(plan.warm_up):
            _one_round(turn, contenders, buffers, group)
        count = plan.iterations or _agree(plan.cell_time_s, lambda: _one_round(0, contenders, buffers, group), group)
        own = torch.tensor([_one_round(turn, contenders, buffers, group) for turn in range(count)], dtype=torch.float64)
        times = _gather(own, group)
    return tuple(_summary(cell, c.name, wrong[i], times[:, :, i], i, len(contenders)) for i, c in enumerate(contenders))


def _count_wrong(contender: Contender, data: Pattern, buffers: Buffers, group: dist.ProcessGroup) -> int | None:
    """Elements that are wrong, over all ranks; None if the contender has no result."""
    buffers.spoil()
    buffers.refill()
    contender.run(buffers)
    count = torch.tensor(data.count_wrong(group.rank(), buffers.output) if contender.reduces else 0)
    dist.all_reduce(count, group=group)
    return int(count) if contender.reduces else None


def first_in(turn: int, num_contenders: int) -> int:
    """Which contender begins an iteration."""
    return turn % num_contenders


def _one_round(turn: int, contenders: Sequence[Contender], buffers: Buffers, group: dist.ProcessGroup) -> list[float]:
    """Seconds that each contender took on this rank."""
    times = [0.0] * len(contenders)
    first = first_in(turn, len(contenders))
    for index in [*range(first, len(contenders)), *range(first)]:
        buffers.refill()
        dist.barrier(group=group)
        begin = time.perf_counter()
        contenders[index].run(buffers)
        times[index] = time.perf_counter() - begin
    return times


def _agree(cell_time_s: float, one_round: Callable[[], object], group: dist.ProcessGroup) -> int:
    """How many iterations fit, as rank 0 finds from a few: all must do as many."""
    rounds_s = []
    for _ in range(TRIED):
        begin = time.perf_counter()
        one_round()
        rounds_s.append(time.perf_counter() - begin)
    count = torch.tensor(min(max(int(cell_time_s / statistics.median(rounds_s)), MIN_ITERATIONS), MAX_ITERATIONS))
    dist.broadcast(count, group=group, group_src=0)
    return int(count)


def _gather(own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """own: (iterations, contenders). Returns (ranks, iterations, contenders)."""
    gathered = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(gathered, own, group=group)
    return torch.stack(gathered)


def _summary(
    cell: Cell, name: str, wrong: int | None, times: torch.Tensor, index: int, num_contenders: int
) -> CollectiveTimes:
    """times: (ranks, iterations)."""
    return CollectiveTimes(
        collective=cell.collective,
        algorithm=name,
        size_bytes=cell.size_bytes,
        dtype=cell.dtype,
        op=cell.op,
        num_ranks=cell.num_ranks,
        in_place=cell.in_place,
        wrong=wrong,
        times_s=tuple(times.amax(dim=0).tolist()),
        positions=tuple((index - first_in(turn, num_contenders)) % num_contenders for turn in range(times.shape[1])),
        rank_medians_s=tuple(statistics.median(rank) for rank in times.tolist()),
    )
