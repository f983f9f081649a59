"""`LaneLayout`: where the lanes lie, and in which row of its lane a sending is drawn."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringsim.plots.boxes import Floats
from ringsim.schedule import Ints
from ringsim.timeline import Timeline

Ranks = npt.NDArray[np.integer]
Row = tuple[float | Floats, float | Floats]  # from and to, relative to the origin of a lane; down is positive

# A lane in which nothing is sent at the same time reaches from -0.4 to 0.4.
_TOP, _SENDS, _REDUCE = -0.40, 0.45, (0.09, 0.40)
_ROW_OF_MANY = 0.30
_ROUNDING = 1e-9  # of the whole time: what begins that little before the other's end begins with it


@dataclass(frozen=True, slots=True, eq=False)
class LaneLayout:
    """Lanes from top to bottom in the unit of one that has a single row of sendings.

    origin: y of each lane; with single rows the rank's number, shape (num_ranks,).
    extra: what the lane needs for more than one row, (num_ranks,). row_height: of its sendings, (num_ranks,).
    row: of each transfer within the lane of its sender, 0 on top, (num_transfers,).
    """

    origin: Floats
    extra: Floats
    row_height: Floats
    row: Ints

    @classmethod
    def of(cls, timeline: Timeline) -> "LaneLayout":
        """As many rows to a lane as its rank sends at the same time, at most."""
        row = pack_sends(timeline)
        num_rows = np.ones(timeline.num_ranks, dtype=np.int64)
        np.maximum.at(num_rows, timeline.src, row + 1)
        row_height: Floats = np.where(num_rows > 1, _ROW_OF_MANY, _SENDS)
        extra: Floats = num_rows * row_height - _SENDS
        origin: Floats = np.arange(timeline.num_ranks) + np.cumsum(extra) - extra
        return cls(origin, extra, row_height, row)

    @property
    def height(self) -> float:
        """Of all lanes together."""
        return float(len(self.origin) + self.extra.sum())

    @property
    def middle(self) -> Floats:
        """Where the name of each rank stands, (num_ranks,)."""
        return self.origin + self.extra / 2

    def sends(self, src: Ranks, row: Ints) -> Row:
        """The rows of sendings of `src`."""
        top = _TOP + row * self.row_height[src]
        return top, top + self.row_height[src]

    def reduces(self, rank: Ranks) -> Row:
        """The row at the bottom of a lane, where what arrives is applied."""
        return _REDUCE[0] + self.extra[rank], _REDUCE[1] + self.extra[rank]

    def lane(self, rank: Ranks) -> Row:
        """The whole lane."""
        return _TOP, _REDUCE[1] + self.extra[rank]


def pack_sends(timeline: Timeline) -> Ints:
    """A row for each transfer, so that no two of a sender's overlap in a row, in the fewest rows: (num_transfers,).

    Where there is a choice, a sending stays in the row of the last one to the same receiver.
    """
    rounding = _ROUNDING * timeline.time_s
    rows = np.zeros(len(timeline), dtype=np.int64)
    busy_until: list[list[float]] = [[] for _ in range(timeline.num_ranks)]
    receiver: list[list[int]] = [[] for _ in range(timeline.num_ranks)]
    columns = (timeline.src, timeline.dst, timeline.start_s, timeline.left_s)
    sends = list(zip(*(column.tolist() for column in columns), strict=True))
    # By their beginning: then any free row will do, and a new one is needed only where all are in use.
    for index in np.argsort(timeline.start_s, kind="stable").tolist():
        src, dst, start, left = sends[index]
        row = _free_row(busy_until[src], receiver[src], start + rounding, dst)
        if row == len(busy_until[src]):
            busy_until[src].append(left)
            receiver[src].append(dst)
        busy_until[src][row], receiver[src][row] = left, dst
        rows[index] = row
    return rows


def _free_row(busy_until: list[float], receiver: list[int], start: float, dst: int) -> int:
    free = [row for row, until in enumerate(busy_until) if until <= start]
    return next((row for row in free if receiver[row] == dst), free[0] if free else len(busy_until))
