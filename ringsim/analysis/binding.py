"""What each activity of a run had waited for: the hops of a critical path, from its last to its first."""

from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import NamedTuple

import numpy as np

from ringsim.network import Floats, Ints
from ringsim.schedule import NONE, Dependencies, stable_order
from ringsim.simulation import Timeline


class Doing(Enum):
    """The three activities that a transfer consists of."""

    SENDING = "sending"
    TRAVELLING = "travelling"
    APPLYING = "applying"


class After(Enum):
    """What an activity began after; where several ended together, the first in this order."""

    ARRIVED = "it arrived"
    READY = "its chunk was written"
    LINK = "the link had sent what came before"
    TURN = "the rank had applied what came before"
    FREE = "the rank had sent what it held"
    LEFT = "it left"
    START = "the start"


class Hop(NamedTuple):
    """One activity of the transfer in `row` of a timeline."""

    row: int
    doing: Doing
    begin_s: float
    end_s: float
    after: After


Candidate = tuple[float, After, int, Doing]  # when it ended, and what it was


def hops(timeline: Timeline, rows: Dependencies, tolerance_s: float) -> Iterator[Hop]:
    """From the last application back to the start; none if nothing was sent."""
    if not len(timeline):
        return
    before = _Before(timeline, rows)
    row, doing = int(np.argmax(timeline.applied_s)), Doing.APPLYING
    while True:
        begin_s, end_s = before.times(row, doing)
        candidates = before.candidates(row, doing, begin_s)
        if not candidates:
            yield Hop(row, doing, begin_s, end_s, After.START)
            return
        last_s = max(ended_s for ended_s, *_ in candidates)
        _, after, next_row, next_doing = next(each for each in candidates if each[0] >= last_s - tolerance_s)
        yield Hop(row, doing, begin_s, end_s, after)
        row, doing = next_row, next_doing


class _Before:
    """What can have come before an activity."""

    def __init__(self, timeline: Timeline, rows: Dependencies) -> None:
        self._timeline, self._rows = timeline, rows
        self._sent_by = cache(self._sends)
        self._order: Ints | None = None

    def times(self, row: int, doing: Doing) -> tuple[float, float]:
        """When it began and ended."""
        timeline = self._timeline
        begin, end = {
            Doing.SENDING: (timeline.start_s, timeline.left_s),
            Doing.TRAVELLING: (timeline.left_s, timeline.arrived_s),
            Doing.APPLYING: (timeline.apply_s, timeline.applied_s),
        }[doing]
        return float(begin[row]), float(end[row])

    def candidates(self, row: int, doing: Doing, begin_s: float) -> list[Candidate]:
        """In the order of `After`."""
        if doing is Doing.TRAVELLING:
            return [(begin_s, After.LEFT, row, Doing.SENDING)]
        rows = self._rows
        if doing is Doing.SENDING:
            found = [
                self._applied(After.READY, int(rows.ready[row])),
                self._left(After.LINK, int(rows.before_on_link[row])),
            ]
        else:
            arrived_s = float(self._timeline.arrived_s[row])
            found = [
                (arrived_s, After.ARRIVED, row, Doing.TRAVELLING),
                self._applied(After.TURN, int(rows.before_at_dst[row])),
                self._left(After.FREE, self._last_to_leave(int(rows.free[row]))),
            ]
        return [candidate for candidate in found if candidate is not None]

    def _applied(self, after: After, row: int) -> Candidate | None:
        return None if row == NONE else (float(self._timeline.applied_s[row]), after, row, Doing.APPLYING)

    def _left(self, after: After, row: int) -> Candidate | None:
        return None if row == NONE else (float(self._timeline.left_s[row]), after, row, Doing.SENDING)

    def _last_to_leave(self, free: int) -> int:
        """Of all that its sender has sent up to row `free`, the one that left last; of several the first."""
        if free == NONE:
            return NONE
        sent, latest = self._sent_by(int(self._rows.src[free]))
        until_s = latest[np.searchsorted(sent, free)]
        return int(sent[np.searchsorted(latest, until_s)])

    def _sends(self, rank: int) -> tuple[Ints, Floats]:
        """The rows in which a rank sends, and for each of them when the last so far has left."""
        if self._order is None:
            self._order = stable_order(self._rows.src)
        first, end = np.searchsorted(self._rows.src, [rank, rank + 1], sorter=self._order)
        sent = self._order[first:end]
        return sent, np.maximum.accumulate(self._timeline.left_s[sent])
