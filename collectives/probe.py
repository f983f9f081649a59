"""`probe`: what sending and reducing cost here, measured with all ranks at work as they are in a ring."""

import time
from collections.abc import Callable, Sequence
from itertools import cycle

import numpy as np
import torch
import torch.distributed as dist

from collectives.errors import naming_failures
from collectives.execute import Executor, execute
from collectives.provenance import provenance
from ringsim.algorithms import build
from ringsim.collective import Collective
from ringsim.measurements import Measurements, Probe
from ringsim.schedule import Schedule

SIZES = (64, 4 * 2**10, 32 * 2**10, 128 * 2**10, 512 * 2**10, 2 * 2**20, 8 * 2**20)  # multiples of a float32
IN_FLIGHT = 4
NUM_BLOCKS = 12
ROUNDS_PER_BLOCK = 8
TURNS = 4
MAX_PIECES = 256  # more would only cost memory: the caches have long forgotten the first by then

Rounds = Callable[[], None]


def probe(
    group: dist.ProcessGroup,
    tensor_bytes: int,
    memory_bytes: int,
    *,
    turns: int = TURNS,
    blocks: int = NUM_BLOCKS,
    sizes: Sequence[int] = SIZES,
) -> Measurements:
    """Probe `group`: latency, bandwidth and overhead between neighbours, and the rate of an addition.

    Collective: every rank must call it, and every rank gets the same measurements. Takes a few seconds.
    With more ranks than cores the ranks slow each other down; so they will in a collective, which is why all
    of them work at once here. Messages go the way they go in a collective, through an `Executor`.

    tensor_bytes: of the largest tensor whose collectives are to be predicted; messages go up to half of it.
    turns, blocks: how often everything is probed, and in how many blocks of rounds each time; the fewer, the more a
    busy moment of the machine matters.
    sizes: of messages, as far as the tensor goes.
    memory_bytes: what a rank touches between two collectives. The probes walk through as much, a message at a
    time, because what is still in the caches moves and adds several times faster.
    """
    probed = _sizes(sizes, tensor_bytes)
    memory_bytes = max(memory_bytes, tensor_bytes, probed[-1])
    probes = [*_shift_probes(group, probed, memory_bytes), *_reduce_probes(probed, memory_bytes)]
    # All probes one after the other, in turns: a slow moment of the machine then spoils no probe whole.
    with naming_failures(f"rank {group.rank()}: probing its neighbours failed"):
        rounds_in_turn = [[_time_blocks(rounds, blocks) for *_, rounds in probes] for _ in range(turns)]
        times = torch.tensor(rounds_in_turn, dtype=torch.float64)  # (turn, probe, block, elapsed or of a core)
        execute(build(Collective.ALL_REDUCE, "ring", group.size()), times, group=group)
    times /= group.size()  # ranks take turns at being ahead; over a block all go at the same pace
    elapsed, of_core = times.transpose(0, 1).flatten(1, 2).unbind(-1)
    results = [
        Probe(kind + suffix, size_bytes, in_flight, tuple(blocks))
        for suffix, of_probes in (("", elapsed), ("_cpu", of_core))
        for (kind, size_bytes, in_flight, _), blocks in zip(probes, of_probes.tolist(), strict=True)
    ]
    return Measurements(group.size(), provenance(), tuple(results))


def _shift_probes(group: dist.ProcessGroup, sizes: list[int], memory_bytes: int) -> list[tuple[str, int, int, Rounds]]:
    if group.size() == 1:
        return []
    memory = torch.zeros(memory_bytes, dtype=torch.uint8)
    return [
        ("shift", size, in_flight, _shift(group, memory, size, in_flight))
        for size, in_flight in [*((size, 1) for size in sizes), (sizes[0], IN_FLIGHT)]
    ]


def _reduce_probes(sizes: list[int], memory_bytes: int) -> list[tuple[str, int, int, Rounds]]:
    held = torch.zeros(memory_bytes // 4)
    return [("reduce", size, 1, _reduce(_spread(held, size // 4), torch.ones(size // 4))) for size in sizes]


def _spread(memory: torch.Tensor, length: int) -> list[torch.Tensor]:
    """Pieces of `length` elements from all over the memory, in order."""
    count = min(len(memory) // length, MAX_PIECES)
    return [piece[:length] for piece in memory.split(len(memory) // count)[:count]]


def _sizes(sizes: Sequence[int], tensor_bytes: int) -> list[int]:
    """Sizes of messages up to half the tensor, and that; at least two."""
    half = tensor_bytes // 2 // sizes[0] * sizes[0]
    return [size for size in sizes if size < half or size <= sizes[1]] + [half] * (half > sizes[1])


def _time_blocks(rounds: Rounds, num_blocks: int) -> list[tuple[float, float]]:
    """Seconds per round, elapsed and of a core (in all threads of this rank), of each block."""
    rounds()
    times = []
    for _ in range(num_blocks):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        rounds()
        elapsed, of_core = time.perf_counter() - begin, time.process_time() - begin_cpu
        times.append((elapsed / ROUNDS_PER_BLOCK, of_core / ROUNDS_PER_BLOCK))
    return times


def _shift(group: dist.ProcessGroup, memory: torch.Tensor, size: int, in_flight: int) -> Rounds:
    num_groups = min(ROUNDS_PER_BLOCK, max(len(memory) // (in_flight * size), 1))
    executor = Executor(_shift_schedule(group.size(), num_groups, in_flight), group)
    windows = cycle(_spread(memory, num_groups * in_flight * size))
    return lambda: executor.run(next(windows), reduce=_leave_it)


def _leave_it(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    """Instead of adding, which is probed by itself."""


def _shift_schedule(num_ranks: int, num_groups: int, in_flight: int) -> Schedule:
    """Rounds in which every rank passes on to the right what has just come from the left, `in_flight` chunks at a time.

    As in a ring, but with as many chunks as there are to be touched, and for as many rounds as make a block.
    """
    ranks, one_of = np.arange(num_ranks)[:, None], np.arange(in_flight)
    columns = (
        (ranks, (ranks + 1) % num_ranks, (ranks - index) % num_groups * in_flight + one_of, np.True_)
        for index in range(ROUNDS_PER_BLOCK)
    )
    return Schedule.from_columns(Collective.ALL_REDUCE, "shift", num_ranks, num_groups * in_flight, columns)


def _reduce(held: Sequence[torch.Tensor], arrived: torch.Tensor) -> Rounds:
    chunks = cycle(held)

    def rounds() -> None:
        for _ in range(ROUNDS_PER_BLOCK):
            next(chunks).add_(arrived)  # what has just arrived is still in the caches, what it is added to is not

    return rounds
