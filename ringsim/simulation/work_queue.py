"""`time_queue`: the begin and end of collectives that wait in a queue for workers.

In `_QueueRun`, an event engine, a collective begins when a worker takes it, and each worker of a rank has its own
connections.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ringsim.limits import require_memory
from ringsim.network import Floats, Network, Topology
from ringsim.schedule import NO_ROW, Dependencies, Schedule, TransferTable, dependencies
from ringsim.simulation.events import EventRun
from ringsim.simulation.routes import connect, with_in_network_reduction
from ringsim.simulation.simulate import Runtime, priced_topology
from ringsim.simulation.timeline import TransferCosts
from ringsim.simulation.waits import Ints

BYTES_RUN = 300  # of memory for each transfer of a queue, at most
IDLE = -1  # in place of a collective: a worker has none


class QueuedCall(NamedTuple):
    """A collective that is called at `ready_s`.

    size_bytes: of the whole tensor. call_s: the time of the call before its first message.
    network: a separate network for its messages; None: that of all calls. is_lent: as in `Runtime`.
    """

    schedule: Schedule
    size_bytes: int
    element_bytes: int = 1
    ready_s: float = 0.0
    call_s: float = 0.0
    network: Network | None = None
    is_lent: bool = False


class Span(NamedTuple):
    """The begin and end of a collective; infinite if never."""

    begin_s: float
    end_s: float


def time_queue(calls: Sequence[QueuedCall], network: Network, runtime: Runtime) -> list[Span]:
    """Return when each call begins and ends if the workers of every rank take the calls in order.

    A worker takes a call when its last one has ended on all ranks. A stream of NCCL is one worker; Gloo has two.

    Raises ValueError for a size that is not whole elements, calls of different numbers of ranks, a first call before 0,
    no worker, separate networks, and for shared memory.
    """
    if runtime.num_workers < 1:
        raise ValueError(f"num_workers {runtime.num_workers}: must be at least 1")
    num_ranks = {call.schedule.num_ranks for call in calls}
    if len(num_ranks) > 1:
        raise ValueError(f"calls of {sorted(num_ranks)} ranks: a queue is of one process group")
    if not calls:
        return []
    for number, call in enumerate(calls):
        if not math.isfinite(call.ready_s):
            raise ValueError(f"calls[{number}]: ready_s {call.ready_s}: must be finite")
    if calls[0].ready_s < 0:
        raise ValueError(f"ready_s {calls[0].ready_s:g}: a queue begins at 0")
    ready_s = np.maximum.accumulate([call.ready_s for call in calls]).tolist()  # no call before the previous one
    queue = [call._replace(ready_s=at) for call, at in zip(calls, ready_s, strict=True)]
    if runtime.shared_memory(network):
        raise ValueError("runtime.shares_memory: calls of a queue go over links: simulate one after the other alone")
    for number, call in enumerate(calls):
        if call.network is not None:
            raise ValueError(f"calls[{number}].network: must be None: all calls of a queue share one network")
    topology = priced_topology(network, num_ranks.pop())
    topology = with_in_network_reduction([call.schedule for call in calls], topology)
    num_transfers = sum(call.schedule.num_transfers for call in calls)
    require_memory(f"{len(calls)} collectives of {num_transfers:,} transfers", num_transfers * BYTES_RUN)
    run = _QueueRun(queue, topology, runtime)
    run.take_all()
    return [Span(*times) for times in zip(run.begin_s.tolist(), run.end_s.tolist(), strict=True)]


def has_steady_times(topology: Topology) -> bool:
    """Return whether a collective takes the same time whenever it begins."""
    resources = topology.resources
    return topology.jitter is None and not (np.isfinite(resources.fails_at_s) | (resources.burst_bytes > 0)).any()


def _in_a_row(schedules: Sequence[Schedule], runtime: Runtime) -> tuple[Dependencies, Ints]:
    by_id = {id(schedule): schedule for schedule in schedules}
    rows_of = {name: dependencies(schedule, in_order=runtime.in_order) for name, schedule in by_id.items()}
    parts = [rows_of[id(schedule)] for schedule in schedules]
    first_row = np.cumsum([0, *(len(part) for part in parts)])
    first_step = np.cumsum([0, *(schedule.num_steps for schedule in schedules)])
    first_chunk = np.cumsum([0, *(schedule.num_chunks for schedule in schedules)])
    starts = {"step": first_step, "chunk": first_chunk}
    starts |= dict.fromkeys(Dependencies.__dataclass_fields__.keys() - TransferTable.__dataclass_fields__, first_row)
    columns = {name: _joined(parts, name, starts.get(name)) for name in Dependencies.__dataclass_fields__}
    return Dependencies(**columns), first_row


def _joined(parts: Sequence[Dependencies], name: str, start: Ints | None) -> np.ndarray:
    columns = [getattr(part, name) for part in parts]
    if start is not None:
        columns = [np.where(c == NO_ROW, NO_ROW, c + first) for c, first in zip(columns, start[:-1], strict=True)]
    return np.concatenate(columns).astype(columns[0].dtype)


class _QueueRun(EventRun):
    """The state of every transfer, and the begin and end of every collective; infinite if there is none."""

    def __init__(self, queue: Sequence[QueuedCall], topology: Topology, runtime: Runtime) -> None:
        rows, first_row = _in_a_row([call.schedule for call in queue], runtime)
        self._queue, self._first_row, self._num_workers = queue, first_row, runtime.num_workers
        self._collective = np.repeat(np.arange(len(queue)), np.diff(first_row))
        self._to_apply = np.diff(first_row)
        self.begin_s, self.end_s = np.full(len(queue), np.inf), np.full(len(queue), np.inf)
        self._sends_from_s = np.full(len(queue), np.inf)
        self._worker_of = np.full(len(queue), IDLE)
        self._next = 0
        chunk_bytes = np.concatenate([c.schedule.chunk_bytes(c.size_bytes, c.element_bytes) for c in queue])
        sent_on = connect(rows, topology, self._num_workers)
        self._num_connections = len(sent_on.connections.src) // self._num_workers  # of each worker
        super().__init__(rows, topology, TransferCosts(rows, topology, chunk_bytes), sent_on, self._num_workers)

    def take_all(self) -> None:
        for worker in range(self._num_workers):
            self._take_next(worker, 0.0)
        self._run_clock()

    def _first_of_tail(self) -> int:
        return len(self._rows)  # nothing may be left until the clock has stopped: more begins when a worker is free

    def _starts_at(self, row: Ints) -> Floats:
        starts_s: Floats = np.maximum(super()._starts_at(row), self._sends_from_s[self._collective[row]])
        return starts_s

    def _take_next(self, worker: int, free_s: float) -> None:
        if self._next == len(self._queue):
            return
        taken, self._next = self._next, self._next + 1
        self.begin_s[taken] = max(free_s, self._queue[taken].ready_s)
        self._sends_from_s[taken] = self.begin_s[taken] + self._queue[taken].call_s
        self._worker_of[taken] = worker
        rows = slice(self._first_row[taken], self._first_row[taken + 1])
        self._connection[rows] += worker * self._num_connections
        if self._to_apply[taken]:
            self._later(self._start, self._waits.startable(rows.start, rows.stop))
        else:
            self._has_ended(taken, self._sends_from_s[taken])

    def _be_applied(self, row: Ints) -> None:
        super()._be_applied(row)
        collectives, counts = np.unique(self._collective[row], return_counts=True)
        self._to_apply[collectives] -= counts
        for call in collectives[self._to_apply[collectives] == 0].tolist():
            self._has_ended(call, float(self._applied_s[self._first_row[call] : self._first_row[call + 1]].max()))

    def _has_ended(self, collective: int, end_s: float) -> None:
        """Free the worker when the clock reaches the end, which may be known earlier."""
        self.end_s[collective] = end_s
        self._slots.begin_waiting(int(self._worker_of[collective]), end_s)

    def _end(self, slot: Ints, ends_s: Floats) -> None:
        timer = slot - self._slots.first_timer
        for worker, free_s in zip(timer[timer >= 0].tolist(), ends_s[timer >= 0].tolist(), strict=True):
            self._take_next(worker, free_s)
        super()._end(slot[timer < 0], ends_s[timer < 0])
