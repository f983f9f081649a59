"""Probes of what goes through shared memory: messages, copying to it and from it, and adding from it."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import torch
import torch.distributed as dist

from collectives.probes.schedules import one_way_schedule, shift_schedule
from collectives.probes.workload import ProbeWorkload, spread
from collectives.runtime import Executor, Sharing, state_of
from ringsim.measurements import ROUNDS_PER_RUN, SLOT_BYTES, TOUCHED_BYTES
from ringsim.schedule import Collective, Schedule

_FURTHER_SIZES = (256 * 2**10,)  # between two of those of all probes: what fits the caches changes quickly there


def shared_memory_sizes(group: dist.ProcessGroup, memory: torch.Tensor) -> dict[str, Any]:
    """For the provenance, if all ranks of `group` share memory: what a rank can publish, and has touched, at a time."""
    shared = state_of(group).part(Sharing).of(group)
    if not shared.on_one_host:
        return {}
    return {SLOT_BYTES: shared.slot_bytes, TOUCHED_BYTES: len(memory)}


def shared_memory_probes(
    group: dist.ProcessGroup, memory: torch.Tensor, sizes: Sequence[int], thoroughly: bool
) -> Iterator[ProbeWorkload]:
    """None unless all ranks of `group` share memory. The first time all ranks must ask.

    thoroughly: also what a tensor takes that is still in the caches, and one more size.

    Their kinds are described at `Probe`. What a rank publishes in a run fills a slot at most.
    """
    shared = state_of(group).part(Sharing).of(group)
    if not shared.on_one_host:
        return
    num_ranks = group.size()
    schedules = {
        "shm/shift": shift_schedule(
            num_ranks, [range(num_ranks)], ROUNDS_PER_RUN, ROUNDS_PER_RUN, 1, Collective.REDUCE_SCATTER
        ),
        "shm/copy": one_way_schedule(num_ranks, ROUNDS_PER_RUN, reduce=False),
        "shm/add": one_way_schedule(num_ranks, ROUNDS_PER_RUN, reduce=True),
    }
    most_chunks = max(_num_pieces(schedule) for schedule in schedules.values())
    most = min(shared.slot_bytes // ROUNDS_PER_RUN, len(memory) // most_chunks) // 64 * 64
    wanted = (*sizes, *_FURTHER_SIZES) if thoroughly else sizes
    for kind, schedule in schedules.items():
        for size in sorted({min(size, most) for size in wanted} - {0}):
            yield _workload(kind, schedule, group, memory, size)
            if thoroughly:
                same = memory[: _num_pieces(schedule) * size]
                yield _workload(f"{kind}/cached", schedule, group, same, size)


def _num_pieces(schedule: Schedule) -> int:
    """How many pieces of memory as long as a chunk a run needs: sums are formed elsewhere than in what is given."""
    return schedule.num_chunks * (2 if schedule.collective is Collective.REDUCE_SCATTER else 1)


def _workload(
    kind: str, schedule: Schedule, group: dist.ProcessGroup, memory: torch.Tensor, size: int
) -> ProbeWorkload:
    """The schedule with chunks of `size` bytes, each time somewhere else in the memory."""
    executor = Executor(schedule, group)
    windows = cycle(spread(memory[: len(memory) // 4 * 4].view(torch.float32), _num_pieces(schedule) * size // 4))
    length = schedule.num_chunks * size // 4

    def rounds() -> None:
        window = next(windows)
        executor.run(window[:length], source=window[length:] if len(window) > length else None)

    return ProbeWorkload(kind, size, 1, range(group.size()), rounds)
