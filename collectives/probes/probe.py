"""`probe`: measure the costs of sending and reducing with all ranks at work, as in a ring; and their provenance."""

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from collectives import runtime
from collectives.probes.workloads import ProbedGroup, ProbeWorkload, Rounds, whole_time
from collectives.runtime import Executor, Tag, TextAllGather, execute, naming_failures
from ringsim import measurements
from ringsim.measurements import ROUNDS_PER_RUN, Measurements, Probe, RankHosts
from ringsim.registry import build
from ringsim.schedule import Collective

SIZES = (64, 4 * 2**10, 32 * 2**10, 128 * 2**10, 512 * 2**10, 2 * 2**20, 8 * 2**20)  # multiples of a float32
_WRITTEN = 60  # as each byte of a float32, a bfloat16 and a float16 about 0.01, 0.01 and 1


class Blocks(NamedTuple):
    """How a probe is timed: in `turns` turns of `number` blocks, whose rounds take at least `least_s`.

    Where threads share cores, a polling thread can delay another until the kernel's next tick, 4 ms and more. A short
    block has at most one such wait, the median of the blocks none.
    """

    turns: int = 4
    number: int = 4
    least_s: float = 20e-3


BLOCKS = Blocks()
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
    """Probe `group`: latency, bandwidth and overhead between neighbours, and the rate of additions; collective.

    Every rank gets the same measurements, in a few seconds. All ranks work at once, because they slow each other down
    in a collective where they share cores. Messages go through an `Executor`, over torch.distributed and, where all
    ranks share memory, also through that.

    tensor_bytes: of the largest tensor to be predicted; messages have up to half of it.
    memory_bytes: touched by a rank between two collectives, and walked through by the probes: data in the caches moves
    and adds several times faster.
    blocks: with few, a busy moment of the machine matters. sizes: of messages.
    calls: makes the probes of calls, `probe_calls`. With them, pairs of ranks alone and additions in other dtypes are
    also probed, and ranks meet at a barrier before each block. Without them ranks meet by our own messages: a
    collective of `group` may ask for the probes, and another one would wait for its end.
    on_progress: called between probes with the number done and of all.
    """
    sizes = _sizes(sizes, tensor_bytes)
    # Filled, because all unwritten pages are one page, which is always in the caches.
    num_bytes = -(-max(memory_bytes, tensor_bytes, sizes[-1]) // 4) * 4  # of whole numbers
    memory = torch.full((num_bytes,), _WRITTEN, dtype=torch.uint8)
    with naming_failures(f"rank {group.rank()}: probing its neighbours failed"):
        places = places_of(group)
        probed = ProbedGroup(group, memory, sizes)
        workloads = list(probed.workloads(places, thoroughly=calls is not None))
        with calls(group) if calls else nullcontext([]) as call_workloads:
            workloads += call_workloads
            times = _times(workloads, group, blocks, partial(dist.barrier, group) if calls else None, on_progress)
        flat = torch.cat([torch.empty(0, 2, dtype=torch.float64), *times])  # one rank may have nothing to probe
        execute(build(Collective.ALL_REDUCE, "ring", group.size()), flat, group=group)
    split = zip(workloads, flat.split([len(of_workload) for of_workload in times]), strict=True)
    means_s = [(workload, sums_s / len(workload.ranks)) for workload, sums_s in split]  # as all have the same pace
    results = [
        Probe(str(workload.kind._replace(clock=clock)), workload.size_bytes, workload.in_flight, tuple(column.tolist()))
        for place, clock in enumerate(("", "cpu"))
        for workload, column in ((workload, times_s[:, place]) for workload, times_s in means_s)
    ]
    origin = {**provenance(), **places.as_dict(), **probed.provenance()}
    return Measurements(group.size(), origin, tuple(results))


def _times(
    workloads: Sequence[ProbeWorkload],
    group: dist.ProcessGroup,
    blocks: Blocks,
    meet: Callable[[], object] | None,
    on_progress: Callable[[int, int], object],
) -> list[torch.Tensor]:
    """Return this rank's times for each probe: (block or call, elapsed or of a core)."""
    meeting = Executor(build(Collective.ALL_REDUCE, "recursive_doubling", group.size()), group, shares_memory=False)
    meet = meet or partial(meeting.run, torch.zeros(1))
    times: list[list[tuple[float, float]]] = [[] for _ in workloads]
    # Probes take turns, so that a slow moment of the machine does not spoil all times of one.
    for turn in range(blocks.turns):
        for place, workload in enumerate(workloads):
            on_progress(turn * len(workloads) + place, blocks.turns * len(workloads))
            times[place] += time_blocks(workload, blocks, meeting, meet)
    return [torch.tensor(of_workload, dtype=torch.float64) for of_workload in times]


def time_blocks(
    workload: ProbeWorkload, blocks: Blocks, meeting: Executor, meet: Callable[[], object]
) -> list[tuple[float, float]]:
    """Return the seconds per round of each block or call, elapsed and of a core; 0 on ranks without a part; collective.

    meeting: an all_reduce, by which the ranks agree on the rounds of a block.
    meet: synchronises them before each block, since threads should not keep their cores for all rounds.
    """
    if workload.before is not None:
        return [time for _ in range(blocks.number) for time in _time_calls(workload, workload.before, meeting)]
    num_runs = _agreed_runs(workload, blocks, meeting)
    times = [(0.0, 0.0)] * blocks.number
    for block in range(blocks.number):
        meet()
        if meeting.group.rank() not in workload.ranks:
            continue
        begin, begin_cpu = workload.clock()
        for _ in range(num_runs):
            workload.rounds()
        end, end_cpu = workload.clock()
        num_rounds = num_runs * ROUNDS_PER_RUN
        times[block] = (end - begin) / num_rounds, (end_cpu - begin_cpu) / num_rounds
    return times


def _time_calls(workload: ProbeWorkload, before: Rounds, meeting: Executor) -> list[tuple[float, float]]:
    """Return the seconds of each call, elapsed and of a core, on the last rank to come, which waits for nobody."""
    times = torch.zeros(workload.calls, 2, dtype=torch.float64)
    for number in range(workload.calls):
        before()
        begin, begin_cpu = whole_time()
        workload.rounds()
        end, end_cpu = whole_time()
        times[number] = torch.tensor((end - begin, end_cpu - begin_cpu), dtype=times.dtype)
    meeting.run(times, reduce=lambda chunk, arrived: torch.minimum(chunk, arrived, out=chunk))
    return [(elapsed, of_core) for elapsed, of_core in times.tolist()]


def _agreed_runs(workload: ProbeWorkload, blocks: Blocks, meeting: Executor) -> int:
    num_runs = 1
    meeting.run(torch.zeros(1))  # so that the earlier work of others is over
    for _ in range(2):  # the first one also warms up, and gives too few
        begin = time.perf_counter()
        if meeting.group.rank() in workload.ranks:
            for _ in range(num_runs):
                workload.rounds()
        spent_s = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        meeting.run(spent_s)
        run_s = spent_s.item() / len(workload.ranks) / num_runs
        num_runs = max(math.ceil(blocks.least_s / run_s), 1)
        if num_runs == 1:
            break
    return num_runs


def _sizes(sizes: Sequence[int], tensor_bytes: int) -> list[int]:
    half = tensor_bytes // 2 // sizes[0] * sizes[0]
    return [size for size in sizes if size < half or size <= sizes[1]] + [half] * (half > sizes[1])


def places_of(group: dist.ProcessGroup) -> RankHosts:
    """Return the hosts of the ranks; collective."""
    names = TextAllGather(group, Tag.HOSTS).gather(f"{runtime.machine_name()} {runtime.namespace_name()}")
    return RankHosts(_numbered([name.split(" ")[0] for name in names]), _numbered(names))


def _numbered(names: list[str]) -> tuple[int, ...]:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return tuple(numbers[name] for name in names)


def provenance() -> dict[str, Any]:
    """Return versions, machine, command and settings, for JSON."""
    origin = measurements.provenance()
    return {
        **origin,
        "command": _torchrun() + origin["command"],
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "calm_polling": runtime.have_gloo_threads_batch_policy(),
    }


def _torchrun() -> str:
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ""
    hosts, ranks = os.environ.get("GROUP_WORLD_SIZE", "1"), os.environ.get("LOCAL_WORLD_SIZE", "1")
    return "torchrun " + (f"--nnodes {hosts} " if hosts != "1" else "") + f"--nproc-per-node {ranks} "
