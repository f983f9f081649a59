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
from collectives.runtime import naming_failures
from ringsim.measurements import CollectiveTimes

TRIED = 3  # rounds, to find out how many fit
# A turn should take as long, so that neither who leaves the barrier last decides what it takes nor a thread that polls
# where another waits for its core, which may take until the kernel's next tick: 4 ms and more.
IN_A_ROW_S = 50e-3
MAX_IN_A_ROW = 500
MIN_ITERATIONS = 5
MAX_ITERATIONS = 1000


def measure(
    cell: Cell, contenders: Sequence[Contender], plan: Plan, group: dist.ProcessGroup
) -> tuple[CollectiveTimes, ...]:
    """The times of each contender, the same on every rank; collective.

    In each iteration every contender has a turn, another one first each time, so that a slow moment of the machine
    falls on all of them. Every turn begins with torch's own barrier: if it warms anything up, then for torch. It is, as
    in nccl-tests, several calls in a row, of which the mean counts. Raises CollectiveError when a peer fails.
    """
    with naming_failures(f"rank {group.rank()}: {cell} failed"):
        data = pattern(cell, plan.seed)
        buffers = Buffers.of(data, group.rank())
        wrong = [_count_wrong(contender, data, buffers, group) for contender in contenders]
        for turn in range(plan.warm_up):
            _one_round(turn, contenders, buffers, group, 1)
        calls, count = _agree(plan, lambda: _one_round(0, contenders, buffers, group, 1), len(contenders), group)
        own = torch.tensor(
            [_one_round(turn, contenders, buffers, group, calls) for turn in range(count)], dtype=torch.float64
        )
        ends = _gather(own, group)  # (ranks, iterations, contenders, start or end)
    return tuple(
        _summary(cell, contender.name, wrong[index], ends[:, :, index], calls, index, len(contenders))
        for index, contender in enumerate(contenders)
    )


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


def _one_round(
    turn: int, contenders: Sequence[Contender], buffers: Buffers, group: dist.ProcessGroup, calls: int
) -> list[tuple[float, float]]:
    """When each contender began and ended its calls on this rank, in seconds on its clock."""
    times = [(0.0, 0.0)] * len(contenders)
    first = first_in(turn, len(contenders))
    for index in [*range(first, len(contenders)), *range(first)]:
        buffers.refill()
        dist.barrier(group=group)
        begin = time.perf_counter()
        for _ in range(calls):
            contenders[index].run(buffers)
        times[index] = begin, time.perf_counter()
    return times


def _agree(
    plan: Plan, one_round: Callable[[], object], num_contenders: int, group: dist.ProcessGroup
) -> tuple[int, int]:
    """How many calls in a row, and how many iterations fit, as rank 0 finds from a few: all must do as many."""
    if plan.calls and plan.iterations:
        return plan.calls, plan.iterations
    rounds_s = []
    for _ in range(TRIED):
        begin = time.perf_counter()
        one_round()
        rounds_s.append(time.perf_counter() - begin)
    round_s = statistics.median(rounds_s)
    calls = plan.calls or min(max(round(IN_A_ROW_S * num_contenders / round_s), 1), MAX_IN_A_ROW)
    count = plan.iterations or min(max(int(plan.cell_time_s / (calls * round_s)), MIN_ITERATIONS), MAX_ITERATIONS)
    agreed = torch.tensor([calls, count])
    dist.broadcast(agreed, group=group, group_src=0)
    calls, count = agreed.tolist()
    return calls, count


def _gather(own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """own: (...). Returns (ranks, ...)."""
    gathered = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(gathered, own, group=group)
    return torch.stack(gathered)


def _summary(
    cell: Cell, name: str, wrong: int | None, ends: torch.Tensor, calls: int, index: int, num_contenders: int
) -> CollectiveTimes:
    """ends: (ranks, iterations, start or end)."""
    starts = ends[:, :, 0]
    times = (ends[:, :, 1] - starts) / calls
    slowest = times.argmax(dim=0, keepdim=True)
    late = (starts.amax(dim=0) - starts.gather(0, slowest)[0]) / calls
    return CollectiveTimes(
        collective=cell.collective,
        algorithm=name,
        size_bytes=cell.size_bytes,
        dtype=cell.dtype,
        op=cell.op,
        num_ranks=cell.num_ranks,
        in_place=cell.in_place,
        wrong=wrong,
        calls=calls,
        times_s=tuple(times.amax(dim=0).tolist()),
        arrival_skew_s=tuple(late.clamp(min=0).tolist()),
        positions=tuple((index - first_in(turn, num_contenders)) % num_contenders for turn in range(times.shape[1])),
        rank_medians_s=tuple(statistics.median(rank) for rank in times.tolist()),
    )
