"""`Waits`: the transfers that may start or be applied after others, as `Dependencies` says.

NO_ROW is the row before all others, and the last element of every column. Rows of one moment are handled in arrays.
"""

import numpy as np
import numpy.typing as npt

from ringsim.network import Floats
from ringsim.schedule import NO_ROW, Bools, Dependencies, Rows, stable_order

Ints = npt.NDArray[np.signedinteger]  # row numbers take 32 bits, indices of arrays 64

NEVER_READY = 100  # more things to wait for than any row has


class Waits:
    """For how many things each row still waits, before its start and before its application.

    free_after: (num_rows,), the send whose end frees the chunk that a row writes (rule 4), if the row waits for it.
    free_s: (num_rows + 1,), when that send and all before it have left; None if no row waits for one.
    sent_s: (num_rows + 1,), when each row has left; the caller fills it in.
    """

    def __init__(self, rows: Dependencies, sent_s: Floats) -> None:
        self._readers = Successors(rows.data_dependency)  # these first, since sorting needs room
        self.free_after = np.where(_is_free_on_arrival(rows), NO_ROW, rows.buffer_dependency)
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
        return first + np.flatnonzero(self._to_start[first:last] == 0)

    def after_send(self, row: Ints) -> tuple[Ints, Ints]:
        """Return the rows that may start, and those that may be applied, after these have left."""
        may_start = _count_down(self._to_start, self._next_on_channel[row])
        may_apply = _count_down(self._to_apply, row)
        if self._writers:
            freeing = self._chains.completed_by(row) if self._chains else row
            may_apply = np.concatenate([may_apply, _count_down(self._to_apply, self._writers.of(freeing))])
        return may_start, may_apply

    def after_apply(self, row: Ints) -> tuple[Ints, Ints]:
        """Return the rows that may now be applied, and the rows that may start, after these have been applied."""
        may_apply = _count_down(self._to_apply, self._next_on_connection[row])
        in_chunk = self._next_in_chunk[row]
        if np.count_nonzero(in_chunk != NO_ROW):  # which seldom is, and looking is quicker
            may_apply = np.concatenate([may_apply, _count_down(self._to_apply, in_chunk)])
        return may_apply, _count_down(self._to_start, self._readers.of(row))


def _is_free_on_arrival(rows: Dependencies) -> Bools:
    """Return whether the chunk that a row writes is free on arrival.

    It is if the receiver has sent it only once, and to the sender, who applied it before sending the row.
    """
    last_send = rows.buffer_dependency
    was_received = (rows.dst[last_send] == rows.src) & (last_send <= rows.data_dependency)
    is_free: Bools = np.logical_and(was_received, rows.sent_before[last_send] == NO_ROW)
    return is_free


class Successors:
    """The rows that wait for a row."""

    def __init__(self, waits_for: Rows) -> None:
        waiting = np.flatnonzero(waits_for != NO_ROW).astype(np.int32)
        self._order = waiting[stable_order(waits_for[waiting])]
        counts = np.bincount(waits_for[waiting], minlength=len(waits_for))
        self._first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    def of(self, row: Ints) -> Ints:
        first = self._first[row]
        count = self._first[row + 1] - first
        if count.max(initial=0) <= 1:  # as in rings; the general case takes three times longer
            one: Ints = self._order[first[count > 0]]
            return one
        total = np.cumsum(count)
        within = np.arange(total[-1]) - np.repeat(total - count, count)
        successors: Ints = self._order[np.repeat(first, count) + within]
        return successors


class SendChains:
    """When a row and all earlier sends of its chunk by its rank have left, if chunks are sent several times.

    all_sent_s: (num_rows + 1,), filled in once known.
    """

    def __init__(self, rows: Dependencies, sent_s: Floats) -> None:
        self.all_sent_s = unknown(len(rows))
        self._sent_s, self._before = sent_s, rows.sent_before
        self._next = following(rows.sent_before)
        self._waits = _count(rows.sent_before)
        self._waits[:-1] += 1  # it must have left itself

    def completed_by(self, row: Ints) -> Ints:
        """Return the rows that have left together with all earlier ones, after these have left."""
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
    """Return a time per row: infinite for unknown, and 0 for the row before all others."""
    times = np.full(num_rows + 1, np.inf)
    times[-1] = 0.0
    return times


def following(before: Rows) -> Rows:
    """Return the inverse of a column without repetitions: (num_rows + 1,); the last element has no meaning."""
    after = np.full(len(before) + 1, NO_ROW, dtype=np.int32)
    after[before] = np.arange(len(before), dtype=np.int32)
    return after


def _count(*columns: Rows) -> Ints:
    """Return how many of the columns name a row: (num_rows + 1,); the last element never reaches 0."""
    count = np.full(len(columns[0]) + 1, NEVER_READY, dtype=np.int8)
    np.sum([column != NO_ROW for column in columns], axis=0, dtype=np.int8, out=count[:-1])
    return count


def _count_down(waits: Ints, row: Ints) -> Ints:
    """Reduce the waits of these rows (only NO_ROW may repeat) by one; return the rows without further waits."""
    waits[row] = left = waits[row] - 1
    waits[NO_ROW] = NEVER_READY
    ready: Ints = row[left == 0]
    return ready
