"""The step engine: a schedule in virtual time on a topology where nothing is shared, a step at a time.

There every time is a maximum of earlier times plus a cost, so a step is evaluated as a few NumPy
operations over all its transfers, and only the last `lookback` steps are kept. The module knows nothing
about collectives: it reads transfers and obeys the rule of execution (see `schedule`).

What makes it fast: who sends to whom is looked at once for all steps that share their `src` and `dst` arrays,
as those of a ring do (`_Pattern`); a column with one value for all transfers is read as that value; and an
index that names every rank in order is a slice.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ringsim.network import Floats, Topology
from ringsim.schedule import NEVER, Ints, Schedule, Step, only_value, require_memory
from ringsim.simulation.timeline import OnProgress, Seconds, Timeline, ignore_progress

MAX_PATTERN_ROWS = 2**17  # kept; rings have few patterns, schedules that list their steps one a step


def run_steps(
    schedule: Schedule, topology: Topology, chunk_bytes: Ints, on_progress: OnProgress = ignore_progress
) -> Timeline:
    """Every transfer of `schedule` with its times. chunk_bytes: (num_chunks,)."""
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
    """Seconds until the last rank has finished, without keeping any times."""
    engine = _Engine(schedule, topology, chunk_bytes)
    for index, step in enumerate(schedule.steps):
        engine.run_step(index, step)
        on_progress(len(step))
    return engine.time_s


Cost = Floats | float  # seconds of each transfer, or of any


class StepTimes(NamedTuple):
    """The times of one step's transfers, each of shape (num_transfers,), as in `Timeline`."""

    start_s: Seconds
    left_s: Seconds
    arrived_s: Seconds
    apply_s: Seconds
    applied_s: Seconds


class _Engine:
    """What has happened so far: who has applied and sent what until when, and which channels are busy."""

    def __init__(self, schedule: Schedule, topology: Topology, chunk_bytes: Ints) -> None:
        self._topology = topology
        self._bytes = _if_same(chunk_bytes.astype(np.float64))
        kept = min(schedule.steps.lookback + 1, schedule.num_steps)
        require_memory(f"{schedule}: the times of its last {kept:,} steps", 2 * 8 * kept * schedule.num_ranks)
        self._applied = _History(schedule.num_ranks, schedule.steps.lookback)
        self._left = _History(schedule.num_ranks, schedule.steps.lookback)
        self._channels = _Channels(schedule.num_ranks)
        self._patterns: dict[tuple[int, int, int], _Pattern] = {}

    @property
    def time_s(self) -> float:
        """When the last rank applied the last transfer so far."""
        return float(self._applied.latest.max())

    def run_step(self, index: int, step: Step) -> StepTimes:
        """The times of the next step, which must be number `index`."""
        pattern = self._pattern_of(step)
        costs = self._costs(index, step, pattern)
        ready = self._applied.at(step.data_dependency, pattern.src)
        start, left = _in_turn(
            pattern.channel, pattern.channel_turns, ready, costs.send_s, self._channels.busy_until
        )  # rule 2
        all_left = self._left.latest.copy()
        for rows, src in pattern.src_turns:
            all_left[src] = np.maximum(all_left[src], left[rows])
        self._left.append(index, all_left)
        arrived = left + costs.latency_s
        free = arrived
        if only_value(step.buffer_dependency) != NEVER:
            free = np.maximum(arrived, self._left.at(step.buffer_dependency, pattern.dst))  # rule 4
        all_applied = self._applied.latest.copy()
        apply, applied = _in_turn(pattern.dst, pattern.dst_turns, free, costs.apply_s, all_applied)  # rule 3
        self._applied.append(index, all_applied)
        return StepTimes(start, left, arrived, apply, applied)

    def _pattern_of(self, step: Step) -> "_Pattern":
        key = id(step.src), id(step.dst), id(step.channel)
        if key not in self._patterns:
            if sum(len(pattern.columns[0]) for pattern in self._patterns.values()) > MAX_PATTERN_ROWS:
                self._patterns.clear()
            self._patterns[key] = _Pattern(step, self._channels, self._topology, self._bytes)
        return self._patterns[key]

    def _costs(self, index: int, step: Step, pattern: "_Pattern") -> "_Costs":
        if pattern.by_chunk is not None and self._topology.jitter is None:
            return self._costs_alike(step, pattern, *pattern.by_chunk)
        size = _of(self._bytes, step.chunk)
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

    def _costs_alike(self, step: Step, pattern: "_Pattern", send_s: Cost, add_s: Cost) -> "_Costs":
        """The same where a chunk costs the same wherever it is sent: worked out once for all steps."""
        adds = only_value(step.reduce)
        apply_s: Cost = pattern.receive_overhead_s if adds == 0 else _of(add_s, step.chunk)
        if adds is None:
            apply_s = np.where(step.reduce, apply_s, pattern.receive_overhead_s)
        return _Costs(_of(send_s, step.chunk), pattern.latency_s, apply_s)


class _Costs(NamedTuple):
    """What the transfers of one step take."""

    send_s: Cost
    latency_s: Cost
    apply_s: Cost


def _of(cost: Cost, chunk: Ints) -> Cost:
    return cost if isinstance(cost, float) else cost[chunk]


