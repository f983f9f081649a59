"""Who waits for whom among the rows of `Dependencies`, and what becomes known when a row is done."""

import numpy as np
import numpy.typing as npt

from ringsim.network import Floats
from ringsim.schedule import NO_ROW, Dependencies, Rows, stable_order

Ints = npt.NDArray[np.signedinteger]  # row numbers take 32 bits, indices of arrays 64
Bools = npt.NDArray[np.bool_]

# The columns of `Dependencies` that name a row before.
ROWS_BEFORE = (
    "data_dependency", "before_on_channel", "before_on_connection", "before_in_chunk", "sent_before",
    "buffer_dependency",
)  # fmt: skip
FOLLOWED_ONCE = ROWS_BEFORE[1:5]  # at most one row names a row in such a column
FOR_EVER = 100  # more things to wait for than any row has


class Followers:
    """Who waits for a row, where many may wait for one."""

    def __init__(self, waits_for: Rows) -> None:
        waiting = np.flatnonzero(waits_for != NO_ROW).astype(np.int32)
        self._order = waiting[stable_order(waits_for[waiting])]
        counts = np.bincount(waits_for[waiting], minlength=len(waits_for))
        self._first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    def of(self, row: Ints) -> Ints:
        first = self._first[row]
        count = self._first[row + 1] - first
        if count.max(initial=0) <= 1:  # as in rings; the general way takes three times as long
            one: Ints = self._order[first[count > 0]]
            return one
        total = np.cumsum(count)
        within = np.arange(total[-1]) - np.repeat(total - count, count)
        followers: Ints = self._order[np.repeat(first, count) + within]
        return followers


class Leaving:
    """For rule 4: until when all that a rank has sent of a chunk up to some row have left."""

    def __init__(self, rows: Dependencies) -> None:
        self.needed = bool((rows.buffer_dependency != NO_ROW).any())
        if self.needed:
            self._freed = Followers(rows.buffer_dependency)
            self._before = rows.sent_before
            self._until_s = unknown(len(rows))
            self._waits = how_many(rows.sent_before)
            self._waits[:-1] += 1  # it must have left itself
            self._next = following(rows.sent_before)

    def until_s(self, row: Rows) -> Floats | float:
        return self._until_s[row] if self.needed else 0.0

    def forget_who_waits(self) -> None:
        """Make room when nobody will ask for more than times."""
        if self.needed:
            del self._freed, self._before, self._waits, self._next

    def freed_by(self, row: Ints, left_s: Floats) -> Ints:
        """Those that wait for no more sends now that these have left."""
        freed = []
        self._waits[row] -= 1
        while len(row := row[self._waits[row] == 0]):
            self._until_s[row] = np.maximum(left_s[row], self._until_s[self._before[row]])
            freed.append(self._freed.of(row))
            row = self._next[row]
            row = row[row != NO_ROW]
            self._waits[row] -= 1
        return np.concatenate([row[:0], *freed])


def unknown(num_rows: int) -> Floats:
    """A time for each row, infinite until it is known, and 0 for the row before all others."""
    times = np.full(num_rows + 1, np.inf)
    times[-1] = 0.0
    return times


def how_many(*columns: Rows) -> Ints:
    """(num_rows + 1,): how many of them name a row; the last element is for NO_ROW, which never comes to an end."""
    count = np.full(len(columns[0]) + 1, FOR_EVER, dtype=np.int8)
    np.sum([column != NO_ROW for column in columns], axis=0, dtype=np.int8, out=count[:-1])
    return count


def following(before: Rows) -> Rows:
    """(num_rows + 1,): the inverse of a column in which no row is named twice; the last element means nothing."""
    after = np.full(len(before) + 1, NO_ROW, dtype=np.int32)
    after[before] = np.arange(len(before), dtype=np.int32)
    return after
