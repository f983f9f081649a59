"""`simulate`: a schedule in virtual time, on a network where nothing is shared.

There every time is a maximum of earlier times plus a cost, so a step is evaluated as a few NumPy
operations over all its transfers, and only the last `lookback` steps are kept. The module knows nothing
about collectives: it reads transfers and obeys the rule of execution (see `schedule`).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ringsim.network import Network
from ringsim.partition import partition
from ringsim.schedule import NEVER, Ints, Schedule, Step
from ringsim.timeline import Seconds, Timeline


def simulate(schedule: Schedule, network: Network, size_bytes: int, *, element_bytes: int = 1) -> Timeline:
    """Every transfer of `schedule` with its times, all ranks starting at 0.

    size_bytes: of the whole tensor (for reduce_scatter the input, for all_gather the output), which
    `partition` cuts into chunks of whole elements.

    Raises ValueError for a size that is negative or not a multiple of `element_bytes`.
    """
    rows = []
    for index, (step, times) in enumerate(_run(schedule, network, size_bytes, element_bytes)):
        row = Timeline.empty_rows(len(step))
        row["step"] = index
        for name in ("src", "dst", "chunk", "reduce"):
            row[name] = getattr(step, name)
        for name in ("start_s", "left_s", "arrived_s", "apply_s", "applied_s"):
            row[name] = getattr(times, name)
        rows.append(row)
    return Timeline.from_rows(schedule.num_ranks, schedule.num_chunks, rows)


def predict_time(schedule: Schedule, network: Network, size_bytes: int, *, element_bytes: int = 1) -> float:
    """Seconds until the last rank has finished: `simulate(...).time_s` without keeping the timeline."""
    steps = _run(schedule, network, size_bytes, element_bytes)
    return max((float(times.applied_s.max(initial=0.0)) for _, times in steps), default=0.0)


@dataclass(frozen=True, slots=True)
class _StepTimes:
    """The times of one step's transfers, each of shape (num_transfers,), as in `Timeline`."""

    start_s: Seconds
    left_s: Seconds
    arrived_s: Seconds
    apply_s: Seconds
    applied_s: Seconds


def _run(
    schedule: Schedule, network: Network, size_bytes: int, element_bytes: int
) -> Iterator[tuple[Step, _StepTimes]]:
    if element_bytes < 1 or size_bytes % element_bytes:
        raise ValueError(f"size {size_bytes} bytes: must be a multiple of the element size, {element_bytes} bytes")
    bounds = partition(size_bytes // element_bytes, schedule.num_chunks) * element_bytes
    engine = _Engine(schedule, network, np.diff(bounds))
    for index, step in enumerate(schedule.steps):
        yield step, engine.run_step(index, step)


class _Engine:
    """What has happened so far: who has applied and sent what until when, and which links are busy."""

    def __init__(self, schedule: Schedule, network: Network, chunk_bytes: Ints) -> None:
        self._network = network
        self._chunk_bytes = chunk_bytes
        self._applied = _History(schedule.num_ranks, schedule.steps.lookback)
        self._left = _History(schedule.num_ranks, schedule.steps.lookback)
        self._links = _Links(schedule.num_ranks)

    def run_step(self, index: int, step: Step) -> _StepTimes:
        size = self._chunk_bytes[step.chunk]
        link = self._links.index(step.src, step.dst)
        ready = self._applied.at(step.ready_after, step.src)
        start, left = _in_turn(
            link, ready, self._network.overhead_s + size / self._network.bandwidth_bytes_per_s, self._links.busy_until
        )  # rule 2
        self._left.append(index, step.src, left)
        arrived = left + self._network.latency_s
        free = np.maximum(arrived, self._left.at(step.free_after, step.dst))  # rule 4
        cost = np.where(step.reduce, size / self._network.reduce_bytes_per_s, 0.0)
        apply, applied = _in_turn(step.dst, free, cost, self._applied.latest.copy())  # rule 3
        self._applied.append(index, step.dst, applied)
        return _StepTimes(start, left, arrived, apply, applied)


def _in_turn(resource: Ints, ready: Seconds, cost: Seconds, busy_until: Seconds) -> tuple[Seconds, Seconds]:
    """When each transfer begins and ends on its resource, which serves its transfers in the order of rows.

    `busy_until` (num_resources,) is brought up to date.
    """
    begin, end = np.empty(len(ready)), np.empty(len(ready))
    for rows in _rounds(resource):
        used = resource[rows]
        begin[rows] = np.maximum(ready[rows], busy_until[used])
        end[rows] = begin[rows] + cost[rows]
        busy_until[used] = end[rows]
    return begin, end


def _rounds(resource: Ints) -> Iterator[Ints | slice]:
    """The rows in rounds: in the first the first row of each resource, in the second its second, ..."""
    if not len(resource):
        return
    counts = np.bincount(resource)
    if counts.max() == 1:
        yield slice(None)
        return
    order = np.argsort(resource, kind="stable")
    first = np.concatenate([[0], np.cumsum(counts)])[resource[order]]
    turn = np.arange(len(resource)) - first
    for number in range(int(counts.max())):
        yield order[turn == number]


class _History:
    """A time per rank that only grows, as it stood after each of the last `lookback` steps."""

    def __init__(self, num_ranks: int, lookback: int) -> None:
        self.latest: Seconds = np.zeros(num_ranks)
        self._kept: deque[Seconds] = deque(maxlen=lookback + 1)
        self._next_step = 0

    def append(self, step: int, rank: Ints, time_s: Seconds) -> None:
        latest = self.latest.copy()
        np.maximum.at(latest, rank, time_s)
        self.latest = latest
        self._kept.append(latest)
        self._next_step = step + 1

    def at(self, step: Ints, rank: Ints) -> Seconds:
        """The time of each rank as it stood after each step; 0 where the step is NEVER."""
        times = np.zeros(len(step))
        for number in np.unique(step):
            if number != NEVER:
                rows = step == number
                times[rows] = self._kept[int(number) - self._next_step][rank[rows]]
        return times


class _Links:
    """Until when the link of each (src, dst) pair is busy; pairs are met one by one, most never."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._known: Ints = np.empty(0, dtype=np.int64)
        self.busy_until: Seconds = np.empty(0)
        self._last: tuple[Ints, Ints, Ints] | None = None

    def index(self, src: Ints, dst: Ints) -> Ints:
        """A number for each pair, an index into `busy_until`."""
        if self._last is not None and self._last[0] is src and self._last[1] is dst:
            return self._last[2]  # a ring has the same pairs, in the same arrays, in every step
        pair = src * self._num_ranks + dst
        new = np.setdiff1d(pair, self._known)
        if len(new):
            place = np.searchsorted(self._known, new)
            self._known = np.insert(self._known, place, new)
            self.busy_until = np.insert(self.busy_until, place, 0.0)
        index = np.searchsorted(self._known, pair).astype(np.int64)
        self._last = (src, dst, index)
        return index
