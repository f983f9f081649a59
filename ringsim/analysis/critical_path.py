"""`critical_path`: the chain of activities that took as long as the whole run.

Going back from the last application, each activity began when the last of what it had to wait for ended
(`Dependencies` says what that can be), so that one is before it on the path. Whatever is not on the path could have
been slower by a little without any harm.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from ringsim.network import Ints, Topology
from ringsim.schedule import NO_ROW, Dependencies
from ringsim.simulation import Timeline, bytes_s, costs_of

ROUNDING = 1e-9  # of the time so far: what an activity takes beyond its cost by less than that is no contention


class Activity(Enum):
    """The three activities that a transfer consists of."""

    SENDING = "sending"
    TRAVELLING = "travelling"
    APPLYING = "applying"


class Cause(Enum):
    """The cause after which an activity began; where several ended together, the first in this order."""

    ARRIVED = "it arrived"
    READY = "its chunk was written"
    CHANNEL = "the channel had sent what came before"
    TURN = "what came before it was applied"
    FREE = "its chunk had been sent"
    LEFT = "it left"
    START = "the start"


class Hop(NamedTuple):
    """One activity of the transfer in `row` of a timeline."""

    row: int
    activity: Activity
    begin_s: float
    end_s: float
    cause: Cause


class CostKind(Enum):
    """The kinds of costs on the critical path."""

    LATENCY = "latency"
    BANDWIDTH = "bandwidth"  # bytes, at the speed that they would have alone
    CONTENTION = "contention"  # what bytes, overheads and reductions take longer since others use the same
    REDUCTION = "reduction"
    OVERHEAD = "overhead"  # of a message, at either end
    WAITING = "waiting"  # for nothing that the schedule asks for: 0 in a simulation, as each wait has its cause


class PathSegment(NamedTuple):
    """A segment of the path, which `rank` is at on behalf of the transfer from `src` to `dst`.

    cause: what the activity had waited for; all segments of one activity have it in common.
    """

    kind: CostKind
    rank: int
    src: int
    dst: int
    step: int
    chunk: int
    begin_s: float
    seconds: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The segments in the order of time: each begins where the one before it ends, so together they take `time_s`."""

    time_s: float
    segments: tuple[PathSegment, ...]

    @property
    def num_transfers(self) -> int:
        """How many transfers have a part in it."""
        return len({(segment.step, segment.src, segment.dst, segment.chunk) for segment in self.segments})

    def seconds(self) -> dict[CostKind, float]:
        """Return what was spent on each kind."""
        spent = dict.fromkeys(CostKind, 0.0)
        for segment in self.segments:
            spent[segment.kind] += segment.seconds
        return spent

    def shares(self) -> dict[CostKind, float]:
        """Return the same as fractions of the time, which add up to 1; all 0 where no time passes."""
        return {kind: seconds / self.time_s if self.time_s > 0 else 0.0 for kind, seconds in self.seconds().items()}


def critical_path(timeline: Timeline, rows: Dependencies, topology: Topology, chunk_bytes: Ints) -> CriticalPath:
    """Return the path of a run that has finished, `rows` being what its transfers waited for.

    Where several things that an activity waited for ended last, the first in the order of `Cause` is on the path;
    where several transfers were applied last, the one listed first.

    chunk_bytes: (num_chunks,).

    Raises ValueError if the run never finished.
    """
    if not np.isfinite(timeline.time_s):
        raise ValueError("a run that never finishes has no critical path")
    path = list(_hops(timeline, rows))
    segments: list[PathSegment] = []
    for hop, costs in zip(path, _costs(timeline, rows, topology, chunk_bytes, path), strict=True):
        segments += _segments(timeline, hop, costs)[::-1]
    return CriticalPath(timeline.time_s, tuple(segment for segment in reversed(segments) if segment.seconds > 0))


Costs = Sequence[tuple[CostKind, float]]  # of one activity if nothing else were going on, in the order of time


def _costs(
    timeline: Timeline, rows: Dependencies, topology: Topology, chunk_bytes: Ints, path: Sequence[Hop]
) -> list[Costs]:
    row = np.array([hop.row for hop in path], dtype=np.int64)
    own = costs_of(timeline, topology, chunk_bytes, row)
    sending_s = bytes_s(timeline, topology, chunk_bytes, row, rows.channel[row])
    columns = (own.send_overhead_s, sending_s, own.receive_overhead_s)
    parts = zip(*(column.tolist() for column in (*columns, own.reduce_s)), strict=True)
    costs: list[Costs] = []
    for hop, (send_overhead_s, sending_s, receive_overhead_s, reduce_s) in zip(path, parts, strict=True):
        if hop.activity is Activity.SENDING:
            costs.append([(CostKind.OVERHEAD, send_overhead_s), (CostKind.BANDWIDTH, sending_s)])
        elif hop.activity is Activity.APPLYING:
            costs.append([(CostKind.OVERHEAD, receive_overhead_s), (CostKind.REDUCTION, reduce_s)])
        else:
            costs.append([(CostKind.LATENCY, hop.end_s - hop.begin_s)])
    return costs


