"""`run_plan`: a whole benchmark on one process group."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import torch.distributed as dist

from collectives.benchmark.call_overhead import probe_calls
from collectives.benchmark.cell import Cell
from collectives.benchmark.contender import Contender, ours, torchs
from collectives.benchmark.plan import Plan
from collectives.benchmark.raw_sockets import raw_sockets
from collectives.benchmark.recorder import record_runs
from collectives.benchmark.runner import measure
from collectives.probes import Blocks, places_of, probe, provenance
from ringsim.measurements import CollectiveTimes, Measurements
from ringsim.schedule import Collective

PROBED_BYTES = 32 * 2**20  # a message is at most half of it; larger ones cost time and tell nothing new
BLOCKS = Blocks(turns=3, number=6)  # on a slow link with long messages even these take a minute


def run_plan(
    plan: Plan, group: dist.ProcessGroup, timeout_s: float, progress: Callable[[], None] = lambda: None
) -> Measurements:
    """Time all cells of `plan` and record its runs, on every rank of `group`.

    Collective, and every rank gets the same but for provenance.

    progress: called after each cell. Raises ValueError for what the plan asks and cannot be had, CollectiveError when
    a peer fails or is later than `timeout_s`.
    """
    probed = _probed(plan, group)
    found: list[CollectiveTimes] = []
    sockets: AbstractContextManager[Contender | None] = (
        raw_sockets(group, timeout_s) if plan.raw_sockets else nullcontext()
    )
    with sockets as raw:
        for cell in plan.cells(group.size()):
            found += measure(cell, _contenders(cell, plan, group, raw), plan, group)
            progress()
    return replace(probed, collectives=tuple(found), runs=record_runs(plan, group) if plan.record else ())


def _probed(plan: Plan, group: dist.ProcessGroup) -> Measurements:
    """The probes, if the plan asks for them, for tensors up to the largest it has; and where this is."""
    if not plan.probes:
        return Measurements(group.size(), provenance() | places_of(group).as_dict())
    largest = max(plan.sizes_bytes)
    meet = partial(dist.barrier, group)  # before each block, as `measure` does before each turn
    return probe(group, min(largest, PROBED_BYTES), largest, blocks=BLOCKS, pairs=True, calls=probe_calls, meet=meet)


def _contenders(cell: Cell, plan: Plan, group: dist.ProcessGroup, raw: Contender | None) -> list[Contender]:
    """Who is timed in `cell`, in the order of the table's rows."""
    mine = [ours(cell, algorithm, group) for algorithm in plan.algorithms_for(cell.collective)]
    sockets = [raw] if raw and cell.collective is Collective.ALL_REDUCE else []
    return [torchs(cell, group), *mine, *sockets]
