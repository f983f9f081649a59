"""The step engine: a schedule in virtual time on a topology where nothing is shared, a step at a time.

There every time is a maximum of earlier times plus a cost, so a step is evaluated as a few NumPy
operations over all its transfers. What is kept of the steps before is a time for each chunk of each rank or, where
a rank has one connection in and one out, for each rank and each of the last `lookback` steps. The module knows
nothing about collectives: it reads transfers and obeys the rule of execution (see `schedule`).

What makes it fast: who sends to whom is looked at once for all steps that share their `src` and `dst` arrays,
as those of a ring do (`StepPattern`); a column with one value for all transfers is read as that value; and an
index that names every rank in order is a slice.
"""

from typing import NamedTuple

import numpy as np

from ringsim.network import Topology
from ringsim.schedule import NEVER, Ints, Schedule, Step, only_value
from ringsim.simulation.engines.numbers import Growing, Numbers
from ringsim.simulation.engines.past import Past, PastOfChunks, PastOfRanks
from ringsim.simulation.engines.sharing import is_a_ring
from ringsim.simulation.engines.step_pattern import Cost, StepPattern, in_turn, of_chunk, one_if_same
from ringsim.simulation.timeline import OnProgress, Seconds, Timeline, ignore_progress

MAX_PATTERN_ROWS = 2**17  # kept; rings have few patterns, schedules that list their steps one a step


def run_steps(
    schedule: Schedule,
    topology: Topology,
    chunk_bytes: Ints,
    on_progress: OnProgress = ignore_progress,
    *,
    in_order: bool = False,
) -> Timeline:
    """Every transfer of `schedule` with its times. chunk_bytes: (num_chunks,). in_order: see `dependencies`."""
    engine = _Engine(schedule, topology, chunk_bytes, in_order)
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
    schedule: Schedule,
    topology: Topology,
    chunk_bytes: Ints,
    on_progress: OnProgress = ignore_progress,
    *,
    in_order: bool = False,
) -> float:
    """Seconds until the last rank has finished, without keeping a timeline."""
    engine = _Engine(schedule, topology, chunk_bytes, in_order)
    for index, step in enumerate(schedule.steps):
        engine.run_step(index, step)
        on_progress(len(step))
    return engine.time_s


class StepTimes(NamedTuple):
    """The times of one step's transfers, each of shape (num_transfers,), as in `Timeline`."""

    start_s: Seconds
    left_s: Seconds
    arrived_s: Seconds
    apply_s: Seconds
    applied_s: Seconds


class _Engine:
    """What has happened so far: when chunks were written and sent, and until when channels are busy."""

    def __init__(self, schedule: Schedule, topology: Topology, chunk_bytes: Ints, in_order: bool) -> None:
        self._topology = topology
        self._bytes = one_if_same(chunk_bytes.astype(np.float64))
        self._num_ranks = schedule.num_ranks
        self._channels = Numbers(
            schedule.num_ranks
        )  # channel 0 of a rank, which most schedules have alone, has its number
        self._busy_until = Growing(0.0)
        self._past: Past = PastOfRanks(schedule) if is_a_ring(schedule) else PastOfChunks(schedule, in_order)
        self._patterns: dict[tuple[int, int, int], StepPattern] = {}

    @property
    def time_s(self) -> float:
        """When the last rank applied the last transfer so far."""
        return self._past.time_s

    def run_step(self, index: int, step: Step) -> StepTimes:
        """The times of the next step, which must be number `index`."""
        pattern = self._pattern_of(step)
        costs = self._costs(index, step, pattern)
        ready = self._past.ready_s(step, pattern)  # rule 1
        busy_until = self._busy_until.at_least(len(self._channels))
        start, left = in_turn(pattern.channel, pattern.channel_turns, ready, costs.send_s, busy_until)  # rule 2
        self._past.send(step, pattern, left)
        arrived = left + costs.latency_s
        free = arrived
        if only_value(step.buffer_dependency) != NEVER:
            free = np.maximum(arrived, self._past.free_s(step, pattern))  # rule 4
        apply, applied = self._past.apply(step, pattern, free, costs.apply_s)  # rule 3
        return StepTimes(start, left, arrived, apply, applied)

    def _pattern_of(self, step: Step) -> StepPattern:
        key = id(step.src), id(step.dst), id(step.channel)
        if key not in self._patterns:
            if sum(len(pattern.columns[0]) for pattern in self._patterns.values()) > MAX_PATTERN_ROWS:
                self._patterns.clear()
            channel = step.src
            if only_value(step.channel) != 0:
                channel = self._channels.of(step.channel * self._num_ranks + step.src)
            receiver = self._past.receivers(step)
            self._patterns[key] = StepPattern(step, channel, receiver, self._topology, self._bytes)
        return self._patterns[key]

    def _costs(self, index: int, step: Step, pattern: StepPattern) -> "_Costs":
        if pattern.by_chunk is not None and self._topology.jitter is None:
            return self._costs_alike(step, pattern, *pattern.by_chunk)
        size = of_chunk(self._bytes, step.chunk)
        send_overhead_s, latency_s, receive_overhead_s = (
            pattern.send_overhead_s, pattern.latency_s, pattern.receive_overhead_s
        )  # fmt: skip
        reduce_s: Cost = 0.0
        if only_value(step.reduce) != 0:
            reduce_s = size / pattern.reduce_bytes_per_s
        if only_value(step.reduce) is None:
            reduce_s = np.where(step.reduce, reduce_s, 0.0)
        apply_s = receive_overhead_s + reduce_s
        if self._topology.jitter is not None:
            of_latency, of_compute = self._topology.jitter.factors(index, len(step))
            latency_s, send_overhead_s, apply_s = (
                latency_s * of_latency, send_overhead_s * of_compute, apply_s * of_compute
            )  # fmt: skip
        return _Costs(send_overhead_s + size / pattern.bytes_per_s, latency_s, apply_s)

    def _costs_alike(self, step: Step, pattern: StepPattern, send_s: Cost, add_s: Cost) -> "_Costs":
        """The same where a chunk costs the same wherever it is sent: worked out once for all steps."""
        adds = only_value(step.reduce)
        apply_s: Cost = pattern.receive_overhead_s if adds == 0 else of_chunk(add_s, step.chunk)
        if adds is None:
            apply_s = np.where(step.reduce, apply_s, pattern.receive_overhead_s)
        return _Costs(of_chunk(send_s, step.chunk), pattern.latency_s, apply_s)


class _Costs(NamedTuple):
    """What the transfers of one step take."""

    send_s: Cost
    latency_s: Cost
    apply_s: Cost
