"""`time_blocks`: the time of the rounds of a probe, on ranks that agree on their number."""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from collectives.runtime import Executor
from ringsim.measurements import ROUNDS_PER_RUN, ProbeKind

CALLS_PER_BLOCK = 16
MAX_PIECES = 256  # more would only cost memory, as the first piece has left the caches by then

Rounds = Callable[[], object]


def whole_time() -> tuple[float, float]:
    """Return a clock of elapsed seconds, and one of core-seconds of all threads of this rank."""
    return time.perf_counter(), time.process_time()


class TimedAddition:
    """Adds as collectives do, and is a clock of the additions alone.

    Messages take several times as long as their additions, and vary by as much.
    """

    def __init__(self) -> None:
        self._elapsed_s = self._of_core_s = 0.0

    def __call__(self, chunk: torch.Tensor, arrived: torch.Tensor) -> None:
        begin, begin_cpu = time.perf_counter(), time.thread_time()  # other threads of this rank are receiving
        chunk.add_(arrived)
        self._elapsed_s += time.perf_counter() - begin
        self._of_core_s += time.thread_time() - begin_cpu

    def read(self) -> tuple[float, float]:
        """Return the seconds of all additions, elapsed and of a core."""
        return self._elapsed_s, self._of_core_s


class ProbeWorkload(NamedTuple):
    """The work of the ranks in one probe.

    ranks: that take part. rounds: executes ROUNDS_PER_RUN rounds, or one call if there is a `before`.
    before: executed before each call and not timed; then all ranks must take part. calls: in a block.
    clock: of the rounds, elapsed and of a core.
    """

    kind: ProbeKind
    size_bytes: int
    in_flight: int
    ranks: Sequence[int]
    rounds: Rounds
    before: Rounds | None = None
    calls: int = CALLS_PER_BLOCK
    clock: Callable[[], tuple[float, float]] = whole_time


class Blocks(NamedTuple):
    """How a probe is timed: in `turns` turns of `number` blocks, whose rounds take at least `least_s`.

    Where threads share cores, one that polls can delay another one until the kernel's next tick, 4 ms and more. A short
    block has at most one such wait, and the median of the blocks none.
    """

    turns: int = 4
    number: int = 4
    least_s: float = 20e-3


def spread(memory: torch.Tensor, length: int) -> list[torch.Tensor]:
    """Return pieces of `length` elements from all over the memory, in order."""
    count = min(len(memory) // length, MAX_PIECES)
    return [piece[:length] for piece in memory.split(len(memory) // count)[:count]]


def add_one(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    """Add one element, as the time per byte has its own probe."""
    chunk[:1].add_(arrived[:1])


def time_blocks(
    workload: ProbeWorkload, blocks: Blocks, meeting: Executor, meet: Callable[[], object]
) -> list[tuple[float, float]]:
    """Return the seconds per round of each block or call, elapsed and of a core; 0 on ranks without a part; collective.

    meeting: an all_reduce, by which the ranks agree on the rounds of a block.
    meet: brings them together before each block, as threads keep their cores for many rounds, but should not for all.
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
    """Return the seconds of each call, elapsed and of a core, of the last rank to come, which waits for nobody."""
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
    """Return the number of runs in a block, the same on all ranks, which also meet."""
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
