"""Probes of what goes through shared memory: messages, copying to it and from it, and adding from it."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import torch
import torch.distributed as dist

from collectives.probes.schedules import one_way_schedule, shift_schedule
from collectives.probes.workload import ROUNDS_PER_RUN, ProbeWorkload, Rounds, add_one, spread
from collectives.runtime import Executor, Sharing, state_of
from ringsim.schedule import Schedule

_FURTHER_SIZES = (256 * 2**10,)  # between two of those of all probes: what fits the caches changes quickly there


def shared_memory_sizes(group: dist.ProcessGroup, memory: torch.Tensor) -> dict[str, Any]:
    """For the provenance, if all ranks of `group` share memory: what a rank can publish, and has touched, at a time."""
    shared = state_of(group).part(Sharing).of(group)
    if not shared.on_one_host:
        return {}
    return {"shared_memory_slot_bytes": shared.slot_bytes, "shared_memory_touched_bytes": len(memory)}


def shared_memory_probes(
    group: dist.ProcessGroup, memory: torch.Tensor, sizes: Sequence[int], thoroughly: bool
) -> Iterator[ProbeWorkload]:
    """None unless all ranks of `group` share memory. The first time all ranks must ask.

    thoroughly: also what a tensor takes that is still in the caches, and one more size.

    "shm/shift": every rank passes on to the next what has just come. "shm/copy", "shm/add": every rank sends the next
    one ROUNDS_PER_RUN chunks of its own, which that copies or adds; together they fill a slot at most. With "/cached"
    after it: the same chunks each time.
    """
    shared = state_of(group).part(Sharing).of(group)
    if not shared.on_one_host:
        return
    everyone, num_ranks = range(group.size()), group.size()
    shift = shift_schedule(num_ranks, [everyone], ROUNDS_PER_RUN, ROUNDS_PER_RUN, 1)
    yield ProbeWorkload("shm/shift", sizes[0], 1, everyone, _run(shift, group, memory, sizes[0]))
    for kind, reduce in (("shm/copy", False), ("shm/add", True)):
        schedule = one_way_schedule(num_ranks, ROUNDS_PER_RUN, reduce)
        most = min(shared.slot_bytes // ROUNDS_PER_RUN, len(memory) // schedule.num_chunks) // 64 * 64
        wanted = (*sizes, *_FURTHER_SIZES) if thoroughly else sizes
        fitting = sorted({min(size, most) for size in wanted} - {0})
        for size in fitting:
            yield ProbeWorkload(kind, size, 1, everyone, _run(schedule, group, memory, size, all_of_it=reduce))
            if not thoroughly:
                continue
            same = memory[: schedule.num_chunks * size]
            cached = _run(schedule, group, same, size, all_of_it=reduce)
            yield ProbeWorkload(f"{kind}/cached", size, 1, everyone, cached)


def _run(
    schedule: Schedule, group: dist.ProcessGroup, memory: torch.Tensor, size: int, all_of_it: bool = False
) -> Rounds:
    """The schedule with chunks of `size` bytes, each time somewhere else in the memory."""
    executor = Executor(schedule, group)
    windows = cycle(spread(memory[: len(memory) // 4 * 4].view(torch.float32), schedule.num_chunks * size // 4))
    reduce = torch.Tensor.add_ if all_of_it else add_one
    return lambda: executor.run(next(windows), reduce=reduce)
