"""`probe`: what sending and reducing cost here, measured with all ranks at work as they are in a ring."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from collectives.execute import TAG
from collectives.provenance import provenance
from ringsim.algorithms import ring_all_gather
from ringsim.measurements import Measurements, Probe
from ringsim.program import rank_program

SHIFT_SIZES = (64, 4 * 2**10, 32 * 2**10, 128 * 2**10, 512 * 2**10)
REDUCE_SIZES = (32 * 2**10, 128 * 2**10, 512 * 2**10)
IN_FLIGHT = 4
NUM_BLOCKS = 15
ROUNDS_PER_BLOCK = 8


def probe(group: dist.ProcessGroup) -> Measurements:
    """Probe `group`: latency, bandwidth and overhead between neighbours, and the rate of an addition.

    Collective: every rank must call it, and every rank gets the same measurements. Takes a second or two.
    With more ranks than cores the ranks slow each other down; so they will in a collective, which is why all
    of them work at once here.
    """
    rounds = [("shift", size, 1, _shift(group, size, 1)) for size in SHIFT_SIZES] if group.size() > 1 else []
    if group.size() > 1:
        rounds.append(("shift", SHIFT_SIZES[0], IN_FLIGHT, _shift(group, SHIFT_SIZES[0], IN_FLIGHT)))
    rounds += [("reduce", size, 1, _reduce(size)) for size in REDUCE_SIZES]
    times = torch.tensor([_time_blocks(run) for *_, run in _twice(rounds)], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX, group)
    blocks = times.view(2, len(rounds), NUM_BLOCKS).transpose(0, 1).reshape(len(rounds), -1).tolist()
    probes = [
        Probe(kind, size, in_flight, tuple(block))
        for (kind, size, in_flight, _), block in zip(rounds, blocks, strict=True)
    ]
    return Measurements(group.size(), provenance(), tuple(probes))


Rounds = list[tuple[str, int, int, Callable[[], None]]]


def _twice(rounds: Rounds) -> Rounds:
    """All probes one after the other, and again: a slow moment of the machine then spoils no probe whole."""
    return rounds + rounds


def _time_blocks(run: Callable[[], None]) -> list[float]:
    """Seconds per round, of each block."""
    for _ in range(ROUNDS_PER_BLOCK):
        run()
    times = []
    for _ in range(NUM_BLOCKS):
        begin = time.perf_counter()
        for _ in range(ROUNDS_PER_BLOCK):
            run()
        times.append((time.perf_counter() - begin) / ROUNDS_PER_BLOCK)
    return times


def _shift(group: dist.ProcessGroup, size_bytes: int, in_flight: int) -> Callable[[], None]:
    outgoing = [torch.zeros(size_bytes, dtype=torch.uint8) for _ in range(in_flight)]
    incoming = [torch.empty_like(message) for message in outgoing]
    right, left = _neighbours(group)

    def run() -> None:
        works = [group.recv([message], left, TAG) for message in incoming]
        works += [group.send([message], right, TAG) for message in outgoing]
        for work in works:
            work.wait()

    return run


def _neighbours(group: dist.ProcessGroup) -> tuple[int, int]:
    """To whom this rank sends and from whom it receives, in the ring itself."""
    program = rank_program(ring_all_gather(group.size()), group.rank())
    return program.first_sends[0].peer, program.receives[0].peer


def _reduce(size_bytes: int) -> Callable[[], None]:
    held, arrived = torch.zeros(size_bytes // 4), torch.ones(size_bytes // 4)

    def run() -> None:
        held.add_(arrived)

    return run
