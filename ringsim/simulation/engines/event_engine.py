"""The event engine: a schedule in virtual time on a topology whose ranks share things.

A transfer goes through these states. The arrows of `Dependencies` say what it waits for; a time is known as soon as all
times that it waits for are known.

    waiting to start      its chunk is being written on the sender (rule 1), or the channel is busy (rule 2)
      | start_s           `_start`: the channel is taken
    preparing             the sender's overhead, on a core of the host if cores are scarce
      |                   `_send`
    sending               its bytes go over the connection, at a fair share of what they use
      | left_s            `_leave`: the channel is free, and the chunk on the sender may be overwritten (rule 4)
    travelling            the latency of the path
      | arrived_s
    waiting to be applied an earlier one on the connection or for the chunk is not applied yet (rule 3), or
      |                   the receiver still sends what would be overwritten (rule 4)
      | apply_s           `_apply`
    being applied         the receiver's overhead, and adding, on a core of the host if cores are scarce
      | applied_s         `_be_applied`: the next ones may start or be applied

Two of these take a time that depends on what else is going on: bytes that share a resource, and work on scarce cores.
Such work is begun in a slot of `Slots`, and `Activities` says when the next work ends (`_end`). All other times are a
maximum and a sum, known at once. Whatever becomes known at one moment is dealt with together, in arrays: `_later` takes
note of rows and what to do with them, `_settle` does it until nothing more follows, and `_run_clock` then goes on to
the next moment at which work ends.

How many things a row waits for is counted in `_start_waits` and `_apply_waits`; at 0 its next time is known. Rows
behind the last one that shares anything (`_first_of_tail`) need no clock, and are dealt with when it has stopped.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringsim.network import NONE, Floats, Topology
from ringsim.schedule import NO_ROW, Bools, Dependencies, Rows, stable_order
from ringsim.simulation.engines.rates import Activities
from ringsim.simulation.routes import Connections, connections_of, number_connections
from ringsim.simulation.timeline import OnProgress, Timeline, ignore_progress

Ints = npt.NDArray[np.signedinteger]  # row numbers take 32 bits, indices of arrays 64

# The columns of `Dependencies` that name a row before.
ROWS_BEFORE = (
    "data_dependency", "before_on_channel", "before_on_connection", "before_in_chunk", "sent_before",
    "buffer_dependency",
)  # fmt: skip
FOLLOWED_ONCE = ROWS_BEFORE[1:5]  # at most one row names a row in such a column
FOR_EVER = 100  # more things to wait for than any row has
UNLIMITED = 1e30  # bytes a second; rates are finite
ROWS_AT_ONCE = 2**16  # when the timeline is written, to need little memory besides


class CopyCounts(NamedTuple):
    """What ranks copy that read in place what they receive; (num_rows,) each.

    published: whether the sender copies the chunk to where the receiver reads it.
    at_receiver: how many copies of the chunk take as long as what the receiver does beside adding.
    """

    published: Bools
    at_receiver: Floats


def run_events(
    rows: Dependencies,
    topology: Topology,
    chunk_bytes: Ints,
    on_progress: OnProgress = ignore_progress,
    copies: CopyCounts | None = None,
) -> Timeline:
    """Return every transfer of a schedule with its times; infinite for what cannot happen because something failed.

    chunk_bytes: (num_chunks,). copies: see `EventRun`.
    """
    run = EventRun(rows, topology, chunk_bytes, on_progress=on_progress, copies=copies)
    run.finish()
    return run.timeline()


class EventRun:
    """How far every transfer is. Rows are counted as in `Dependencies`; row -1 is before everything, at time 0.

    num_workers: of a queue, each with connections and a timer of its own; 0 if there is none. Rows belong to the first.
    on_progress: see `simulate`.
    sent_on: for each row the number of its connection, and all connections; without it as the topology has them.
    copies: what is copied where ranks read in place what they receive; None if messages travel.
    """

    def __init__(
        self,
        rows: Dependencies,
        topology: Topology,
        chunk_bytes: Ints,
        num_workers: int = 0,
        on_progress: OnProgress = ignore_progress,
        sent_on: tuple[Rows, Connections] | None = None,
        copies: CopyCounts | None = None,
    ) -> None:
        self._copies = copies
        self._on_progress = on_progress
        self._rows, self._topology = rows, topology
        self._connection, self._connections = sent_on or _sent_on(rows, topology, num_workers)
        self._num_connections = len(self._connections.src) // max(num_workers, 1)  # of each worker
        self._starters = Followers(rows.data_dependency)  # these first, since sorting needs room
        self._leaving = Leaving(rows)
        self._left_s, self._applied_s = unknown(len(rows)), unknown(len(rows))
        self._bytes = chunk_bytes.astype(np.float64)
        self._jitter = _jitter(topology, rows)
        self._start_waits = how_many(rows.data_dependency, rows.before_on_channel)
        self._apply_waits = how_many(rows.before_on_connection, rows.before_in_chunk, rows.buffer_dependency)
        self._apply_waits[:-1] += 1  # it must have arrived
        self._next_on_channel = following(rows.before_on_channel)
        self._next_on_connection, self._next_in_chunk = (
            following(rows.before_on_connection), following(rows.before_in_chunk)
        )  # fmt: skip
        self._slots = Slots(self._connections, topology, num_timers=num_workers)
        self._cores_are_scarce = bool((topology.processors.cores != NONE).any())
        processors = topology.processors
        self._applying_is_free = bool(np.isinf(processors.reduce_bytes_per_s).all())
        self._applying_is_free &= not processors.receive_overhead_s.any() and copies is None
        self._tail = self._first_of_tail()
        self._held: list[Ints] = []
        self._todo: dict[Callable[[Ints], None], list[Ints]] = {}

    def finish(self) -> None:
        """Run until nothing more can happen."""
        self._later(self._start, np.flatnonzero(self._start_waits[:-1] == 0))
        self._run_clock()
        self._tail = len(self._rows)
        self._later(self._start, np.concatenate([np.empty(0, dtype=np.int64), *self._held]))
        self._settle()

    @property
    def time_s(self) -> float:
        """When the last row has been applied; infinite if one never is."""
        return float(self._applied_s[:-1].max(initial=0.0))

    def _run_clock(self) -> None:
        """From one moment at which work ends to the next, until there is none."""
        self._settle()
        while True:
            slot, ends_s = self._slots.activities.next_ended()
            if not len(slot):
                break
            self._end(slot, ends_s)
            self._settle()

    def _first_of_tail(self) -> int:
        """Return the row from which on nothing is shared, nor can anything have to do with what is.

        What comes of these rows is left until the clock has stopped: then it is found out for all at once.
        """
        if self._cores_are_scarce:
            return len(self._rows)
        shared = np.flatnonzero(self._slots.shares[self._connection])
        last_step = self._rows.step[shared[-1]] if len(shared) else NO_ROW
        return int(np.searchsorted(self._rows.step, last_step, side="right"))

    def timeline(self) -> Timeline:
        """Return what is known of every transfer."""
        rows = self._rows
        # Make room: these have served their time.
        del self._starters, self._next_on_channel, self._next_on_connection, self._next_in_chunk
        del self._start_waits, self._apply_waits
        self._leaving.forget_who_waits()
        start_s, arrived_s, apply_s = (np.empty(len(rows)) for _ in range(3))
        for first in range(0, len(rows), ROWS_AT_ONCE):
            row = np.arange(first, min(first + ROWS_AT_ONCE, len(rows)))
            start_s[row] = self._starts_at(row)
            arrived_s[row] = self._arrives_at(row)
            apply_s[row] = self._is_applied_from(row)
        columns = rows.step, rows.src, rows.dst, rows.chunk, rows.reduce
        times = start_s, self._left_s[:-1], arrived_s, apply_s, self._applied_s[:-1]
        return Timeline(self._topology.num_ranks, len(self._bytes), *columns, *times)

    def _starts_at(self, row: Ints) -> Floats:
        ready_s, channel_s = (
            self._applied_s[self._rows.data_dependency[row]],
            self._left_s[self._rows.before_on_channel[row]],
        )
        return np.maximum(ready_s, channel_s)

    def _arrives_at(self, row: Ints) -> Floats:
        latency_s = self._connections.latency_s[self._connection[row]]
        if self._jitter is not None:
            latency_s = latency_s * self._jitter[0][row]
        return self._left_s[row] + latency_s

    def _is_applied_from(self, row: Ints) -> Floats:
        rows = self._rows
        free_s = np.maximum(self._arrives_at(row), self._leaving.until_s(rows.buffer_dependency[row]))
        on_connection_s, in_chunk_s = (
            self._applied_s[rows.before_on_connection[row]], self._applied_s[rows.before_in_chunk[row]]
        )  # fmt: skip
        return np.maximum(free_s, np.maximum(on_connection_s, in_chunk_s))

    def _later(self, action: Callable[[Ints], None], rows: Ints) -> None:
        if len(rows):
            self._todo.setdefault(action, []).append(rows)

    def _settle(self) -> None:
        """Find out all that follows from what is known, as much of one kind at a time as there is."""
        while self._todo:
            action = next(iter(self._todo))
            rows = self._todo.pop(action)
            action(rows[0] if len(rows) == 1 else np.concatenate(rows))

    def _start(self, row: Ints) -> None:
        """All that these waited for is known: they take their channels."""
        late = row >= self._tail
        if np.count_nonzero(late):
            self._held.append(row[late])
            row = row[~late]
        start_s = self._starts_at(row)
        src = self._rows.src[row]
        overhead_s = self._topology.processors.send_overhead_s[src]
        if self._jitter is not None:
            overhead_s = overhead_s * self._jitter[1][row]
        on_cores = self._must_share_cores(src, overhead_s)
        if on_cores is not None:
            connection = self._connection[row[on_cores]]
            self._slots.begin_overhead(connection, row[on_cores], start_s[on_cores], overhead_s[on_cores])
            row, start_s, overhead_s = row[~on_cores], start_s[~on_cores], overhead_s[~on_cores]
        self._send(row, start_s, overhead_s)

    def _must_share_cores(self, rank: Ints, work_s: Floats) -> Bools | None:
        """Which of this work runs on cores that are scarce; None if none does."""
        if not self._cores_are_scarce:
            return None
        on_cores: Bools = (self._topology.processors.cores[rank] != NONE) & (work_s > 0)
        return on_cores if on_cores.any() else None

    def _send(self, row: Ints, from_s: Floats, lead_s: Floats) -> None:
        connection, amount = self._connection[row], self._bytes[self._rows.chunk[row]]
        if self._copies is not None:
            amount = np.where(self._copies.published[row], amount, 0.0)
        shares = self._slots.shares[connection]
        num_sharing = np.count_nonzero(shares)
        if num_sharing == len(row):  # as mostly, and what follows takes several times as long
            self._slots.begin_sending(connection, row, from_s, lead_s, amount)
            return
        if num_sharing:
            self._slots.begin_sending(connection[shares], row[shares], from_s[shares], lead_s[shares], amount[shares])
            row, connection = row[~shares], connection[~shares]
            from_s, lead_s, amount = from_s[~shares], lead_s[~shares], amount[~shares]
        self._left_s[row] = from_s + (lead_s + amount / self._connections.most[connection])
        self._later(self._leave, row)

    def _leave(self, row: Ints) -> None:
        self._count_down(self._start_waits, self._next_on_channel[row], self._start)
        self._count_down(self._apply_waits, row, self._apply)
        if self._leaving.needed:
            self._count_down(self._apply_waits, self._leaving.freed_by(row, self._left_s), self._apply)

    def _apply(self, row: Ints) -> None:
        """They have arrived, it is their turn, and what they write to is free."""
        apply_s = self._is_applied_from(row)
        work_s = self._work_s(row)
        on_cores = self._must_share_cores(self._rows.dst[row], work_s)
        if on_cores is not None:
            connection = self._connection[row[on_cores]]
            self._slots.begin_applying(connection, row[on_cores], apply_s[on_cores], work_s[on_cores])
            row, apply_s, work_s = row[~on_cores], apply_s[~on_cores], work_s[~on_cores]
        self._applied_s[row] = apply_s + work_s
        self._later(self._be_applied, row)

    def _work_s(self, row: Ints) -> Floats:
        """Return what applying these takes on a core of its own."""
        if self._applying_is_free:
            return np.zeros(len(row))
        dst = self._rows.dst[row]
        reduce_s = self._bytes[self._rows.chunk[row]] / self._topology.processors.reduce_bytes_per_s[dst]
        work_s = self._topology.processors.receive_overhead_s[dst] + np.where(self._rows.reduce[row], reduce_s, 0.0)
        if self._copies is not None:
            copy_s = self._bytes[self._rows.chunk[row]] / self._topology.processors.copy_bytes_per_s[dst]
            work_s = work_s + self._copies.at_receiver[row] * copy_s
        return work_s if self._jitter is None else work_s * self._jitter[1][row]

    def _be_applied(self, row: Ints) -> None:
        self._on_progress(len(row))
        self._count_down(self._apply_waits, self._next_on_connection[row], self._apply)
        in_chunk = self._next_in_chunk[row]
        if np.count_nonzero(in_chunk != NO_ROW):  # which seldom is, and looking is quicker
            self._count_down(self._apply_waits, in_chunk, self._apply)
        self._count_down(self._start_waits, self._starters.of(row), self._start)

    def _end(self, slot: Ints, ends_s: Floats) -> None:
        """End the work in these slots, to whose end the clock has come."""
        if not self._cores_are_scarce:  # then all work is sending
            row = self._slots.rows_of(slot)
            self._left_s[row] = ends_s
            self._later(self._leave, row)
            return
        row, sent, overhead, applied = self._slots.ended(slot)
        self._left_s[row[sent]] = ends_s[sent]
        self._later(self._leave, row[sent])
        self._applied_s[row[applied]] = ends_s[applied]
        self._later(self._be_applied, row[applied])
        if overhead.any():
            self._send(row[overhead], ends_s[overhead], np.zeros(np.count_nonzero(overhead)))

    def _count_down(self, waits: Ints, row: Ints, then: Callable[[Ints], None]) -> None:
        """One thing less that each of these (none twice but NO_ROW) waits for; do it with those that wait no more."""
        waits[row] = left = waits[row] - 1
        waits[NO_ROW] = FOR_EVER
        self._later(then, row[left == 0])


def _sent_on(rows: Dependencies, topology: Topology, num_workers: int) -> tuple[Rows, Connections]:
    number, ends = number_connections(rows, topology.num_ranks)
    return number, connections_of(ends.of_workers(max(num_workers, 1)), topology)


def _jitter(topology: Topology, rows: Dependencies) -> Floats | None:
    """(2, num_rows): what to multiply latencies and computing with, if anything."""
    if topology.jitter is None or not len(rows):
        return None
    factors = [topology.jitter.factors(step, size) for step, size in enumerate(np.bincount(rows.step).tolist())]
    return np.concatenate(factors, axis=1)


class Slots:
    """Where work that shares something goes on.

    A slot for each connection; where cores are scarce also one for its overheads, and one for what is applied of it.
    num_timers: slots more, the last ones, in which nothing is done but waiting for a moment.
    """

    def __init__(self, connections: Connections, topology: Topology, num_timers: int = 0) -> None:
        self._num_connections = len(connections.src)
        self._ends = np.concatenate([connections.src, connections.dst])
        # A core's time counts as the bytes that it could have copied: so computing and copying get equal parts of it.
        copies = topology.processors.copy_bytes_per_s
        self._worth = np.where(np.isfinite(copies), copies, 1.0)
        self.shares: Bools = np.any(connections.use > 0, axis=0)
        self.activities = self._all_slots(connections, topology, num_timers)
        self.first_timer = self.activities.num_slots - num_timers
        self._row = np.full(self.activities.num_slots, NO_ROW, dtype=np.int64)

    def _all_slots(self, connections: Connections, topology: Topology, num_timers: int) -> Activities:
        cores = topology.processors.cores
        scarce = bool((cores != NONE).any())
        rank = self._ends if scarce else self._ends[:0]
        width, first = max(len(connections.resource), 1), self._num_connections
        resource = np.zeros((width, first + len(rank) + num_timers), dtype=np.int64)
        use = np.zeros(resource.shape)
        resource[: len(connections.resource), :first] = connections.resource
        use[: len(connections.use), :first] = connections.use
        on_cores = slice(first, first + len(rank))
        resource[0, on_cores] = cores[rank]
        use[0, on_cores] = np.where(cores[rank] != NONE, 1 / self._worth[rank], 0.0)
        most = np.concatenate([np.minimum(connections.most, UNLIMITED), self._worth[rank], np.ones(num_timers)])
        return Activities(resource, use, most, connections.resources)

    def begin_sending(self, connection: Rows, row: Ints, from_s: Floats, lead_s: Floats, amount: Floats) -> None:
        self._begin(connection, row, from_s, lead_s, amount)

    def begin_overhead(self, connection: Rows, row: Ints, from_s: Floats, work_s: Floats) -> None:
        self._begin_on_core(connection, row, from_s, work_s)

    def begin_applying(self, connection: Rows, row: Ints, from_s: Floats, work_s: Floats) -> None:
        self._begin_on_core(self._num_connections + connection, row, from_s, work_s)

    def _begin_on_core(self, end: Rows, row: Ints, from_s: Floats, work_s: Floats) -> None:
        self._begin(self._num_connections + end, row, from_s, 0.0, work_s * self._worth[self._ends[end]])

    def begin_waiting(self, timer: int, until_s: float) -> None:
        """Of the timers, counted from 0, one that ends at that moment."""
        slot = np.array([self.first_timer + timer])
        self.activities.begin(slot, np.array([until_s]), 0.0, np.zeros(1))

    def _begin(self, slot: Rows, row: Ints, from_s: Floats, lead_s: Floats | float, amount: Floats) -> None:
        self._row[slot] = row
        self.activities.begin(slot, from_s, lead_s, amount)

    def rows_of(self, slot: Ints) -> Ints:
        """Return the rows whose work is in these slots, or was there last."""
        rows: Ints = self._row[slot]
        return rows

    def ended(self, slot: Ints) -> tuple[Ints, Bools, Bools, Bools]:
        """Return the rows whose work was in these slots, and which of them were sent, were overheads, were applied."""
        kind = slot // max(self._num_connections, 1)
        return self._row[slot], kind == 0, kind == 1, kind >= 2


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
    """Return a time for each row, infinite until it is known, and 0 for the row before all others."""
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
