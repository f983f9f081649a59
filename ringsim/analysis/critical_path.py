"""`critical_path`: the chain of activities that took as long as the whole run.

The last-ending dependency of an activity (see `Dependencies`) precedes it on the path.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from ringsim.network import Floats, Ints, Topology
from ringsim.schedule import NO_ROW, Dependencies
from ringsim.simulation import Timeline, TransferCosts, bytes_s
from ringsim.units import ROUNDING


class Activity(Enum):
    """A transfer's activities, with the columns of their begin and end."""

    SENDING = ("start_s", "sent_s")
    TRAVELLING = ("sent_s", "arrived_s")
    APPLYING = ("apply_s", "applied_s")


class Cause(Enum):
    """The last event for which an activity waited; of simultaneous events, the first in this order."""

    ARRIVED = "it arrived"
    READY = "its chunk was written"
    CHANNEL = "the channel had sent what came before"
    TURN = "what came before it was applied"
    FREE = "its chunk had been sent"
    LEFT = "it left"
    START = "the start"


class CostKind(Enum):
    """The kinds of costs on the critical path."""

    LATENCY = "latency"
    BANDWIDTH = "bandwidth"  # of the bytes alone
    CONTENTION = "contention"  # additional time because other activities share the resources
    REDUCTION = "reduction"
    OVERHEAD = "overhead"  # of a message, at either end
    WAITING = "waiting"  # without a cause in the schedule: 0 in a simulation


class PathSegment(NamedTuple):
    """A part of an activity of the transfer in `row` of a timeline; cause: of the activity."""

    kind: CostKind
    row: int
    begin_s: float
    seconds: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Consecutive segments from 0 to `time_s`."""

    time_s: float
    segments: tuple[PathSegment, ...]

    @property
    def num_transfers(self) -> int:
        return len({segment.row for segment in self.segments})

    def seconds(self) -> dict[CostKind, float]:
        spent = dict.fromkeys(CostKind, 0.0)
        for segment in self.segments:
            spent[segment.kind] += segment.seconds
        return spent

    def shares(self) -> dict[CostKind, float]:
        """Return the fractions of the time, the largest first; all 0 if the run takes no time."""
        spent = sorted(self.seconds().items(), key=lambda item: -item[1])
        return {kind: seconds / self.time_s if self.time_s > 0 else 0.0 for kind, seconds in spent}


def critical_path(timeline: Timeline, rows: Dependencies, topology: Topology, chunk_bytes: Ints) -> CriticalPath:
    """Return the critical path of a run; of several last transfers the first ends it.

    chunk_bytes: (num_chunks,). Raises ValueError if the run never finished.
    """
    if not np.isfinite(timeline.time_s):
        raise ValueError("a run that never finishes has no critical path")
    path = list(_hops(timeline, rows))[::-1]
    row = np.array([row for row, _, _ in path], dtype=np.int64)
    costs = TransferCosts(timeline, topology, chunk_bytes)
    sending_s = bytes_s(timeline, topology, chunk_bytes, row, rows.channel[row])
    # Of each activity without contention, in the order of time.
    alone: dict[Activity, dict[CostKind, Floats]] = {
        Activity.SENDING: {CostKind.OVERHEAD: costs.overhead_s(row), CostKind.BANDWIDTH: sending_s},
        Activity.TRAVELLING: {CostKind.LATENCY: np.full(len(row), np.inf)},
        Activity.APPLYING: {CostKind.OVERHEAD: costs.receive_overhead_s(row), CostKind.REDUCTION: costs.reduce_s(row)},
    }
    segments: list[PathSegment] = []
    for place, (number, activity, cause) in enumerate(path):
        begin_s, end_s = _times(timeline, number, activity)
        alone_s = {kind: float(column[place]) for kind, column in alone[activity].items()}
        for kind, seconds in _spent(begin_s, end_s, alone_s).items():
            segments.append(PathSegment(kind, number, begin_s, seconds, cause))
            begin_s += seconds
    return CriticalPath(timeline.time_s, tuple(segment for segment in segments if segment.seconds > 0))


def _spent(begin_s: float, end_s: float, costs: Mapping[CostKind, float]) -> dict[CostKind, float]:
    spent, rest_s = {}, end_s - begin_s
    for kind, alone_s in costs.items():
        spent[kind] = min(alone_s, rest_s)
        rest_s -= spent[kind]
    if rest_s <= ROUNDING * end_s:
        spent[max(spent, key=lambda kind: spent[kind])] += rest_s
        rest_s = 0.0
    return {**spent, CostKind.CONTENTION: rest_s}


def _times(timeline: Timeline, row: int, activity: Activity) -> tuple[float, float]:
    begin, end = activity.value
    return float(getattr(timeline, begin)[row]), float(getattr(timeline, end)[row])


def _hops(timeline: Timeline, rows: Dependencies) -> Iterator[tuple[int, Activity, Cause]]:
    row, activity = int(np.argmax(timeline.applied_s)) if len(timeline) else NO_ROW, Activity.APPLYING
    while row != NO_ROW:
        before = [known for known in _before(timeline, rows, row, activity) if known[1] != NO_ROW]
        start = Cause.START, NO_ROW, activity
        last = max(before, key=lambda known: _times(timeline, *known[1:])[1], default=start)
        yield row, activity, last[0]
        _, row, activity = last


def _before(
    timeline: Timeline, rows: Dependencies, row: int, activity: Activity
) -> Iterator[tuple[Cause, int, Activity]]:
    """Yield possible predecessors in the order of `Cause`; a row may be NO_ROW."""
    if activity is Activity.TRAVELLING:
        yield Cause.LEFT, row, Activity.SENDING
    elif activity is Activity.SENDING:
        yield Cause.READY, int(rows.data_dependency[row]), Activity.APPLYING
        yield Cause.CHANNEL, int(rows.before_on_channel[row]), Activity.SENDING
    else:
        yield Cause.ARRIVED, row, Activity.TRAVELLING
        yield Cause.TURN, int(rows.before_on_connection[row]), Activity.APPLYING
        yield Cause.TURN, int(rows.before_in_chunk[row]), Activity.APPLYING
        yield Cause.FREE, _last_to_leave(timeline, rows, int(rows.buffer_dependency[row])), Activity.SENDING


def _last_to_leave(timeline: Timeline, rows: Dependencies, free: int) -> int:
    """Return the row that left last, of `free` and its sender's earlier transfers of the chunk; or NO_ROW."""
    last = free
    while free != NO_ROW:
        if timeline.sent_s[free] >= timeline.sent_s[last]:
            last = free
        free = int(rows.sent_before[free])
    return last
