"""`probe`: what sending and reducing cost here, measured with all ranks at work as they are in a ring."""

import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice

import torch
import torch.distributed as dist

from collectives.errors import naming_failures
from collectives.execute import TAG, execute
from collectives.provenance import provenance
from ringsim.algorithms import build, ring_all_gather
from ringsim.collective import Collective
from ringsim.measurements import Measurements, Probe
from ringsim.program import rank_program

SIZES = (64, 4 * 2**10, 32 * 2**10, 128 * 2**10, 512 * 2**10, 2 * 2**20, 8 * 2**20)  # multiples of a float32
IN_FLIGHT = 4
NUM_BLOCKS = 12
ROUNDS_PER_BLOCK = 8
TURNS = 4
MAX_PIECES = 256  # more would only cost memory: the caches have long forgotten the first by then

Rounds = Callable[[], None]


def probe(group: dist.ProcessGroup, tensor_bytes: int, memory_bytes: int, turns: int = TURNS) -> Measurements:
    """Probe `group`: latency, bandwidth and overhead between neighbours, and the rate of an addition.

    Collective: every rank must call it, and every rank gets the same measurements. Takes a few seconds.
    With more ranks than cores the ranks slow each other down; so they will in a collective, which is why all
    of them work at once here.

    tensor_bytes: of the largest tensor whose collectives are to be predicted; messages go up to half of it.
    turns: how often everything is probed; the fewer, the more a busy moment of the machine matters.
    memory_bytes: what a rank touches between two collectives. The probes walk through as much, a message at a
    time, because what is still in the caches moves and adds several times faster.
    """
    sizes = _sizes(tensor_bytes)
    right, left = _neighbours(group)
    memory_bytes = max(memory_bytes, tensor_bytes, sizes[-1])
    probes = [*_shift_probes(group, sizes, memory_bytes), *_reduce_probes(sizes, memory_bytes)]
    # All probes one after the other, in turns: a slow moment of the machine then spoils no probe whole.
    with naming_failures(f"rank {group.rank()}: probing rank {right} (sending) and rank {left} (receiving) failed"):
        rounds_in_turn = [[_time_blocks(rounds) for *_, rounds in probes] for _ in range(turns)]
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
    outgoing = torch.zeros(memory_bytes, dtype=torch.uint8)
    incoming = torch.zeros_like(outgoing)
    return [
        ("shift", size, in_flight, _shift(group, _spread(outgoing, size), _spread(incoming, size), in_flight))
        for size, in_flight in [*((size, 1) for size in sizes), (sizes[0], IN_FLIGHT)]
    ]


def _reduce_probes(sizes: list[int], memory_bytes: int) -> list[tuple[str, int, int, Rounds]]:
    held = torch.zeros(memory_bytes // 4)
    arrived = torch.ones_like(held)
    return [("reduce", size, 1, _reduce(_spread(held, size // 4), _spread(arrived, size // 4))) for size in sizes]


def _spread(memory: torch.Tensor, length: int) -> list[torch.Tensor]:
    """Pieces of `length` elements from all over the memory, in order."""
    count = min(len(memory) // length, MAX_PIECES)
    return [piece[:length] for piece in memory.split(len(memory) // count)[:count]]


def _sizes(tensor_bytes: int) -> list[int]:
    """Sizes of messages up to half the tensor, and that; at least two."""
    half = tensor_bytes // 2 // SIZES[0] * SIZES[0]
    return [size for size in SIZES if size < half or size <= SIZES[1]] + [half] * (half > SIZES[1])


def _time_blocks(rounds: Rounds) -> list[tuple[float, float]]:
    """Seconds per round, elapsed and of a core (in all threads of this rank), of each block."""
    for _ in range(ROUNDS_PER_BLOCK):
        rounds()
    times = []
    for _ in range(NUM_BLOCKS):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for _ in range(ROUNDS_PER_BLOCK):
            rounds()
        elapsed, of_core = time.perf_counter() - begin, time.process_time() - begin_cpu
        times.append((elapsed / ROUNDS_PER_BLOCK, of_core / ROUNDS_PER_BLOCK))
    return times


def _shift(
    group: dist.ProcessGroup, outgoing: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor], in_flight: int
) -> Rounds:
    pairs = cycle(zip(outgoing, incoming, strict=True))
    right, left = _neighbours(group)

    def rounds() -> None:
        messages = list(islice(pairs, in_flight))
        works = [group.recv([arriving], left, TAG) for _, arriving in messages]
        works += [group.send([leaving], right, TAG) for leaving, _ in messages]
        for work in works:
            work.wait()

    return rounds


def _reduce(held: Sequence[torch.Tensor], arrived: Sequence[torch.Tensor]) -> Rounds:
    pairs = cycle(zip(held, arrived, strict=True))

    def rounds() -> None:
        chunk, data = next(pairs)
        chunk.add_(data)

    return rounds


def _neighbours(group: dist.ProcessGroup) -> tuple[int, int]:
    """To whom this rank sends and from whom it receives, in the ring itself; a rank alone is its own neighbour."""
    if group.size() == 1:
        return 0, 0
    program = rank_program(ring_all_gather(group.size()), group.rank())
    return program.first_sends[0].peer, program.receives[0].peer
