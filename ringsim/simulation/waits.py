"""`Waits`: which transfers may start or be applied, as the arrows of `Dependencies` say, whenever others have.

Rows are counted as in `Dependencies`, and NO_ROW is the row before everything: all columns have one element more, the
last, for it. Rows that become ready at one moment are handled together, in arrays.
"""

import numpy as np
import numpy.typing as npt

from ringsim.network import Floats
from ringsim.schedule import NO_ROW, Bools, Dependencies, Rows, stable_order

Ints = npt.NDArray[np.signedinteger]  # row numbers take 32 bits, indices of arrays 64

FOR_EVER = 100  # more things to wait for than any row has


class Waits:
    """For how many things each row still waits, before it starts and before it is applied.

    free_after: (num_rows,), the send whose end frees the chunk that a row writes to (rule 4), if the row waits for it.
    free_s: (num_rows + 1,), of such a send, when it and those before it have left, filled in as that is known; None if
    no row waits so.
    sent_s: (num_rows + 1,), when each row has left, which the caller fills in.
    """

    def __init__(self, rows: Dependencies, sent_s: Floats) -> None:
        self._readers = Successors(rows.data_dependency)  # these first, since sorting needs room
        self.free_after = np.where(_is_free_anyway(rows), NO_ROW, rows.buffer_dependency)
        awaited = self.free_after[self.free_after != NO_ROW]
        self._writers = Successors(self.free_after) if len(awaited) else None
        self._chains = SendChains(rows, sent_s) if (rows.sent_before[awaited] != NO_ROW).any() else None
        self.free_s = self._chains.all_sent_s if self._chains else sent_s if self._writers else None
        self._to_start = _count(rows.data_dependency, rows.before_on_channel)
        self._to_apply = _count(rows.before_on_connection, rows.before_in_chunk, self.free_after)
        self._to_apply[:-1] += 1  # it must have arrived
        self._next_on_channel = following(rows.before_on_channel)
        self._next_on_connection = following(rows.before_on_connection)
        self._next_in_chunk = following(rows.before_in_chunk)

    def startable(self, first: int, last: int) -> Ints:
        """Return those of the rows from `first` to before `last` that wait for nothing before they start."""
        return first + np.flatnonzero(self._to_start[first:last] == 0)

    def after_send(self, row: Ints) -> tuple[Ints, Ints]:
        """Return the rows that may start, and those that may be applied, now that these have left."""
        may_start = _count_down(self._to_start, self._next_on_channel[row])
        may_apply = _count_down(self._to_apply, row)
        if self._writers:
            freeing = self._chains.completed_by(row) if self._chains else row
            may_apply = np.concatenate([may_apply, _count_down(self._to_apply, self._writers.of(freeing))])
        return may_start, may_apply

    def after_apply(self, row: Ints) -> tuple[Ints, Ints]:
        """Return the rows that may be applied, and those that may start, now that these have been applied."""
        may_apply = _count_down(self._to_apply, self._next_on_connection[row])
        in_chunk = self._next_in_chunk[row]
        if np.count_nonzero(in_chunk != NO_ROW):  # which seldom is, and looking is quicker
            may_apply = np.concatenate([may_apply, _count_down(self._to_apply, in_chunk)])
        return may_apply, _count_down(self._to_start, self._readers.of(row))


def _is_free_anyway(rows: Dependencies) -> Bools:
    """Return whether the chunk that a row writes to is free when the row arrives, so that it need not wait for that.

    It is if the receiver has sent the chunk only once, and to the sender, who had applied that before it sent the row.
    """
    last_send = rows.buffer_dependency
    was_received = (rows.dst[last_send] == rows.src) & (last_send <= rows.data_dependency)
    is_free: Bools = np.logical_and(was_received, rows.sent_before[last_send] == NO_ROW)
    return is_free


class Successors:
    """The rows that wait for a row, where many may wait for one."""

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
        successors: Ints = self._order[np.repeat(first, count) + within]
        return successors


class SendChains:
    """When a row and all sends of its chunk that its rank made before have left, where chunks are sent several times.

    all_sent_s: (num_rows + 1,), filled in as it is known.
    """

    def __init__(self, rows: Dependencies, sent_s: Floats) -> None:
        self.all_sent_s = unknown(len(rows))
        self._sent_s, self._before = sent_s, rows.sent_before
        self._next = following(rows.sent_before)
        self._waits = _count(rows.sent_before)
        self._waits[:-1] += 1  # it must have left itself

    def completed_by(self, row: Ints) -> Ints:
        """Return the rows that have left, with all before them, now that these have left."""
        completed = []
        self._waits[row] -= 1
        while len(row := row[self._waits[row] == 0]):
            self.all_sent_s[row] = np.maximum(self._sent_s[row], self.all_sent_s[self._before[row]])
            completed.append(row)
            row = self._next[row]
            row = row[row != NO_ROW]
            self._waits[row] -= 1
        return np.concatenate([row[:0], *completed])


def unknown(num_rows: int) -> Floats:
    """Return a time for each row, infinite until it is known, and 0 for the row before all others."""
    times = np.full(num_rows + 1, np.inf)
    times[-1] = 0.0
    return times


def following(before: Rows) -> Rows:
    """Return the inverse of a column in which no row is named twice: (num_rows + 1,); the last element is of no use."""
    after = np.full(len(before) + 1, NO_ROW, dtype=np.int32)
    after[before] = np.arange(len(before), dtype=np.int32)
    return after


def _count(*columns: Rows) -> Ints:
    """Return how many of the columns name a row: (num_rows + 1,); the last element never comes to 0."""
    count = np.full(len(columns[0]) + 1, FOR_EVER, dtype=np.int8)
    np.sum([column != NO_ROW for column in columns], axis=0, dtype=np.int8, out=count[:-1])
    return count


def _count_down(waits: Ints, row: Ints) -> Ints:
    """Take one thing off what each of these (none twice but NO_ROW) waits for; return those that wait no more."""
    waits[row] = left = waits[row] - 1
    waits[NO_ROW] = FOR_EVER
    ready: Ints = row[left == 0]
    return ready
