"""`run_plan`: a whole benchmark on one process group."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace

import collectives
from collectives.benchmark.call_overhead import probe_calls
from collectives.benchmark.case import BenchmarkCase, BenchmarkPlan, Buffers, Pattern, pattern
from collectives.benchmark.memory_limit import memory_limit
from collectives.benchmark.transfer_log import gather, record_runs
from collectives.calls import FIRST
from collectives.probes import Blocks, places_of, probe, provenance
from collectives.runtime import naming_failures, transport_in_use
from ringsim.console import Progress
from ringsim.measurements import LIMIT, PLAIN_RING, TORCH, CollectiveTimes, Measurements, pooled
from ringsim.schedule import Collective

Run = Callable[[Buffers], object]  # does a collective once, on one rank; all ranks call the same
PROBED_BYTES = 32 * 2**20  # twice the largest message; larger ones take time and tell nothing new
# Probes run before and after the cases, as a machine may become slower. On a slow link these few take a minute.
BLOCKS = Blocks(turns=2, number=4)
TRIED = 3  # rounds, from which follows how many fit
# Seconds of a turn: many times the skew after a barrier, and many times a kernel's tick (4 ms and more), for which a
# thread may wait if another one polls on its core.
IN_A_ROW_S = 50e-3
MAX_IN_A_ROW = 500
MIN_ITERATIONS = 5
MAX_ITERATIONS = 1000
LIMITED_BYTES = 2**29  # of all ranks: to make the tensors of one process must not keep the others waiting for long


def run_plan(plan: BenchmarkPlan, group: dist.ProcessGroup, progress: Progress | None = None) -> Measurements:
    """Time all cases of `plan` and record its runs; collective. All results but provenance are the same on every rank.

    Raises ValueError for an impossible plan, CollectiveError when a peer fails.
    """
    progress = progress or Progress(rank=1)
    if plan.record and not places_of(group).one_clock:
        raise ValueError("--record: the ranks are on several machines, which have no common clock: record on one")
    probed = _probed(plan, group, progress)
    cases = plan.cases(group.size())
    timed: list[CollectiveTimes] = []
    progress.begin("timing", len(cases))
    for case in cases:
        timed += measure(case, _implementations(case, plan, group), plan, group)
        progress.update(1, str(case))
    if plan.probes:
        probed = pooled([probed, _probed(plan, group, progress)])
    if plan.record:
        progress.begin("recording")
    runs = record_runs(plan, group, progress.say) if plan.record else ()
    return replace(probed, collectives=tuple(timed), runs=runs)


def _probed(plan: BenchmarkPlan, group: dist.ProcessGroup, progress: Progress) -> Measurements:
    origin = {"transport": transport_in_use(group)} | ({"tensors": "shared"} if plan.shared else {})
    if not plan.probes:
        return Measurements(group.size(), provenance() | origin | places_of(group).as_dict())
    largest = max(plan.sizes_bytes)
    advance = partial(progress.advance_to, phase="probing")
    probed = probe(group, min(largest, PROBED_BYTES), largest, blocks=BLOCKS, calls=probe_calls, on_progress=advance)
    return replace(probed, provenance=probed.provenance | origin)


def _implementations(case: BenchmarkCase, plan: BenchmarkPlan, group: dist.ProcessGroup) -> dict[str, Run]:
    runs = {TORCH: call_of(dist, case, group)}
    for algorithm in plan.algorithms_for(case.collective):
        runs[algorithm] = call_of(collectives, case, group, algorithm=algorithm)
    plain = plain_ring(case, group) if plan.plain_ring else None
    runs |= {PLAIN_RING: plain} if plain else {}
    is_limited = plan.limit and case.num_ranks > 1 and case.num_ranks * case.size_bytes <= LIMITED_BYTES
    if is_limited and transport_in_use(group) == "shm":
        # The other ranks leave the cores to rank 0.
        limit = memory_limit(case, Buffers.of_all(pattern(case))) if group.rank() == 0 else lambda: None
        runs[LIMIT] = lambda _: limit()
    return runs


def measure(
    case: BenchmarkCase, implementations: Mapping[str, Run], plan: BenchmarkPlan, group: dist.ProcessGroup
) -> list[CollectiveTimes]:
    """Return the times of each implementation, the same on every rank; collective.

    In each iteration every implementation has a turn, in rotated order, so that a slow moment falls on all. A turn
    begins with torch's own barrier: any warming up benefits torch. It is several calls in a row, whose mean counts, as
    in nccl-tests.
    """
    with naming_failures(f"rank {group.rank()}: {case} failed"):
        data = pattern(case)
        allocate = partial(collectives.empty, group=group) if plan.shared else torch.empty
        buffers = Buffers.of(data, group.rank(), allocate)
        runs = list(implementations.values())
        wrong = [
            None if name == LIMIT else _count_wrong(run, data, buffers, group) for name, run in implementations.items()
        ]
        one_round = partial(_one_round, runs, buffers, group)
        for turn in range(plan.warm_up):
            one_round(turn, 1)
        calls, count = _agree(plan, partial(one_round, 0, 1), len(runs), group)
        own = torch.tensor([one_round(turn, calls) for turn in range(count)], dtype=torch.float64)
        ends = gather(own, group)  # (ranks, iterations, implementations, start or end)
    return [
        _summary(case, name, wrong[index], ends[:, :, index], calls,
                 tuple((index - turn) % len(runs) for turn in range(count)))
        for index, name in enumerate(implementations)
    ]  # fmt: skip


def _count_wrong(run: Run, data: Pattern, buffers: Buffers, group: dist.ProcessGroup) -> int:
    buffers.invalidate_output()
    buffers.refill()
    run(buffers)
    count = torch.tensor(data.count_wrong(group.rank(), buffers.output))
    dist.all_reduce(count, group=group)
    return int(count)


def _one_round(
    runs: Sequence[Run], buffers: Buffers, group: dist.ProcessGroup, turn: int, calls: int
) -> list[tuple[float, float]]:
    times = [(0.0, 0.0)] * len(runs)
    for place in range(len(runs)):
        index = (turn + place) % len(runs)
        run = runs[index]
        buffers.refill()
        dist.barrier(group=group)
        begin_s = time.perf_counter()
        for _ in range(calls):
            run(buffers)
        times[index] = begin_s, time.perf_counter()
    return times


def _agree(
    plan: BenchmarkPlan, one_round: Callable[[], object], num_implementations: int, group: dist.ProcessGroup
) -> tuple[int, int]:
    """Return the numbers of calls in a row and of iterations that fit, by rank 0's clock; collective."""
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
    return int(agreed[0]), int(agreed[1])


