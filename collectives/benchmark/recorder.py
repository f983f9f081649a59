"""`record`: single runs of our algorithms, transfer by transfer, for comparison with their predictions."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from collectives.benchmark.case import OPS, BenchmarkCase, pattern
from collectives.benchmark.plan import BenchmarkPlan
from collectives.calls import AUTO, chooser_of, reduction_of
from collectives.probes import Clock, places_of, read_clock
from collectives.runtime import Event, Executor, Tag, naming_failures
from ringsim.measurements import TRANSFER, RankHosts, RecordedRun
from ringsim.registry import build
from ringsim.schedule import Collective
from ringsim.units import format_size

NUM_RUNS = 9  # odd, so that one of them is the middle one


@dataclass(frozen=True, slots=True)
class RankLog:
    """One rank's record of one run, on its own clock."""

    begin_s: float
    end_s: float
    events: Sequence[Event]

    def on(self, clock: Clock, rank: int, zero_s: float) -> "RankLog":
        """Return the same on rank 0's clock, from `zero_s` on."""
        shift = clock.ahead_s[rank] + zero_s
        events = [event._replace(time_s=event.time_s - shift) for event in self.events]
        return RankLog(self.begin_s - shift, self.end_s - shift, events)


def record_runs(
    plan: BenchmarkPlan, group: dist.ProcessGroup, say: Callable[[str], object] = lambda _: None
) -> tuple[RecordedRun, ...]:
    """One run for each collective and algorithm of `plan`; collective, and every rank gets the same.

    say: is told, on rank 0, of each that has another size than was asked for.

    Raises CollectiveError when a peer fails.
    """
    places = places_of(group)
    recorded: dict[tuple[Collective, str], RecordedRun] = {}
    for case in plan.recorded(group.size()):
        for algorithm in plan.algorithms_for(case.collective):
            if algorithm == AUTO:
                algorithm = chooser_of(group).choose(case.collective, case.size_bytes, group)  # noqa: PLW2901
            if (case.collective, algorithm) not in recorded:
                with naming_failures(f"rank {group.rank()}: recording {case}, {algorithm} failed"):
                    recorded[case.collective, algorithm] = record(case, algorithm, group, places, plan)
                    size = recorded[case.collective, algorithm].size_bytes
                    if size != case.size_bytes and group.rank() == 0:
                        say(
                            f"recorded {case.collective.value} {algorithm} of {format_size(size)}: "
                            f"{format_size(case.size_bytes)} go through shared memory in several portions"
                        )
    return tuple(recorded.values())


def record(
    case: BenchmarkCase, algorithm: str, group: dist.ProcessGroup, places: RankHosts, plan: BenchmarkPlan
) -> RecordedRun:
    """Return the middle one of several runs in place, each after a barrier, of the executor alone without a queue.

    The chunks travel as in the calls that are timed. Of a run in several portions there is no timeline, so that a
    smaller tensor is recorded where `case` would need them.
    """
    case, executor, transport = next(_in_one_portion(plan.not_larger(case), algorithm, group))
    given = pattern(case, plan.seed).given(group.rank())
    tensor, source = _tensors(case, given, group.rank())
    combine = reduction_of(OPS[case.op], case.torch_dtype)[0].combine if case.collective.reduces else torch.Tensor.add_
    logs = []
    before = read_clock(group, places.physical_hosts)
    for _ in range(plan.warm_up + NUM_RUNS):
        if source is None:
            _own_part(tensor, case, group.rank()).copy_(given)
        events: list[Event] = []
        dist.barrier(group=group)
        begin = time.perf_counter()
        executor.run(tensor, reduce=combine, source=source, log=events)
        logs.append(RankLog(begin, time.perf_counter(), events))
    clock = Clock.between(before, read_clock(group, places.physical_hosts))
    return replace(_recorded(case, algorithm, logs[plan.warm_up :], clock, group), transport=transport)


def _in_one_portion(
    cases: Iterable[BenchmarkCase], algorithm: str, group: dist.ProcessGroup
) -> Iterator[tuple[BenchmarkCase, Executor, str]]:
    """Yield those of `cases` that travel in one portion, what executes them, and the transport; alike on all ranks."""
    for case in cases:
        schedule = build(case.collective, algorithm, case.num_ranks, case.size_bytes)
        executor = Executor(schedule, group, tag=Tag.RECORDED_RUN)
        num_elements = case.num_elements * case.collective.num_tensors(case.num_ranks)
        transport, num_portions = executor.way(num_elements, case.torch_dtype.itemsize)
        if num_portions == 1:
            yield case, executor, transport


def _tensors(case: BenchmarkCase, given: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the tensor of a run, and where what the rank gives lies if not in there, which is `given`."""
    if case.collective.is_whole:
        return torch.zeros(case.num_elements, dtype=case.torch_dtype), None
    if case.collective is Collective.GATHER:
        return torch.zeros(case.num_elements if rank == 0 else 0, dtype=case.torch_dtype), given
    if case.collective is Collective.SCATTER:
        return torch.zeros(case.share, dtype=case.torch_dtype), given if rank == 0 else given[:0]
    return torch.zeros(case.num_elements, dtype=case.torch_dtype), given


def _own_part(tensor: torch.Tensor, case: BenchmarkCase, rank: int) -> torch.Tensor:
    """Where what a rank gives lies in the whole tensor."""
    if case.collective is Collective.ALL_GATHER:
        return tensor[rank * case.share : (rank + 1) * case.share]
    return tensor


def _recorded(
    case: BenchmarkCase, algorithm: str, logs: Sequence[RankLog], clock: Clock, group: dist.ProcessGroup
) -> RecordedRun:
    own = torch.tensor([(log.begin_s, log.end_s) for log in logs], dtype=torch.float64)
    ahead = torch.tensor(clock.ahead_s, dtype=torch.float64)
    begin, end = (gather(own, group) - ahead[:, None, None]).unbind(-1)  # (ranks, runs)
    last_begin = begin.amax(dim=0)
    runs_s = end.amax(dim=0) - last_begin
    middle = int(runs_s.argsort()[len(logs) // 2])
    rank_logs: list[RankLog] = [logs[middle]] * case.num_ranks
    dist.all_gather_object(rank_logs, logs[middle], group=group)
    rank_logs = [log.on(clock, rank, float(last_begin[middle])) for rank, log in enumerate(rank_logs)]
    return RecordedRun(
        case.collective, algorithm, case.size_bytes, case.torch_dtype.itemsize, case.num_ranks,
        clock_error_s=clock.pair_error_s,
        runs_s=tuple(runs_s.tolist()),
        begin_s=tuple(log.begin_s for log in rank_logs),
        end_s=tuple(log.end_s for log in rank_logs),
        **_transfers([log.events for log in rank_logs]),
    )  # fmt: skip


def gather(own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the tensors of all ranks, (ranks, ...). own: of one shape on all of them; collective."""
    gathered = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(gathered, own, group=group)
    return torch.stack(gathered)


def _transfers(events: Sequence[Sequence[Event]]) -> dict[str, Any]:
    """Return what each rank did, by rank, as the columns of a record: every sending with its application."""
    sent, applied = {}, {}
    for rank, event in chain.from_iterable(((rank, event) for event in own) for rank, own in enumerate(events)):
        if event.kind == "sent":
            sent[event.step, rank, event.peer, event.chunk] = event.time_s
        else:
            applied[event.step, event.peer, rank, event.chunk] = event.time_s
    assert sent.keys() == applied.keys()
    rows = [(*name, sent[name], applied[name]) for name in sorted(sent)]
    return dict(zip(TRANSFER, zip(*rows, strict=True), strict=True))
