"""The step engine: a ring in virtual time on a topology where nothing is shared, a step at a time.

There every time is a maximum of earlier times plus a cost, so a step is evaluated as a few NumPy operations over all
its transfers. A rank of a ring has one connection out and one in, and one transfer a step on each. So whatever it has
applied, or sent, up to a step has all been applied, or sent, when the last of it has: a time for each rank and each of
the last `lookback` steps is all that is kept. The module knows nothing about collectives: it reads transfers and obeys
the rule of execution (see `schedule`). A rank that executes in order does the same at the same times.

What makes it fast: who sends to whom is looked at once for all steps that share their `src` and `dst` arrays, as those
of a ring do; a column with one value for all transfers is read as that value; and an index that names every rank in
order is a slice.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from ringsim.network import Floats, Topology
from ringsim.schedule import NEVER, Ints, Schedule, Step, only_value, require_memory
from ringsim.simulation.routes import have_contention, used_connections
from ringsim.simulation.timeline import OnProgress, Seconds, Timeline, ignore_progress

MAX_PATTERN_ROWS = 2**17  # kept; rings have few patterns, schedules that list their steps one a step
Cost = Floats | float  # seconds of each transfer, or of any
Index = Ints | slice  # a slice where the ranks are neighbours, in order


def is_for_steps(schedule: Schedule, topology: Topology) -> bool:
    """Return whether the step engine can run a schedule: it is a ring, whose messages share nothing."""
    connections = used_connections(schedule)
    if min(len(np.unique(connections.src)), len(np.unique(connections.dst))) < len(connections.src):
        return False  # a rank has several connections out, or several in
    is_ring = all(len(np.unique(step.src)) == len(step) for step in schedule.steps.patterns())
    return is_ring and not have_contention(connections, topology)


def run_steps(
    schedule: Schedule, topology: Topology, chunk_bytes: Ints, on_progress: OnProgress = ignore_progress
) -> Timeline:
    """Return every transfer of `schedule` with its times. chunk_bytes: (num_chunks,)."""
    engine = _Engine(schedule, topology, chunk_bytes)
    timeline = Timeline.empty(schedule.num_ranks, schedule.num_chunks, schedule.num_transfers)
    first = 0
    for index, step in enumerate(schedule.steps):
        rows = slice(first, first := first + len(step))
        timeline.step[rows] = index
        for name in ("src", "dst", "chunk", "reduce"):
            getattr(timeline, name)[rows] = getattr(step, name)
        for name, times in engine.run_step(index, step)._asdict().items():
            getattr(timeline, name)[rows] = times
        on_progress(len(step))
    return timeline


def time_steps(
    schedule: Schedule, topology: Topology, chunk_bytes: Ints, on_progress: OnProgress = ignore_progress
) -> float:
    """Return the seconds until the last rank has finished, without keeping a timeline."""
    engine = _Engine(schedule, topology, chunk_bytes)
    for index, step in enumerate(schedule.steps):
        engine.run_step(index, step)
        on_progress(len(step))
    return engine.time_s


class StepTimes(NamedTuple):
    """The times of one step's transfers, each of shape (num_transfers,), as in `Timeline`."""

    start_s: Seconds
    sent_s: Seconds
    arrived_s: Seconds
    apply_s: Seconds
    applied_s: Seconds


