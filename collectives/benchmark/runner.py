"""`measure`: one case, with each of its implementations in turn."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from collectives.benchmark.buffers import Buffers
from collectives.benchmark.case import BenchmarkCase
from collectives.benchmark.implementation import Timed
from collectives.benchmark.pattern import Pattern, pattern
from collectives.benchmark.plan import BenchmarkPlan
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
    case: BenchmarkCase, implementations: Sequence[Timed], plan: BenchmarkPlan, group: dist.ProcessGroup
) -> tuple[CollectiveTimes, ...]:
    """The times of each implementation, the same on every rank; collective.

    In each iteration every implementation has a turn, another one first each time, so that a slow moment of the machine
    falls on all of them. Every turn begins with torch's own barrier: if it warms anything up, then for torch. It is, as
    in nccl-tests, several calls in a row, of which the mean counts. Raises CollectiveError when a peer fails.
    """
    with naming_failures(f"rank {group.rank()}: {case} failed"):
        data = pattern(case, plan.seed)
        buffers = Buffers.of(data, group.rank())
        wrong = [_count_wrong(implementation, data, buffers, group) for implementation in implementations]
        for turn in range(plan.warm_up):
            _one_round(turn, implementations, buffers, group, 1)
        calls, count = _agree(
            plan, lambda: _one_round(0, implementations, buffers, group, 1), len(implementations), group
        )
        own = torch.tensor(
            [_one_round(turn, implementations, buffers, group, calls) for turn in range(count)], dtype=torch.float64
        )
        ends = _gather(own, group)  # (ranks, iterations, implementations, start or end)
    return tuple(
        _summary(case, implementation.name, wrong[index], ends[:, :, index], calls, index, len(implementations))
        for index, implementation in enumerate(implementations)
    )


def _count_wrong(implementation: Timed, data: Pattern, buffers: Buffers, group: dist.ProcessGroup) -> int | None:
    """Elements that are wrong, over all ranks; None if the implementation has no result."""
    own = implementation.count_wrong(data, buffers, group.rank())
    count = torch.tensor(own or 0)
    dist.all_reduce(count, group=group)
    return None if own is None else int(count)


def first_in(turn: int, num_implementations: int) -> int:
    """Which implementation begins an iteration."""
    return turn % num_implementations


def _one_round(
    turn: int, implementations: Sequence[Timed], buffers: Buffers, group: dist.ProcessGroup, calls: int
) -> list[tuple[float, float]]:
    """When each implementation began and ended its calls on this rank, in seconds on its clock."""
    times = [(0.0, 0.0)] * len(implementations)
    first = first_in(turn, len(implementations))
    for index in [*range(first, len(implementations)), *range(first)]:
        buffers.refill()
        dist.barrier(group=group)
        times[index] = implementations[index].turn(buffers, calls)
    return times


def _agree(
    plan: BenchmarkPlan, one_round: Callable[[], object], num_implementations: int, group: dist.ProcessGroup
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
    calls = plan.calls or min(max(round(IN_A_ROW_S * num_implementations / round_s), 1), MAX_IN_A_ROW)
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
    case: BenchmarkCase,
    name: str,
    wrong: int | None,
    ends: torch.Tensor,
    calls: int,
    index: int,
    num_implementations: int,
) -> CollectiveTimes:
    """ends: (ranks, iterations, start or end)."""
    starts = ends[:, :, 0]
    times = (ends[:, :, 1] - starts) / calls
    slowest = times.argmax(dim=0, keepdim=True)
    arrival_skew = (starts.amax(dim=0) - starts.gather(0, slowest)[0]) / calls
    return CollectiveTimes(
        collective=case.collective,
        algorithm=name,
        size_bytes=case.size_bytes,
        dtype=case.dtype,
        op=case.op,
        num_ranks=case.num_ranks,
        in_place=case.in_place,
        wrong=wrong,
        calls=calls,
        times_s=tuple(times.amax(dim=0).tolist()),
        arrival_skew_s=tuple(arrival_skew.clamp(min=0).tolist()),
        positions=tuple(
            (index - first_in(turn, num_implementations)) % num_implementations for turn in range(times.shape[1])
        ),
        rank_medians_s=tuple(statistics.median(rank) for rank in times.tolist()),
    )
