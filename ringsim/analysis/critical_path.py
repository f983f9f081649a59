"""`critical_path`: the chain of activities that took as long as the whole run.

Going back from the last application, each activity began when the last of what it had to wait for ended
(`Dependencies` says what that can be), so that one is before it on the path. Whatever is not on the path could have
been slower by a little without any harm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from ringsim.analysis.binding import After, Doing, Hop, hops
from ringsim.network import Ints, Machine
from ringsim.schedule import Dependencies
from ringsim.simulation import Timeline, bytes_s, costs_of

ROUNDING = 1e-9  # of the time so far: what an activity takes beyond its cost by less than that is no contention


class Kind(Enum):
    """What time on the critical path is spent on."""

    LATENCY = "latency"
    BANDWIDTH = "bandwidth"  # bytes, at the speed that they would have alone
    CONTENTION = "contention"  # what bytes, overheads and reductions take longer since others use the same
    REDUCTION = "reduction"
    OVERHEAD = "overhead"  # of a message, at either end
    WAITING = "waiting"  # for nothing that the schedule asks for: never in a simulation, but in what is measured


class Segment(NamedTuple):
    """A piece of the path, which `rank` is at on behalf of the transfer from `src` to `dst`.

    after: what the activity had waited for; all pieces of one activity have it in common.
    """

    kind: Kind
    rank: int
    src: int
    dst: int
    step: int
    chunk: int
    begin_s: float
    seconds: float
    after: After


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The pieces in the order of time: each begins where the one before it ends, so together they take `time_s`."""

    time_s: float
    segments: tuple[Segment, ...]

    @property
    def num_transfers(self) -> int:
        """How many transfers have a part in it."""
        return len({(each.step, each.src, each.dst, each.chunk) for each in self.segments})

    def seconds(self) -> dict[Kind, float]:
        """What was spent on each kind."""
        spent = dict.fromkeys(Kind, 0.0)
        for segment in self.segments:
            spent[segment.kind] += segment.seconds
        return spent

    def shares(self) -> dict[Kind, float]:
        """The same as fractions of the time, which add up to 1; all 0 where no time passes."""
        return {kind: seconds / self.time_s if self.time_s > 0 else 0.0 for kind, seconds in self.seconds().items()}


def critical_path(
    timeline: Timeline, rows: Dependencies, machine: Machine, chunk_bytes: Ints, *, tolerance_s: float = 0.0
) -> CriticalPath:
    """The path of a run that has finished, `rows` being what its transfers waited for.

    Where several things that an activity waited for ended last, the first in the order of `After` is on the path;
    where several transfers were applied last, the one listed first.

    chunk_bytes: (num_chunks,).
    tolerance_s: what ended so little before the last counts as having ended with it; for measured times.

    Raises ValueError if the run never finished.
    """
    if not np.isfinite(timeline.time_s):
        raise ValueError("a run that never finishes has no critical path")
    path = list(hops(timeline, rows, tolerance_s))
    segments: list[Segment] = []
    until_s, after_it = timeline.time_s, path[0] if path else None
    for hop, costs in zip(path, _costs(timeline, machine, chunk_bytes, path), strict=True):
        # By measured clocks an activity may seem to begin before the one that it waited for has ended.
        end_s = min(hop.end_s, until_s)
        begin_s = min(hop.begin_s, end_s)
        if after_it is not None:
            segments.append(_segment(timeline, after_it, Kind.WAITING, end_s, until_s - end_s))
        segments += _pieces(timeline, hop, costs, begin_s, end_s)[::-1]
        until_s, after_it = begin_s, hop
    if after_it is not None:
        segments.append(_segment(timeline, after_it, Kind.WAITING, 0.0, until_s))
    return CriticalPath(timeline.time_s, tuple(each for each in reversed(segments) if each.seconds > 0))


Costs = Sequence[tuple[Kind, float]]  # of one activity if nothing else were going on, in the order of time


def _costs(timeline: Timeline, machine: Machine, chunk_bytes: Ints, path: Sequence[Hop]) -> list[Costs]:
    row = np.array([hop.row for hop in path], dtype=np.int64)
    costs = costs_of(timeline, machine, chunk_bytes, row)
    columns = (costs.send_overhead_s, bytes_s(timeline, machine, chunk_bytes, row), costs.receive_overhead_s)
    parts = zip(*(column.tolist() for column in (*columns, costs.reduce_s)), strict=True)
    of: list[Costs] = []
    for hop, (send_overhead_s, sending_s, receive_overhead_s, reduce_s) in zip(path, parts, strict=True):
        if hop.doing is Doing.SENDING:
            of.append([(Kind.OVERHEAD, send_overhead_s), (Kind.BANDWIDTH, sending_s)])
        elif hop.doing is Doing.APPLYING:
            of.append([(Kind.OVERHEAD, receive_overhead_s), (Kind.REDUCTION, reduce_s)])
        else:
            of.append([(Kind.LATENCY, hop.end_s - hop.begin_s)])
    return of


def _pieces(timeline: Timeline, hop: Hop, costs: Costs, begin_s: float, end_s: float) -> list[Segment]:
    """An activity cut into what it costs alone and, last, the rest; all of it from `begin_s` to `end_s`."""
    spent: list[tuple[Kind, float]] = []
    rest_s = end_s - begin_s
    for kind, alone_s in costs:
        spent.append((kind, min(alone_s, rest_s)))
        rest_s -= spent[-1][1]
    if rest_s <= ROUNDING * end_s:
        largest = max(range(len(spent)), key=lambda place: spent[place][1])
        spent[largest] = spent[largest][0], spent[largest][1] + rest_s
        rest_s = 0.0
    pieces = []
    for kind, seconds in (*spent, (Kind.CONTENTION, rest_s)):
        pieces.append(_segment(timeline, hop, kind, begin_s, seconds))
        begin_s += seconds
    return pieces


def _segment(timeline: Timeline, hop: Hop, kind: Kind, begin_s: float, seconds: float) -> Segment:
    row = hop.row
    src, dst, step, chunk = (int(column[row]) for column in (timeline.src, timeline.dst, timeline.step, timeline.chunk))
    rank = src if hop.doing is Doing.SENDING else dst
    return Segment(kind, rank, src, dst, step, chunk, begin_s, seconds, hop.after)