def _segments(timeline: Timeline, hop: Hop, costs: Costs) -> list[PathSegment]:
    """Return an activity cut into what it costs alone and, last, the rest."""
    spent: list[tuple[CostKind, float]] = []
    begin_s, rest_s = hop.begin_s, hop.end_s - hop.begin_s
    for kind, alone_s in costs:
        spent.append((kind, min(alone_s, rest_s)))
        rest_s -= spent[-1][1]
    if rest_s <= ROUNDING * hop.end_s:
        largest = max(range(len(spent)), key=lambda place: spent[place][1])
        spent[largest] = spent[largest][0], spent[largest][1] + rest_s
        rest_s = 0.0
    segments = []
    for kind, seconds in (*spent, (CostKind.CONTENTION, rest_s)):
        segments.append(_segment(timeline, hop, kind, begin_s, seconds))
        begin_s += seconds
    return segments


def _segment(timeline: Timeline, hop: Hop, kind: CostKind, begin_s: float, seconds: float) -> PathSegment:
    row = hop.row
    src, dst, step, chunk = (int(column[row]) for column in (timeline.src, timeline.dst, timeline.step, timeline.chunk))
    rank = src if hop.activity is Activity.SENDING else dst
    return PathSegment(kind, rank, src, dst, step, chunk, begin_s, seconds, hop.cause)


Candidate = tuple[float, Cause, int, Activity]  # when it ended, and what it was


def _hops(timeline: Timeline, rows: Dependencies) -> Iterator[Hop]:
    """From the last application back to the start; none if nothing was sent."""
    if not len(timeline):
        return
    before = _Before(timeline, rows)
    row, activity = int(np.argmax(timeline.applied_s)), Activity.APPLYING
    while True:
        begin_s, end_s = before.times(row, activity)
        candidates = before.candidates(row, activity, begin_s)
        if not candidates:
            yield Hop(row, activity, begin_s, end_s, Cause.START)
            return
        _, cause, next_row, next_activity = max(candidates, key=lambda candidate: candidate[0])
        yield Hop(row, activity, begin_s, end_s, cause)
        row, activity = next_row, next_activity


class _Before:
    """The activities that can have come before another."""

    def __init__(self, timeline: Timeline, rows: Dependencies) -> None:
        self._timeline, self._rows = timeline, rows

    def times(self, row: int, activity: Activity) -> tuple[float, float]:
        """When it began and ended."""
        timeline = self._timeline
        begin, end = {
            Activity.SENDING: (timeline.start_s, timeline.sent_s),
            Activity.TRAVELLING: (timeline.sent_s, timeline.arrived_s),
            Activity.APPLYING: (timeline.apply_s, timeline.applied_s),
        }[activity]
        return float(begin[row]), float(end[row])

    def candidates(self, row: int, activity: Activity, begin_s: float) -> list[Candidate]:
        """In the order of `Cause`."""
        if activity is Activity.TRAVELLING:
            return [(begin_s, Cause.LEFT, row, Activity.SENDING)]
        rows = self._rows
        if activity is Activity.SENDING:
            candidates = [
                self._applied(Cause.READY, int(rows.data_dependency[row])),
                self._left(Cause.CHANNEL, int(rows.before_on_channel[row])),
            ]
        else:
            arrived_s = float(self._timeline.arrived_s[row])
            candidates = [
                (arrived_s, Cause.ARRIVED, row, Activity.TRAVELLING),
                self._applied(Cause.TURN, int(rows.before_on_connection[row])),
                self._applied(Cause.TURN, int(rows.before_in_chunk[row])),
                self._left(Cause.FREE, self._last_to_leave(int(rows.buffer_dependency[row]))),
            ]
        return [candidate for candidate in candidates if candidate is not None]

    def _applied(self, cause: Cause, row: int) -> Candidate | None:
        return None if row == NO_ROW else (float(self._timeline.applied_s[row]), cause, row, Activity.APPLYING)

    def _left(self, cause: Cause, row: int) -> Candidate | None:
        return None if row == NO_ROW else (float(self._timeline.sent_s[row]), cause, row, Activity.SENDING)

    def _last_to_leave(self, free: int) -> int:
        """Of all that the sender of row `free` sent of its chunk up to it, the last to leave; of several the first."""
        last = free
        while free != NO_ROW:
            if self._timeline.sent_s[free] >= self._timeline.sent_s[last]:
                last = free
            free = int(self._rows.sent_before[free])
        return last