def _if_same(values: Floats) -> Floats | float:
    """The one value that they all have, as a number, which NumPy is faster with."""
    return float(values[0]) if len(values) and (values == values[0]).all() else values


Index = Ints | slice  # a slice where the ranks or links are neighbours, in order
Turns = Sequence[tuple[Index, Index]]  # rows, and what they use: nothing twice in one turn


class _Pattern:
    """Who sends to whom in a step, at what cost, and whose transfers must take turns: the same for many steps.

    by_chunk: if all paths and ranks are alike, what sending and adding each chunk takes (one number: any chunk).
    """

    def __init__(self, step: Step, channels: "_Channels", topology: Topology, size: Cost) -> None:
        self.columns = step.src, step.dst, step.channel  # kept, so that their ids stay theirs
        channel = channels.numbers(step.src, step.channel)
        self.src, self.dst, self.channel = _index(step.src), _index(step.dst), _index(channel)
        self.src_turns, self.dst_turns, self.channel_turns = _turns(step.src), _turns(step.dst), _turns(channel)
        paths, processors = topology.connection_paths(step.src, step.dst, step.channel), topology.processors
        paths.check()
        self.latency_s = _if_same(paths.latency_s)
        self.bytes_per_s = _if_same(paths.alone_bytes_per_s(topology.resources))
        self.send_overhead_s = _if_same(processors.send_overhead_s[step.src])
        self.receive_overhead_s = _if_same(processors.receive_overhead_s[step.dst])
        self.reduce_bytes_per_s = _if_same(processors.reduce_bytes_per_s[step.dst])
        self.by_chunk: tuple[Cost, Cost] | None = None
        sending, adding = (self.send_overhead_s, self.bytes_per_s), (self.receive_overhead_s, self.reduce_bytes_per_s)
        if all(isinstance(cost, float) for cost in (*sending, *adding)):
            self.by_chunk = sending[0] + size / sending[1], adding[0] + size / adding[1]


def _index(numbers: Ints) -> Index:
    first = int(numbers[0]) if len(numbers) else 0
    neighbours = slice(first, first + len(numbers))
    return neighbours if (numbers == np.arange(neighbours.start, neighbours.stop)).all() else numbers


def _turns(numbers: Ints) -> Turns:
    """In the first turn the first row of each number, in the second its second, and so on."""
    if not len(numbers):
        return []
    counts = np.bincount(numbers)
    if counts.max() == 1:
        return [(slice(None), _index(numbers))]
    order = np.argsort(numbers, kind="stable")
    first = np.concatenate([[0], np.cumsum(counts)])[numbers[order]]
    turn = np.arange(len(numbers)) - first
    by_turn = order[np.argsort(turn, kind="stable")]
    rows = np.split(by_turn, np.cumsum(np.bincount(turn))[:-1])
    return [(row, numbers[row]) for row in rows]


def _in_turn(
    resource: Index, turns: Turns, ready: Seconds | float, cost: Cost, busy_until: Seconds
) -> tuple[Seconds, Seconds]:
    """When each transfer begins and ends on its resource, which serves its transfers in the order of rows.

    `busy_until` (num_resources,) is brought up to date.
    """
    if len(turns) == 1:
        begin: Seconds = np.maximum(busy_until[resource], ready)
        end = begin + cost
        busy_until[resource] = end
        return begin, end
    num_rows = sum(len(busy_until[used]) for _, used in turns)
    begin, end = np.empty(num_rows), np.empty(num_rows)
    ready, cost = np.broadcast_to(ready, num_rows), np.broadcast_to(cost, num_rows)
    for rows, used in turns:
        begin[rows] = np.maximum(ready[rows], busy_until[used])
        end[rows] = begin[rows] + cost[rows]
        busy_until[used] = end[rows]
    return begin, end


class _History:
    """A time per rank that only grows, as it stood after each of the last `lookback` steps."""

    def __init__(self, num_ranks: int, lookback: int) -> None:
        self.latest: Seconds = np.zeros(num_ranks)
        self._kept: deque[Seconds] = deque(maxlen=lookback + 1)
        self._next_step = 0

    def append(self, step: int, times: Seconds) -> None:
        """Take note of the times as they are after step number `step`; they must not be changed any more."""
        self.latest = times
        self._kept.append(times)
        self._next_step = step + 1

    def at(self, step: Ints, rank: Index) -> Seconds | float:
        """The time of each rank as it stood after each step; 0 where the step is NEVER."""
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


class _Channels:
    """Until when each rank's channels are busy; they are met one by one."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._known: Ints = np.arange(num_ranks)  # channel 0 of every rank, which most schedules have alone
        self.busy_until: Seconds = np.zeros(num_ranks)

    def numbers(self, src: Ints, channel: Ints) -> Ints:
        """A number for each channel of a rank, an index into `busy_until`; of channel 0 that of the rank."""
        if only_value(channel) == 0:
            return src
        sender = channel * self._num_ranks + src
        new = np.setdiff1d(sender, self._known)
        if len(new):
            # At the end, so that the numbers given before stay valid.
            self._known = np.concatenate([self._known, new])
            self.busy_until = np.concatenate([self.busy_until, np.zeros(len(new))])
        order = np.argsort(self._known)
        return order[np.searchsorted(self._known, sender, sorter=order)].astype(np.int64)
