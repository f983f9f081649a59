"""The event engine: a schedule in virtual time on a topology whose ranks share things.

It follows the arrows of `Dependencies` from transfer to transfer. A time is known as soon as all that it waits for is
known; only work that shares a resource has to wait for the clock (`Activities`), since how long it takes depends on
what else is going on. Whatever becomes known at one moment is dealt with together, in arrays.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ringsim.network import NONE, Floats, Topology
from ringsim.schedule import NO_ROW, Dependencies, Rows, Schedule, dependencies
from ringsim.simulation.engines.slots import Connections, Slots, connections_of, number_connections
from ringsim.simulation.engines.waiting import FOR_EVER, Bools, Followers, Ints, Leaving, following, how_many, unknown
from ringsim.simulation.timeline import OnProgress, Timeline, ignore_progress

ROWS_AT_ONCE = 2**16  # when the timeline is written, to need little memory besides


class CopyCounts(NamedTuple):
    """What ranks copy that read in place what they receive; (num_rows,) each.

    published: whether the sender copies the chunk to where the receiver reads it.
    at_receiver: how many copies of the chunk take as long as what the receiver does beside adding.
    """

    published: Bools
    at_receiver: Floats


def run_events(
    schedule: Schedule,
    topology: Topology,
    chunk_bytes: Ints,
    on_progress: OnProgress = ignore_progress,
    *,
    in_order: bool = False,
    copies: CopyCounts | None = None,
) -> Timeline:
    """Every transfer of `schedule` with its times; infinite for what cannot happen because something has failed.

    chunk_bytes: (num_chunks,).
    in_order: see `dependencies`. copies: see `EventRun`.
    """
    rows = dependencies(schedule, in_order=in_order)
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
        """EventRun until nothing more can happen."""
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
        """The row from which on nothing is shared, nor can anything have to do with what is.

        What comes of these rows is left until the clock has stopped: then it is found out for all at once.
        """
        if self._cores_are_scarce:
            return len(self._rows)
        shared = np.flatnonzero(self._slots.shares[self._connection])
        last_step = self._rows.step[shared[-1]] if len(shared) else NO_ROW
        return int(np.searchsorted(self._rows.step, last_step, side="right"))

    def timeline(self) -> Timeline:
        """What is known of every transfer."""
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
        """What applying these takes on a core of its own."""
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
        """The clock has come to the end of the work in these slots."""
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
