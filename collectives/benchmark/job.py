"""`run_plan`: a whole benchmark on one process group."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import torch.distributed as dist

from collectives.benchmark.call_overhead import probe_calls
from collectives.benchmark.case import BenchmarkCase
from collectives.benchmark.implementation import Implementation, Timed, native, ours
from collectives.benchmark.mpirun import openmpi_provenance
from collectives.benchmark.openmpi import OpenMpi, openmpi
from collectives.benchmark.plain_ring import plain_ring
from collectives.benchmark.plan import BenchmarkPlan
from collectives.benchmark.raw_sockets import raw_sockets
from collectives.benchmark.recorder import record_runs
from collectives.benchmark.runner import measure
from collectives.probes import Blocks, places_of, probe, provenance
from collectives.runtime import transport_in_use
from ringsim.console import Progress
from ringsim.measurements import CollectiveTimes, Measurements
from ringsim.schedule import Collective

PROBED_BYTES = 32 * 2**20  # a message is at most half of it; larger ones cost time and tell nothing new
# Before the cases and once more after them, as a machine may become slower meanwhile. On a slow link with long messages
# even these take a minute.
BLOCKS = Blocks(turns=2, number=4)


def run_plan(
    plan: BenchmarkPlan, group: dist.ProcessGroup, timeout_s: float, progress: Progress | None = None
) -> Measurements:
    """Time all cases of `plan` and record its runs, on every rank of `group`.

    Collective, and every rank gets the same but for provenance.

    progress: shows which phase this is in, and how far.

    Raises ValueError for what the plan asks and cannot be had, CollectiveError when a peer fails or is later than
    `timeout_s`.
    """
    progress = progress or Progress(rank=1)
    probed = _probed(plan, group, progress)
    cases = plan.cases(group.size())
    collectives: list[CollectiveTimes] = []
    sockets_context: AbstractContextManager[Implementation | None] = (
        raw_sockets(group, timeout_s) if plan.raw_sockets else nullcontext()
    )
    mpi_context: AbstractContextManager[OpenMpi | None] = openmpi(group, timeout_s) if plan.openmpi else nullcontext()
    with sockets_context as raw, mpi_context as mpi:
        progress.begin("timing", len(cases))
        for case in cases:
            collectives += measure(case, _implementations(case, plan, group, raw, mpi), plan, group)
            progress.update(1, str(case))
    if plan.probes:
        probed = _with_times_of(probed, _probed(plan, group, progress))
    if plan.record:
        progress.begin("recording")
    return replace(
        probed, collectives=tuple(collectives), runs=record_runs(plan, group, progress.say) if plan.record else ()
    )


def _probed(plan: BenchmarkPlan, group: dist.ProcessGroup, progress: Progress) -> Measurements:
    """The probes, if the plan asks for them, for tensors up to the largest it has; and where this is."""
    origin = {"transport": transport_in_use(group)} | (openmpi_provenance() if plan.openmpi else {})
    if not plan.probes:
        return Measurements(group.size(), provenance() | origin | places_of(group).as_dict())
    largest = max(plan.sizes_bytes)
    meet = partial(dist.barrier, group)  # before each block, as `measure` does before each turn
    probed = probe(
        group,
        min(largest, PROBED_BYTES),
        largest,
        blocks=BLOCKS,
        pairs=True,
        calls=probe_calls,
        meet=meet,
        on_progress=partial(progress.advance_to, phase="probing"),
    )
    return replace(probed, provenance=probed.provenance | origin)


def _with_times_of(first: Measurements, second: Measurements) -> Measurements:
    """`first`, whose probes also have the times that the same ones had later."""
    pairs = zip(first.probes, second.probes, strict=True)
    return replace(first, probes=tuple(replace(one, times_s=one.times_s + other.times_s) for one, other in pairs))


def _implementations(
    case: BenchmarkCase, plan: BenchmarkPlan, group: dist.ProcessGroup, raw: Implementation | None, mpi: OpenMpi | None
) -> list[Timed]:
    """Who is timed in `case`, in the order of the table's rows."""
    rivals: list[Timed | None] = [
        plain_ring(case, group) if plan.plain_ring else None,
        raw if case.collective is Collective.ALL_REDUCE else None,
        mpi.implementation(case, plan.seed) if mpi else None,
    ]
    algorithms = [ours(case, algorithm, group) for algorithm in plan.algorithms_for(case.collective)]
    return [native(case, group), *algorithms, *(rival for rival in rivals if rival is not None)]
