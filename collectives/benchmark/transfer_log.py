"""`record_runs`: single runs of our algorithms, transfer by transfer, for comparison with their predictions."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from collectives.benchmark.case import BenchmarkCase, BenchmarkPlan, Buffers, pattern
from collectives.calls import AUTO, chooser_of
from collectives.runtime import Event, Executor, Tag, naming_failures
from ringsim.measurements import TRANSFER, RecordedRun
from ringsim.registry import build
from ringsim.schedule import Collective
from ringsim.units import format_size

NUM_RUNS = 9  # odd, so that one of them is the middle one


class _Execution(NamedTuple):
    case: BenchmarkCase
    algorithm: str
    executor: Executor
    transport: str


def record_runs(
    plan: BenchmarkPlan, group: dist.ProcessGroup, say: Callable[[str], object] = lambda _: None
) -> tuple[RecordedRun, ...]:
    """Record one run of each collective and algorithm of `plan`, the same on every rank; collective.

    The size is the largest in the plan that travels in one portion, as only such a run has a timeline.

    say: gets a message on rank 0 if that is not the plan's largest size, or if there is none.
    """
    sizes = tuple(sorted(plan.sizes_bytes, reverse=True))
    recorded: dict[tuple[Collective, str], RecordedRun] = {}
    for collective in plan.collectives:
        cases = replace(plan, collectives=(collective,), sizes_bytes=sizes, in_place=(True,)).cases(group.size())
        for algorithm in plan.algorithms_for(collective):
            with naming_failures(f"rank {group.rank()}: recording {collective.value} {algorithm} failed"):
                execution = _in_one_portion(cases, algorithm, group)
                if group.rank() == 0 and (execution is None or execution.case != cases[0]):
                    size = f"of {format_size(execution.case.size_bytes)}" if execution else "in none of the sizes"
                    larger = format_size(cases[0 if execution else -1].size_bytes)
                    portions = f"{larger} go through shared memory in several portions"
                    say(f"recorded {collective.value} {algorithm} {size}: {portions}")
                if execution and (collective, execution.algorithm) not in recorded:
                    recorded[collective, execution.algorithm] = _record(execution, plan.warm_up)
    return tuple(recorded.values())


def _in_one_portion(cases: Sequence[BenchmarkCase], algorithm: str, group: dist.ProcessGroup) -> _Execution | None:
    for case in cases:
        name = chooser_of(group).choose(case.collective, case.size_bytes, group) if algorithm == AUTO else algorithm
        schedule = build(case.collective, name, case.num_ranks, case.size_bytes)
        executor = Executor(schedule, group, tag=Tag.RECORDED_RUN)
        num_elements = case.num_elements * case.collective.num_tensors(case.num_ranks)
        transport, num_portions = executor.way(num_elements, case.torch_dtype.itemsize)
        if num_portions == 1:
            return _Execution(case, name, executor, transport)
    return None


def _record(execution: _Execution, warm_up: int) -> RecordedRun:
    """Return the median of several runs in place, each after a barrier, outside the queue."""
    case, _, executor, _ = execution
    group, rank = executor.group, executor.group.rank()
    buffers = Buffers.of(pattern(case), rank)
    tensor, source = max(buffers.input, buffers.output, key=len), None
    if not case.collective.is_whole:
        tensor, source = buffers.output, buffers.data
        if case.collective is Collective.GATHER and rank != 0:
            tensor = tensor[:0]
        if case.collective is Collective.SCATTER and rank != 0:
            source = source[:0]
    spans, logs = [], []
    for _ in range(warm_up + NUM_RUNS):
        buffers.refill()
        log: list[Event] = []
        dist.barrier(group=group)
        begin_s = time.perf_counter()
        executor.run(tensor, source=source, log=log)
        spans.append((begin_s, time.perf_counter()))
        logs.append(log)
    return _middle_run(execution, spans[warm_up:], logs[warm_up:])


def _middle_run(
    execution: _Execution, spans: Sequence[tuple[float, float]], logs: Sequence[list[Event]]
) -> RecordedRun:
    """Return the run of the median time, with times relative to the last rank's begin; collective.

    spans, logs: of this rank's runs, on the common clock.
    """
    case, group = execution.case, execution.executor.group
    begin, end = gather(torch.tensor(spans, dtype=torch.float64), group).unbind(-1)  # (ranks, runs)
    last_begin = begin.amax(dim=0)
    runs_s = end.amax(dim=0) - last_begin
    middle = int(runs_s.argsort()[len(logs) // 2])
    rank_logs: list[list[Event]] = [[] for _ in range(group.size())]
    dist.all_gather_object(rank_logs, logs[middle], group=group)
    return RecordedRun(
        case.collective, execution.algorithm, case.size_bytes, case.torch_dtype.itemsize, case.num_ranks,
        runs_s=tuple(runs_s.tolist()),
        begin_s=tuple((begin[:, middle] - last_begin[middle]).tolist()),
        end_s=tuple((end[:, middle] - last_begin[middle]).tolist()),
        transport=execution.transport,
        **_transfers(rank_logs, float(last_begin[middle])),
    )  # fmt: skip


def gather(own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the tensors of all ranks, (ranks, ...); collective."""
    gathered = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(gathered, own, group=group)
    return torch.stack(gathered)


def _transfers(logs: Sequence[Sequence[Event]], zero_s: float) -> dict[str, Any]:
    sent, applied = {}, {}
    for rank, log in enumerate(logs):
        for event in log:
            time_s = event.time_s - zero_s
            if event.kind == "sent":
                sent[event.step, rank, event.peer, event.chunk] = time_s
            else:
                applied[event.step, event.peer, rank, event.chunk] = time_s
    assert sent.keys() == applied.keys()
    rows = [(*name, sent[name], applied[name]) for name in sorted(sent)]
    return dict(zip(TRANSFER, zip(*rows, strict=True), strict=True))
