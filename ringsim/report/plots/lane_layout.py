"""`LaneLayout`: the places of the lanes, and the rows of their sendings."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringsim.report.plots.boxes import Floats
from ringsim.report.send_rows import pack_sends
from ringsim.schedule import Ints
from ringsim.simulation import Timeline

Ranks = npt.NDArray[np.integer]
Row = tuple[float | Floats, float | Floats]  # from and to, relative to the origin of a lane; down is positive

# A lane in which nothing is sent at the same time reaches from -0.4 to 0.4.
_TOP, _SENDS, _REDUCE = -0.40, 0.45, (0.09, 0.40)
_ROW_OF_MANY = 0.30


@dataclass(frozen=True, slots=True, eq=False)
class LaneLayout:
    """The lanes from top to bottom, in the unit of one that has a single row of sendings.

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
        """Returns a layout with as many rows to a lane as its rank sends at the same time, at most."""
        row = pack_sends(timeline)
        num_rows = np.ones(timeline.num_ranks, dtype=np.int64)
        np.maximum.at(num_rows, timeline.src, row + 1)
        row_height: Floats = np.where(num_rows > 1, _ROW_OF_MANY, _SENDS)
        extra: Floats = num_rows * row_height - _SENDS
        origin: Floats = np.arange(timeline.num_ranks) + np.cumsum(extra) - extra
        return cls(origin, extra, row_height, row)

    @property
    def height(self) -> float:
        """The height of all lanes together."""
        return float(len(self.origin) + self.extra.sum())

    @property
    def middle(self) -> Floats:
        """The heights at which the names of the ranks stand, (num_ranks,)."""
        return self.origin + self.extra / 2

    def sends(self, src: Ranks, row: Ints) -> Row:
        """Returns the rows of sendings of `src`."""
        top = _TOP + row * self.row_height[src]
        return top, top + self.row_height[src]

    def reduces(self, rank: Ranks) -> Row:
        """Returns the row at the bottom of a lane, which shows reductions and copies."""
        return _REDUCE[0] + self.extra[rank], _REDUCE[1] + self.extra[rank]

    def lane(self, rank: Ranks) -> Row:
        """Returns the whole lane."""
        return _TOP, _REDUCE[1] + self.extra[rank]
