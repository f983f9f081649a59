"""`run_plan`: a whole benchmark on one process group."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch.distributed as dist

from collectives.benchmark.cell import Cell
from collectives.benchmark.contender import Contender, ours, torchs
from collectives.benchmark.plan import Plan
from collectives.benchmark.raw_sockets import raw_sockets
from collectives.benchmark.runner import measure
from collectives.provenance import provenance
from ringsim.collective import Collective
from ringsim.collective_times import CollectiveTimes
from ringsim.measurements import Measurements


def run_plan(
    plan: Plan, group: dist.ProcessGroup, timeout_s: float, progress: Callable[[], None] = lambda: None
) -> Measurements:
    """Time all cells of `plan`, on every rank of `group`; collective, and every rank gets the same but for provenance.

    progress: called after each cell. Raises ValueError for what the plan asks and cannot be had, CollectiveError when
    a peer fails or is later than `timeout_s`.
    """
    found: list[CollectiveTimes] = []
    sockets: AbstractContextManager[Contender | None] = (
        raw_sockets(group, timeout_s) if plan.raw_sockets else nullcontext()
    )
    with sockets as raw:
        for cell in plan.cells(group.size()):
            found += measure(cell, _contenders(cell, plan, group, raw), plan, group)
            progress()
    return Measurements(group.size(), provenance(), collectives=tuple(found))


def _contenders(cell: Cell, plan: Plan, group: dist.ProcessGroup, raw: Contender | None) -> list[Contender]:
    """Who is timed in `cell`, in the order of the table's rows."""
    mine = [ours(cell, algorithm, group) for algorithm in plan.algorithms_for(cell.collective)]
    sockets = [raw] if raw and cell.collective is Collective.ALL_REDUCE else []
    return [torchs(cell, group), *mine, *sockets]