def _summary(
    case: BenchmarkCase, name: str, wrong: int | None, ends: torch.Tensor, calls: int, positions: tuple[int, ...]
) -> CollectiveTimes:
    """Return the times of one implementation. ends: (ranks, iterations, start or end)."""
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
        positions=positions,
        rank_medians_s=tuple(statistics.median(rank) for rank in times.tolist()),
    )


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
        chunks = self._chunks_from_own(tensor)
        for step in range(self._num_ranks - 1):
            arriving = self._arriving[: len(chunks[-step - 1])]
            self._exchange(chunks[-step], arriving)
            chunks[-step - 1].add_(arriving)
        for step in range(self._num_ranks - 1):
            self._exchange(chunks[1 - step], chunks[-step])

    def reduce_scatter(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        chunks = self._chunks_from_own(tensor)
        total, arriving = self._sum.copy_(chunks[-1]), self._arriving
        for step in range(self._num_ranks - 1):
            self._exchange(total, arriving)
            total, arriving = arriving.add_(chunks[-step - 2]), total
        output.copy_(total)

    def all_gather(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        chunks = self._chunks_from_own(output)
        chunks[0].copy_(tensor)
        for step in range(self._num_ranks - 1):
            self._exchange(chunks[-step], chunks[-step - 1])

    def _chunks_from_own(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        chunks = tensor.tensor_split(self._num_ranks)
        return [*chunks[self._rank :], *chunks[: self._rank]]

    def _exchange(self, sent: torch.Tensor, arriving: torch.Tensor) -> None:
        sending = self._group.send([sent], (self._rank + 1) % self._num_ranks, 0)
        self._group.recv([arriving], (self._rank - 1) % self._num_ranks, 0).wait()
        sending.wait()
