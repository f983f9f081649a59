"""`probe`: what sending and reducing cost here, measured with all ranks at work as they are in a ring.

And where that is: on which machines, with which versions.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from collectives.probes.timing import Blocks, ProbeWorkload, time_blocks
from collectives.probes.workloads import (
    additions,
    bidirectional,
    clones,
    ping_pongs,
    rested_shifts,
    shared_memory_probes,
    shared_memory_sizes,
    shifts,
)
from collectives.runtime import (
    Executor,
    Tag,
    TextAllGather,
    execute,
    have_gloo_threads_batch_policy,
    machine_name,
    namespace_name,
    naming_failures,
)
from ringsim import measurements
from ringsim.measurements import Measurements, Probe, RankHosts
from ringsim.registry import build
from ringsim.schedule import Collective

SIZES = (64, 4 * 2**10, 32 * 2**10, 128 * 2**10, 512 * 2**10, 2 * 2**20, 8 * 2**20)  # multiples of a float32
BLOCKS = Blocks()
_WRITTEN = 60  # as each byte of a float32, a bfloat16 and a float16 about 0.01, 0.01 and 1
REDUCED = (torch.bfloat16, torch.float16)  # beside float32

CallProbes = Callable[[dist.ProcessGroup], AbstractContextManager[list[ProbeWorkload]]]


def probe(
    group: dist.ProcessGroup,
    tensor_bytes: int,
    memory_bytes: int,
    *,
    blocks: Blocks = BLOCKS,
    sizes: Sequence[int] = SIZES,
    calls: CallProbes | None = None,
    on_progress: Callable[[int, int], object] = lambda *_: None,
) -> Measurements:
    """Probe `group`: latency, bandwidth and overhead between neighbours, and the rate of additions.

    Collective: every rank must call it, and every rank gets the same measurements. Takes a few seconds.
    With more ranks than cores the ranks slow each other down; so they will in a collective, which is why all
    of them work at once here. Messages go the way they go in a collective, through an `Executor`: over
    torch.distributed, and, where all ranks of the group share memory, once more through that.

    tensor_bytes: of the largest tensor whose collectives are to be predicted; messages go up to half of it.
    blocks: how often everything is probed; the fewer, the more a busy moment of the machine matters.
    sizes: of messages, as far as the tensor goes.
    memory_bytes: what a rank touches between two collectives. The probes walk through as much, a message at a
    time, because what is still in the caches moves and adds several times faster.
    calls: makes the probes of what calls cost: `probe_calls`, which cannot be had without `CollectiveCall`. With them
    pairs of ranks are probed by themselves, too, and additions in other dtypes than float32; and before each block the
    ranks meet at a barrier. Without them a collective of `group` may ask for the probes: another one of the same group
    would wait for its end, so that the ranks meet by our own messages.
    on_progress: is told, between two probes, how many of how many have been done.
    """
    sizes = _sizes(sizes, tensor_bytes)
    # Written to, because all pages that never were are one and the same, which is always in the caches.
    memory = torch.full((max(memory_bytes, tensor_bytes, sizes[-1]),), _WRITTEN, dtype=torch.uint8)
    with naming_failures(f"rank {group.rank()}: probing its neighbours failed"):
        places = places_of(group)
        workloads = _workloads(group, memory, sizes, places if calls else None)
        if places.num_hosts > 1:
            workloads += rested_shifts(group, memory, sizes)
        with calls(group) if calls else nullcontext([]) as call_workloads:
            workloads += call_workloads
            times = _times(workloads, group, blocks, partial(dist.barrier, group) if calls else None, on_progress)
        flat = torch.cat([torch.empty(0, 2, dtype=torch.float64), *times])  # one rank may have nothing to probe
        execute(build(Collective.ALL_REDUCE, "ring", group.size()), flat, group=group)
    split = zip(workloads, flat.split([len(of_workload) for of_workload in times]), strict=True)
    means_s = [(workload, sums_s / len(workload.ranks)) for workload, sums_s in split]  # all go at the same pace
    results = [
        Probe(str(workload.kind._replace(clock=clock)), workload.size_bytes, workload.in_flight, tuple(column.tolist()))
        for place, clock in enumerate(("", "cpu"))
        for workload, column in ((workload, times_s[:, place]) for workload, times_s in means_s)
    ]
    origin = {**provenance(), **places.as_dict(), **shared_memory_sizes(group, memory)}
    return Measurements(group.size(), origin, tuple(results))


def _workloads(
    group: dist.ProcessGroup, memory: torch.Tensor, sizes: Sequence[int], places: RankHosts | None
) -> list[ProbeWorkload]:
    """Return what is probed, but for calls; places: given if pairs of ranks are probed by themselves as well."""
    num_ranks = group.size()
    workloads = [*shifts(group, memory, sizes), *additions(group, memory, sizes, torch.float32)]
    workloads += shared_memory_probes(group, memory, sizes, thoroughly=places is not None)
    if places is not None:
        workloads += [*ping_pongs(group, memory, sizes, places), *bidirectional(group, memory, sizes)]
        workloads += clones(num_ranks, memory)
        for dtype in REDUCED:
            workloads += additions(group, memory, sizes, dtype)
    return workloads


def _times(
    workloads: Sequence[ProbeWorkload],
    group: dist.ProcessGroup,
    blocks: Blocks,
    meet: Callable[[], object] | None,
    on_progress: Callable[[int, int], object],
) -> list[torch.Tensor]:
    """Return the times of this rank: of each probe those of all turns, (block or call, elapsed or of a core)."""
    meeting = Executor(build(Collective.ALL_REDUCE, "recursive_doubling", group.size()), group, shares_memory=False)
    meet = meet or partial(meeting.run, torch.zeros(1))
    times: list[list[tuple[float, float]]] = [[] for _ in workloads]
    # All probes one after the other, in turns: a slow moment of the machine then spoils no probe whole.
    for turn in range(blocks.turns):
        for place, workload in enumerate(workloads):
            on_progress(turn * len(workloads) + place, blocks.turns * len(workloads))
            times[place] += time_blocks(workload, blocks, meeting, meet)
    return [torch.tensor(of_workload, dtype=torch.float64) for of_workload in times]


def _sizes(sizes: Sequence[int], tensor_bytes: int) -> list[int]:
    """Return the sizes up to half the tensor, and that half; at least two."""
    half = tensor_bytes // 2 // sizes[0] * sizes[0]
    return [size for size in sizes if size < half or size <= sizes[1]] + [half] * (half > sizes[1])


def places_of(group: dist.ProcessGroup) -> RankHosts:
    """Where the ranks of `group` are; collective."""
    names = TextAllGather(group, Tag.HOSTS).gather(f"{machine_name()} {namespace_name()}")
    return RankHosts(_numbered([name.split(" ")[0] for name in names]), _numbered(names))


def _numbered(names: list[str]) -> tuple[int, ...]:
    """Equal names as equal numbers, counted as they first come."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return tuple(numbers[name] for name in names)


def provenance() -> dict[str, Any]:
    """Return what a reader must know to judge a figure, for JSON."""
    origin = measurements.provenance()
    return {
        **origin,
        "command": _torchrun() + origin["command"],
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "calm_polling": have_gloo_threads_batch_policy(),
    }


def _torchrun() -> str:
    """Return what stands in front of the command where torchrun has started it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ""
    hosts, ranks = os.environ.get("GROUP_WORLD_SIZE", "1"), os.environ.get("LOCAL_WORLD_SIZE", "1")
    return "torchrun " + (f"--nnodes {hosts} " if hosts != "1" else "") + f"--nproc-per-node {ranks} "
