"""`time_blocks`: how the rounds of a probe are timed, on ranks that agree on their number."""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from collectives.runtime import Executor
from ringsim.measurements import ROUNDS_PER_RUN, ProbeKind

CALLS_PER_BLOCK = 16  # each after what is done before it
MAX_PIECES = 256  # more would only cost memory: the caches have long forgotten the first by then

Rounds = Callable[[], object]


def whole_time() -> tuple[float, float]:
    """Return the seconds since any moment, elapsed and of a core in all threads of this rank."""
    return time.perf_counter(), time.process_time()


class TimedAddition:
    """Adds what has arrived, as collectives do, and is a clock that goes only meanwhile.

    Messages take several times as long as their additions, and vary by as much as those take.
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

    ranks: those that have a part in it.
    rounds: does ROUNDS_PER_RUN of them; or one call, if something is done before each.
    before: is done before each call, and not timed; all ranks must then have a part in it. calls: in a block.
    clock: tells the seconds that have passed, elapsed and of a core; not for single calls.
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
    """How a probe is timed: `turns` times, each time in `number` blocks of rounds that take `least_s` or more each.

    Where threads share cores, one that polls can keep another from going on until the kernel's next tick, 4 ms and
    more. A block that is not much longer than that has one such wait or none, and the median of the blocks none.
    """

    turns: int = 4
    number: int = 4
    least_s: float = 20e-3


def spread(memory: torch.Tensor, length: int) -> list[torch.Tensor]:
    """Pieces of `length` elements from all over the memory, in order."""
    count = min(len(memory) // length, MAX_PIECES)
    return [piece[:length] for piece in memory.split(len(memory) // count)[:count]]


def add_one(chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    """Time an addition of next to nothing; what bytes take is probed by itself."""
    chunk[:1].add_(arrived[:1])


def time_blocks(
    workload: ProbeWorkload, blocks: Blocks, meeting: Executor, meet: Callable[[], object]
) -> list[tuple[float, float]]:
    """Seconds per round, elapsed and of a core (in all threads of this rank), of each block or call; 0 on the others.

    Collective. meeting: an all_reduce, for the ranks to agree on how many rounds a block has.
    meet: lets them meet before each block: which thread has which core stays as it is for many rounds, and should not
    for all blocks.
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
    """Seconds of each of some calls, elapsed and of a core; the same on all ranks.

    Ranks do not come at the same time. The one that comes last waits for nobody, and takes the shortest.
    """
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
    """Return the number of runs of eight rounds in a block, the same on all ranks, which it also brings together."""
    num_runs = 1
    meeting.run(torch.zeros(1))  # the others must not disturb it with what came before
    for _ in range(2):  # the first also warms up, and so tells too few
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