class _Engine:
    """The times until which each rank has sent and applied, as of the steps so far."""

    def __init__(self, schedule: Schedule, topology: Topology, chunk_bytes: Ints) -> None:
        kept = min(schedule.steps.lookback + 1, schedule.num_steps)
        require_memory(f"{schedule}: the times of its last {kept:,} steps", 2 * 8 * kept * schedule.num_ranks)
        self._topology = topology
        self._bytes = _one_if_same(chunk_bytes.astype(np.float64))
        self._sent = _History(schedule.num_ranks, schedule.steps.lookback)
        self._applied = _History(schedule.num_ranks, schedule.steps.lookback)
        self._patterns: dict[tuple[int, int, int], _Pattern] = {}

    @property
    def time_s(self) -> float:
        """When the last rank applied the last transfer so far."""
        return float(self._applied.latest.max())

    def run_step(self, index: int, step: Step) -> StepTimes:
        """Return the times of the next step, which must be number `index`."""
        pattern = self._pattern_of(step)
        costs = self._costs(index, step, pattern)
        ready = self._applied.at(step.data_dependency, pattern.src)  # rule 1
        start = np.maximum(self._sent.latest[pattern.src], ready)  # rule 2
        sent = start + costs.send_s
        self._sent.append(pattern.src, sent)
        arrived = sent + costs.latency_s
        free = arrived
        if only_value(step.buffer_dependency) != NEVER:
            free = np.maximum(arrived, self._sent.at(step.buffer_dependency, pattern.dst))  # rule 4
        apply = np.maximum(self._applied.latest[pattern.dst], free)  # rule 3
        applied = apply + costs.apply_s
        self._applied.append(pattern.dst, applied)
        return StepTimes(start, sent, arrived, apply, applied)

    def _pattern_of(self, step: Step) -> "_Pattern":
        key = id(step.src), id(step.dst), id(step.channel)
        if key not in self._patterns:
            if sum(len(pattern.columns[0]) for pattern in self._patterns.values()) > MAX_PATTERN_ROWS:
                self._patterns.clear()
            self._patterns[key] = _Pattern(step, self._topology, self._bytes)
        return self._patterns[key]

    def _costs(self, index: int, step: Step, pattern: "_Pattern") -> "_Costs":
        if pattern.by_chunk is not None and self._topology.jitter is None:
            return self._costs_alike(step, pattern, *pattern.by_chunk)
        size = _of_chunk(self._bytes, step.chunk)
        reduce_s: Cost = 0.0
        if only_value(step.reduce) != 0:
            reduce_s = size / pattern.reduce_bytes_per_s
        if only_value(step.reduce) is None:
            reduce_s = np.where(step.reduce, reduce_s, 0.0)
        overhead_s, latency_s, apply_s = (
            pattern.send_overhead_s, pattern.latency_s, pattern.receive_overhead_s + reduce_s
        )  # fmt: skip
        if self._topology.jitter is not None:
            of_latency, of_compute = self._topology.jitter.factors(index, len(step))
            overhead_s, latency_s, apply_s = overhead_s * of_compute, latency_s * of_latency, apply_s * of_compute
        return _Costs(overhead_s + size / pattern.bytes_per_s, latency_s, apply_s)

    def _costs_alike(self, step: Step, pattern: "_Pattern", send_s: Cost, add_s: Cost) -> "_Costs":
        """Return the same where a chunk costs the same wherever it is sent: worked out once for all steps."""
        adds = only_value(step.reduce)
        apply_s: Cost = pattern.receive_overhead_s if adds == 0 else _of_chunk(add_s, step.chunk)
        if adds is None:
            apply_s = np.where(step.reduce, apply_s, pattern.receive_overhead_s)
        return _Costs(_of_chunk(send_s, step.chunk), pattern.latency_s, apply_s)


class _Costs(NamedTuple):
    """Seconds that the transfers of one step take."""

    send_s: Cost
    latency_s: Cost
    apply_s: Cost


class _Pattern:
    """The senders and receivers of a step, and their costs: the same for many steps.

    by_chunk: if all paths and ranks are alike, the seconds of sending and of adding each chunk (one number: any chunk).
    """

    def __init__(self, step: Step, topology: Topology, size: Cost) -> None:
        self.columns = step.src, step.dst, step.channel  # kept, so that their ids stay theirs
        self.src, self.dst = _index(step.src), _index(step.dst)
        paths, processors = topology.connection_paths(step.src, step.dst, step.channel), topology.processors
        paths.check()
        self.latency_s = _one_if_same(paths.latency_s)
        self.bytes_per_s = _one_if_same(paths.alone_bytes_per_s(topology.resources))
        self.send_overhead_s = _one_if_same(processors.send_overhead_s[step.src])
        self.receive_overhead_s = _one_if_same(processors.receive_overhead_s[step.dst])
        self.reduce_bytes_per_s = _one_if_same(processors.reduce_bytes_per_s[step.dst])
        self.by_chunk: tuple[Cost, Cost] | None = None
        sending, adding = (self.send_overhead_s, self.bytes_per_s), (self.receive_overhead_s, self.reduce_bytes_per_s)
        if all(isinstance(cost, float) for cost in (*sending, *adding)):
            self.by_chunk = sending[0] + size / sending[1], adding[0] + size / adding[1]


def _one_if_same(values: Floats) -> Floats | float:
    """Return the one value that they all have, as a number, which NumPy is faster with."""
    return float(values[0]) if len(values) and (values == values[0]).all() else values


def _of_chunk(cost: Cost, chunk: Ints) -> Cost:
    """Return the cost of each of these chunks."""
    return cost if isinstance(cost, float) else cost[chunk]


def _index(numbers: Ints) -> Index:
    first = int(numbers[0]) if len(numbers) else 0
    neighbours = slice(first, first + len(numbers))
    return neighbours if (numbers == np.arange(neighbours.start, neighbours.stop)).all() else numbers


class _History:
    """A time per rank that only grows, as it stood after each of the last `lookback` steps."""

    def __init__(self, num_ranks: int, lookback: int) -> None:
        self.latest: Seconds = np.zeros(num_ranks)
        self._kept: deque[Seconds] = deque(maxlen=lookback + 1)
        self._next_step = 0

    def append(self, rank: Index, time_s: Seconds) -> None:
        """Take note of the times of the ranks that do something in the next step."""
        self.latest = self.latest.copy()
        self.latest[rank] = time_s
        self._kept.append(self.latest)
        self._next_step += 1

    def at(self, step: Ints, rank: Index) -> Seconds | float:
        """Return the time of each rank as it stood after each step; 0 where the step is NEVER."""
        only = only_value(step)
        if only is not None:
            return 0.0 if only == NEVER else self._kept[only - self._next_step][rank]
        times = np.zeros(len(step))
        ranks = np.arange(len(self.latest))[rank]
        for number in np.unique(step):
            if number != NEVER:
                rows = step == number
                times[rows] = self._kept[int(number) - self._next_step][ranks[rows]]
        return times
