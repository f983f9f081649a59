"""`record`: single runs of our algorithms, transfer by transfer, to be laid beside their predictions."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from collectives.benchmark.cell import OPS, Cell
from collectives.benchmark.pattern import pattern
from collectives.benchmark.plan import Plan
from collectives.calls import AUTO, chooser_of, reduction_of
from collectives.probes import Clock, places_of, read_clock
from collectives.runtime import Event, Executor, Tag, naming_failures
from ringsim.measurements import TRANSFER, Places, RecordedRun
from ringsim.native import executed_schedule
from ringsim.schedule import Collective

NUM_RUNS = 9  # odd, so that one of them is the middle one


@dataclass(frozen=True, slots=True)
class RankLog:
    """What one rank noted of one run, on its own clock."""

    begin_s: float
    end_s: float
    events: Sequence[Event]

    def on(self, clock: Clock, rank: int, zero_s: float) -> "RankLog":
        """The same on rank 0's clock, from `zero_s` on."""
        shift = clock.ahead_s[rank] + zero_s
        events = [event._replace(time_s=event.time_s - shift) for event in self.events]
        return RankLog(self.begin_s - shift, self.end_s - shift, events)


def record_runs(plan: Plan, group: dist.ProcessGroup) -> tuple[RecordedRun, ...]:
    """One run for each collective and algorithm of `plan`; collective, and every rank gets the same.

    Raises CollectiveError when a peer fails.
    """
    places = places_of(group)
    found: dict[tuple[Collective, str], RecordedRun] = {}
    for cell in plan.recorded(group.size()):
        for algorithm in plan.algorithms_for(cell.collective):
            if algorithm == AUTO:
                algorithm = chooser_of(group).choose(cell.collective, cell.size_bytes, group)  # noqa: PLW2901
            if (cell.collective, algorithm) not in found:
                with naming_failures(f"rank {group.rank()}: recording {cell}, {algorithm} failed"):
                    found[cell.collective, algorithm] = record(cell, algorithm, group, places, plan)
    return tuple(found.values())


def record(cell: Cell, algorithm: str, group: dist.ProcessGroup, places: Places, plan: Plan) -> RecordedRun:
    """The middle one of several runs in place, each after a barrier; the executor's alone, without a lane's thread."""
    schedule, cut = executed_schedule(cell.collective, algorithm, cell.num_ranks, cell.size_bytes)
    executor = Executor(schedule, group, tag=Tag.RECORDED_RUN, cut=cut)
    given = pattern(cell, plan.seed).given(group.rank())
    tensor = torch.zeros(cell.num_elements, dtype=cell.torch_dtype)
    how = reduction_of(OPS[cell.op], cell.torch_dtype).combine if cell.collective.reduces else torch.Tensor.add_
    logs = []
    before = read_clock(group, places.machines)
    for _ in range(plan.warm_up + NUM_RUNS):
        _own_part(tensor, cell, group.rank()).copy_(given)
        events: list[Event] = []
        dist.barrier(group=group)
        begin = time.perf_counter()
        executor.run(tensor, reduce=how, log=events)
        logs.append(RankLog(begin, time.perf_counter(), events))
    clock = Clock.between(before, read_clock(group, places.machines))
    return _recorded(cell, algorithm, logs[plan.warm_up :], clock, group)


def _own_part(tensor: torch.Tensor, cell: Cell, rank: int) -> torch.Tensor:
    """Where what a rank gives lies in the whole tensor."""
    if cell.collective is Collective.ALL_GATHER:
        return tensor[rank * cell.share : (rank + 1) * cell.share]
    return tensor


def _recorded(
    cell: Cell, algorithm: str, logs: Sequence[RankLog], clock: Clock, group: dist.ProcessGroup
) -> RecordedRun:
    own = torch.tensor([(log.begin_s, log.end_s) for log in logs], dtype=torch.float64)
    gathered = [torch.empty_like(own) for _ in range(cell.num_ranks)]
    dist.all_gather(gathered, own, group=group)
    begin, end = (torch.stack(gathered) - torch.tensor(clock.ahead_s, dtype=torch.float64)[:, None, None]).unbind(
        -1
    )  # (ranks, runs)
    last_begin = begin.amax(dim=0)
    runs_s = end.amax(dim=0) - last_begin
    middle = int(runs_s.argsort()[len(logs) // 2])
    of_ranks: list[RankLog] = [logs[middle]] * cell.num_ranks
    dist.all_gather_object(of_ranks, logs[middle], group=group)
    of_ranks = [log.on(clock, rank, float(last_begin[middle])) for rank, log in enumerate(of_ranks)]
    return RecordedRun(
        cell.collective, algorithm, cell.size_bytes, cell.torch_dtype.itemsize, cell.num_ranks,
        clock_error_s=clock.pair_error_s,
        runs_s=tuple(runs_s.tolist()),
        begin_s=tuple(log.begin_s for log in of_ranks),
        end_s=tuple(log.end_s for log in of_ranks),
        **_transfers([log.events for log in of_ranks]),
    )  # fmt: skip


def _transfers(events: Sequence[Sequence[Event]]) -> dict[str, Any]:
    """What each rank did, by rank, as the columns of a record: every sending with its application."""
    sent, applied = {}, {}
    for rank, event in chain.from_iterable(((rank, each) for each in some) for rank, some in enumerate(events)):
        if event.kind == "sent":
            sent[event.step, rank, event.peer, event.chunk] = event.time_s
        else:
            applied[event.step, event.peer, rank, event.chunk] = event.time_s
    assert sent.keys() == applied.keys()
    rows = [(*name, sent[name], applied[name]) for name in sorted(sent)]
    return dict(zip(TRANSFER, zip(*rows, strict=True), strict=True))
