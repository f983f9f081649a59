"""Collectives that wait in a queue for workers, in one virtual time: what is under way at once shares links and cores.

The event engine with two things more: a collective begins when a worker takes it, and the workers of a rank are
separate threads, each with connections of its own, which use the same links and cores.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ringsim.network import Floats, Topology
from ringsim.schedule import NO_ROW, Dependencies, Schedule, dependencies
from ringsim.simulation.engines.by_event import EventRun
from ringsim.simulation.engines.waiting import ROWS_BEFORE, Ints

IDLE = -1  # in place of a collective: a worker has none


class Queued(NamedTuple):
    """A collective in the queue.

    chunk_bytes: (schedule.num_chunks,). ready_s: when it joins, not before the last.
    call_s: from when a worker takes it until its first messages go.
    """

    schedule: Schedule
    chunk_bytes: Ints
    ready_s: float
    call_s: float = 0.0


def run_queue(
    queue: Sequence[Queued], topology: Topology, num_workers: int, *, in_order: bool = False
) -> tuple[Floats, Floats]:
    """When each collective begins and ends, each (len(queue),); infinite for what never does.

    They are taken in the order of the queue: each by the first worker to be free, which a worker is when its
    collective has ended on all ranks.

    in_order: see `dependencies`.
    """
    rows, first_row = _in_a_row([call.schedule for call in queue], in_order)
    run = _QueueRun(rows, first_row, queue, topology, num_workers)
    run.finish()
    return run.begin_s, run.end_s


def _in_a_row(schedules: Sequence[Schedule], in_order: bool) -> tuple[Dependencies, Ints]:
    """The rows of all schedules, one after the other, and where those of each begin, and the last end."""
    by_id = {id(schedule): schedule for schedule in schedules}
    rows_of = {name: dependencies(schedule, in_order=in_order) for name, schedule in by_id.items()}
    parts = [rows_of[id(schedule)] for schedule in schedules]
    first_row = np.cumsum([0, *(len(part) for part in parts)])
    first_step = np.cumsum([0, *(schedule.num_steps for schedule in schedules)])
    first_chunk = np.cumsum([0, *(schedule.num_chunks for schedule in schedules)])
    starts = {"step": first_step, "chunk": first_chunk}
    starts |= dict.fromkeys(ROWS_BEFORE, first_row)
    columns = {name: _joined(parts, name, starts.get(name)) for name in Dependencies.__dataclass_fields__}
    return Dependencies(**columns), first_row


def _joined(parts: Sequence[Dependencies], name: str, start: Ints | None) -> np.ndarray:
    columns = [getattr(part, name) for part in parts]
    if start is not None:
        columns = [np.where(c == NO_ROW, NO_ROW, c + first) for c, first in zip(columns, start[:-1], strict=True)]
    return np.concatenate(columns).astype(columns[0].dtype)


class _QueueRun(EventRun):
    """How far every transfer is, and every collective. first_row: of each, and one more where the last ends.

    A row belongs to the first worker's connections until it is known which worker takes it.
    """

    def __init__(
        self, rows: Dependencies, first_row: Ints, queue: Sequence[Queued], topology: Topology, num_workers: int
    ) -> None:
        self._queue, self._first_row, self._num_workers = queue, first_row, num_workers
        self._collective = np.repeat(np.arange(len(queue)), np.diff(first_row))
        self._to_apply = np.diff(first_row)
        self.begin_s, self.end_s = np.full(len(queue), np.inf), np.full(len(queue), np.inf)
        self._sends_from_s = np.full(len(queue), np.inf)
        self._worker_of = np.full(len(queue), IDLE)
        self._next = 0
        chunk_bytes = np.concatenate([call.chunk_bytes for call in queue])
        super().__init__(rows, topology, chunk_bytes, num_workers)

    def finish(self) -> None:
        for worker in range(self._num_workers):
            self._take_next(worker, 0.0)
        self._run_clock()

    def _first_of_tail(self) -> int:
        return len(self._rows)  # nothing may be left until the clock has stopped: more begins when a worker is free

    def _starts_at(self, row: Ints) -> Floats:
        starts_s: Floats = np.maximum(super()._starts_at(row), self._sends_from_s[self._collective[row]])
        return starts_s

    def _take_next(self, worker: int, free_s: float) -> None:
        """A worker that is free takes the next collective, and waits for it if it is not ready."""
        if self._next == len(self._queue):
            return
        taken, self._next = self._next, self._next + 1
        self.begin_s[taken] = max(free_s, self._queue[taken].ready_s)
        self._sends_from_s[taken] = self.begin_s[taken] + self._queue[taken].call_s
        self._worker_of[taken] = worker
        rows = slice(self._first_row[taken], self._first_row[taken + 1])
        self._connection[rows] += worker * self._num_connections
        if self._to_apply[taken]:
            self._later(self._start, rows.start + np.flatnonzero(self._start_waits[rows] == 0))
        else:
            self._has_ended(taken, self._sends_from_s[taken])

    def _be_applied(self, row: Ints) -> None:
        super()._be_applied(row)
        collectives, counts = np.unique(self._collective[row], return_counts=True)
        self._to_apply[collectives] -= counts
        for call in collectives[self._to_apply[collectives] == 0].tolist():
            self._has_ended(call, float(self._applied_s[self._first_row[call] : self._first_row[call + 1]].max()))

    def _has_ended(self, collective: int, end_s: float) -> None:
        """Its end may be known before the clock comes to it; only then is its worker free."""
        self.end_s[collective] = end_s
        self._slots.begin_waiting(int(self._worker_of[collective]), end_s)

    def _end(self, slot: Ints, ends_s: Floats) -> None:
        timer = slot - self._slots.first_timer
        for worker, free_s in zip(timer[timer >= 0].tolist(), ends_s[timer >= 0].tolist(), strict=True):
            self._take_next(worker, free_s)
        super()._end(slot[timer < 0], ends_s[timer < 0])
