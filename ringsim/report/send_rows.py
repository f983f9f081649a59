"""`pack_sends`: rows for what a rank sends at the same time, in pictures and traces."""

import numpy as np

from ringsim.schedule import Ints
from ringsim.simulation import Timeline

_ROUNDING = 1e-9  # of the whole time: what begins that little before the other's end begins with it


def pack_sends(timeline: Timeline) -> Ints:
    """Return a row for each transfer, (num_transfers,), in the fewest rows without overlaps of one sender.

    Where there is a choice, a sending stays in the row of the last one to the same receiver.
    """
    rounding = _ROUNDING * timeline.until_s
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
