"""`probe`: what sending and reducing cost here, measured with all ranks at work as they are in a ring."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import cycle

import torch
import torch.distributed as dist

from collectives.probes.hosts import places_of
from collectives.probes.provenance import provenance
from collectives.probes.schedules import ping_pong_schedule, shift_schedule
from collectives.probes.shared_memory import shared_memory_probes, shared_memory_sizes
from collectives.probes.workload import (
    Blocks,
    ProbeWorkload,
    Rounds,
    add_one,
    spread,
    time_blocks,
)
from collectives.runtime import Executor, execute, naming_failures
from ringsim.measurements import ROUNDS_PER_RUN, Measurements, Probe, RankHosts
from ringsim.native import NEW_BEYOND_BYTES
from ringsim.registry import build
from ringsim.schedule import Collective, Schedule

SIZES = (64, 4 * 2**10, 32 * 2**10, 128 * 2**10, 512 * 2**10, 2 * 2**20, 8 * 2**20)  # multiples of a float32
IN_FLIGHT = 4
BLOCKS = Blocks()
_WRITTEN = 60  # as each byte of a float32, a bfloat16 and a float16 about 0.01, 0.01 and 1
FRESH_BYTES = NEW_BEYOND_BYTES + 8 * 2**20
REDUCED = (torch.bfloat16, torch.float16)  # beside float32


def probe(
    group: dist.ProcessGroup,
    tensor_bytes: int,
    memory_bytes: int,
    *,
    blocks: Blocks = BLOCKS,
    sizes: Sequence[int] = SIZES,
    pairs: bool = False,
    calls: Callable[[dist.ProcessGroup], AbstractContextManager[list[ProbeWorkload]]] = lambda _: nullcontext([]),
    meet: Callable[[], object] | None = None,
    on_progress: Callable[[int, int], object] = lambda *_: None,
) -> Measurements:
    """Probe `group`: latency, bandwidth and overhead between neighbours, and the rate of an addition.

    Collective: every rank must call it, and every rank gets the same measurements. Takes a few seconds.
    With more ranks than cores the ranks slow each other down; so they will in a collective, which is why all
    of them work at once here. Messages go the way they go in a collective, through an `Executor`: over
    torch.distributed, and, where all ranks of the group share memory, once more through that.

    tensor_bytes: of the largest tensor whose collectives are to be predicted; messages go up to half of it.
    blocks: how often everything is probed; the fewer, the more a busy moment of the machine matters.
    sizes: of messages, as far as the tensor goes.
    memory_bytes: what a rank touches between two collectives. The probes walk through as much, a message at a
    time, because what is still in the caches moves and adds several times faster.
    pairs: whether to probe pairs of ranks by themselves, too, and additions in other dtypes than float32.
    calls: makes the probes of what calls cost: `probe_calls`, which cannot be had without `CollectiveCall`.
    meet: lets all ranks meet before each block; by messages of our own if None, because in a collective of `group`,
    which may be what asks for the probes, another one of the same group would wait for the end of the first.
    on_progress: is told, between two probes, how many of how many have been done.
    """
    sizes = _sizes(sizes, tensor_bytes)
    # Written to, because all pages that never were are one and the same, which is always in the caches.
    memory = torch.full((max(memory_bytes, tensor_bytes, sizes[-1]),), _WRITTEN, dtype=torch.uint8)
    # All probes one after the other, in turns: a slow moment of the machine then spoils no probe whole.
    with naming_failures(f"rank {group.rank()}: probing its neighbours failed"):
        places = places_of(group)
        workloads = [*_shifts(group, memory, sizes), *_additions(group.size(), memory, sizes, torch.float32, "reduce")]
        workloads += shared_memory_probes(group, memory, sizes, thoroughly=pairs)
        if pairs:
            workloads += [*_ping_pongs(group, memory, sizes, places), *_bidirectional(group, memory, sizes)]
            workloads += _clones(group.size(), memory)
            for dtype in REDUCED:
                workloads += _additions(
                    group.size(), memory, sizes, dtype, f"reduce/{str(dtype).removeprefix('torch.')}"
                )
        with calls(group) as call_workloads:
            workloads += call_workloads
            meeting = Executor(
                build(Collective.ALL_REDUCE, "recursive_doubling", group.size()), group, shares_memory=False
            )
            meet = meet or partial(meeting.run, torch.zeros(1))
            rounds_in_turn: list[list[list[tuple[float, float]]]] = []
            for turn in range(blocks.turns):
                rounds_in_turn.append([])
                for place, workload in enumerate(workloads):
                    on_progress(turn * len(workloads) + place, blocks.turns * len(workloads))
                    rounds_in_turn[-1].append(time_blocks(workload, blocks, meeting, meet))
        times = torch.tensor(rounds_in_turn, dtype=torch.float64)  # (turn, probe, block, elapsed or of a core)
        execute(build(Collective.ALL_REDUCE, "ring", group.size()), times, group=group)
    times /= torch.tensor([len(workload.ranks) for workload in workloads])[
        :, None, None
    ]  # over a block all go at the same pace
    elapsed, of_core = times.transpose(0, 1).flatten(1, 2).unbind(-1)
    results = [
        Probe(workload.kind + suffix, workload.size_bytes, workload.in_flight, tuple(block_times))
        for suffix, times_s in (("", elapsed), ("_cpu", of_core))
        for workload, block_times in zip(workloads, times_s.tolist(), strict=True)
    ]
    return Measurements(
        group.size(), {**provenance(), **places.as_dict(), **shared_memory_sizes(group, memory)}, tuple(results)
    )


def _shifts(group: dist.ProcessGroup, memory: torch.Tensor, sizes: Sequence[int]) -> Iterator[ProbeWorkload]:
    """Every rank sends to the next in the ring; once more with several messages at a time."""
    if group.size() == 1:
        return
    for size, in_flight in [*((size, 1) for size in sizes), (sizes[0], IN_FLIGHT)]:
        groups = min(ROUNDS_PER_RUN, max(len(memory) // (in_flight * size), 1))
        ring = range(group.size())
        schedule = shift_schedule(group.size(), [ring], ROUNDS_PER_RUN, groups, in_flight)
        yield ProbeWorkload("shift", size, in_flight, ring, _messages(schedule, group, memory, size))


def _ping_pongs(
    group: dist.ProcessGroup, memory: torch.Tensor, sizes: Sequence[int], places: RankHosts
) -> Iterator[ProbeWorkload]:
    """Ping-pong: a message there and back between all neighbours of different hosts, and one pair on one host."""
    num_ranks, hosts = group.size(), places.hosts
    across = [rank for rank in range(num_ranks) if hosts[rank] != hosts[places.right_of(rank)]]
    within = [rank for rank in range(num_ranks - 1) if hosts[rank] == hosts[rank + 1]][:1]
    for rank in sorted(across + within):
        pair = rank, places.right_of(rank)
        schedule = ping_pong_schedule(num_ranks, *pair, ROUNDS_PER_RUN)
        for size in sizes:
            yield ProbeWorkload(f"ping/{rank}", size, 1, pair, _messages(schedule, group, memory, size))


def _bidirectional(group: dist.ProcessGroup, memory: torch.Tensor, sizes: Sequence[int]) -> Iterator[ProbeWorkload]:
    """Bidirectional bandwidth: one pair of neighbours, and all pairs there are, send to each other at once."""
    for num_pairs in sorted({1, group.size() // 2} - {0}) if group.size() > 1 else ():
        rings = [(2 * pair, 2 * pair + 1) for pair in range(num_pairs)]
        for size in sizes:
            groups = min(ROUNDS_PER_RUN, max(len(memory) // size, 1))
            schedule = shift_schedule(group.size(), rings, ROUNDS_PER_RUN, groups, 1)
            rounds = _messages(schedule, group, memory, size)
            yield ProbeWorkload(f"exchange/{num_pairs}", size, 1, range(2 * num_pairs), rounds)


def _messages(schedule: Schedule, group: dist.ProcessGroup, memory: torch.Tensor, size: int) -> Rounds:
    """The schedule with chunks of `size` bytes, each time somewhere else in the memory."""
    # Calls of torch.distributed are to be predicted, too. And ranks that have no part in a probe leave it out, which
    # ranks that share memory must not.
    executor = Executor(schedule, group, shares_memory=False)
    windows = cycle(spread(memory, schedule.num_chunks * size))
    return lambda: executor.run(next(windows), reduce=add_one)


def _additions(
    num_ranks: int, memory: torch.Tensor, sizes: Sequence[int], dtype: torch.dtype, kind: str
) -> Iterator[ProbeWorkload]:
    """Every rank adds."""
    held = memory[: len(memory) // 4 * 4].view(dtype)
    for size in sizes:
        length = size // dtype.itemsize
        rounds = _reduce(spread(held, length), torch.zeros(length, dtype=dtype))
        yield ProbeWorkload(kind, size, 1, range(num_ranks), rounds)


def _clones(num_ranks: int, memory: torch.Tensor) -> Iterator[ProbeWorkload]:
    """Every rank copies into memory that is new to it, if tensors are as long as those that get such memory."""
    if len(memory) >= FRESH_BYTES:
        pieces = cycle(spread(memory, FRESH_BYTES))

        def rounds() -> None:
            for _ in range(ROUNDS_PER_RUN):
                next(pieces).clone()

        yield ProbeWorkload("fresh", FRESH_BYTES, 1, range(num_ranks), rounds)


def _sizes(sizes: Sequence[int], tensor_bytes: int) -> list[int]:
    """Those of `sizes` up to half the tensor, and that; at least two."""
    half = tensor_bytes // 2 // sizes[0] * sizes[0]
    return [size for size in sizes if size < half or size <= sizes[1]] + [half] * (half > sizes[1])


def _reduce(held: Sequence[torch.Tensor], arrived: torch.Tensor) -> Rounds:
    chunks = cycle(held)

    def rounds() -> None:
        for _ in range(ROUNDS_PER_RUN):
            next(chunks).add_(arrived)  # what has just arrived is still in the caches, what it is added to is not

    return rounds
