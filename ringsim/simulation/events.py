"""The event engine: a schedule in virtual time on a topology whose ranks share resources.

A transfer goes through these states, whose waits `Dependencies` names:

    waiting to start      its chunk is being written on the sender (rule 1), or the channel is busy (rule 2)
      | start_s           `_start`: the channel is taken
    preparing             the sender's overhead, on a core of the host if cores are scarce
      |                   `_send`
    sending               its bytes go over the connection, at a fair share of the resources
      | sent_s            `_leave`: the channel is free, and the chunk on the sender may be overwritten (rule 4)
    travelling            the latency of the path
      | arrived_s
    waiting to be applied an earlier one on the connection or for the chunk is not applied yet (rule 3), or
      |                   the receiver still sends the chunk to be overwritten (rule 4)
      | apply_s           `_apply`
    being applied         the receiver's overhead, and adding, on a core of the host if cores are scarce
      | applied_s         `_be_applied`: the next ones may start or be applied

Only bytes that share a resource and work on scarce cores depend on other work. Such work begins in a slot of `Slots`,
and `Activities` says which work ends next (`_end`). All other times are a maximum and a sum, known at once. The last
rows (`_first_of_tail`) need no clock.
"""

from collections.abc import Callable

import numpy as np

from ringsim.network import NONE, Floats, Topology
from ringsim.schedule import NO_ROW, Bools, Dependencies, Rows
from ringsim.simulation.rates import Activities
from ringsim.simulation.routes import Connections, RowConnections, connect
from ringsim.simulation.timeline import CopyCounts, OnProgress, Timeline, TransferCosts, ignore_progress
from ringsim.simulation.waits import Ints, Waits, unknown

ROWS_AT_ONCE = 2**16  # when the timeline is written, to need little memory besides
UNLIMITED = 1e30  # bytes a second; rates are finite


def run_events(
    rows: Dependencies,
    topology: Topology,
    chunk_bytes: Ints,
    on_progress: OnProgress = ignore_progress,
    copies: CopyCounts | None = None,
) -> Timeline:
    """Return the times of all transfers; infinite for transfers that a failure prevents.

    chunk_bytes: (num_chunks,). copies: see `TransferCosts`.
    """
    run = EventRun(rows, topology, TransferCosts(rows, topology, chunk_bytes, copies), connect(rows, topology))
    run.finish(on_progress)
    return run.timeline(topology.num_ranks, len(chunk_bytes))


class EventRun:
    """The state of every transfer. Row -1 is before all rows, at time 0. num_timers: see `Slots`."""

    def __init__(
        self, rows: Dependencies, topology: Topology, costs: TransferCosts, sent_on: RowConnections, num_timers: int = 0
    ) -> None:
        self._rows, self._costs = rows, costs
        self._connection, self._connections = sent_on
        self._on_progress: OnProgress = ignore_progress
        self._sent_s, self._applied_s = unknown(len(rows)), unknown(len(rows))
        self._waits = Waits(rows, self._sent_s)
        self._free_after, self._free_s = self._waits.free_after, self._waits.free_s
        self._slots = Slots(self._connections, topology, num_timers)
        self._tail = self._first_of_tail()
        self._held: list[Ints] = []
        self._todo: dict[Callable[[Ints], None], list[Ints]] = {}

    def finish(self, on_progress: OnProgress = ignore_progress) -> None:
        self._on_progress = on_progress
        self._later(self._start, self._waits.startable(0, len(self._rows)))
        self._run_clock()
        self._tail = len(self._rows)
        self._later(self._start, np.concatenate([np.empty(0, dtype=np.int64), *self._held]))
        self._settle()

    @property
    def time_s(self) -> float:
        return float(self._applied_s[:-1].max(initial=0.0))

    def timeline(self, num_ranks: int, num_chunks: int) -> Timeline:
        rows = self._rows
        del self._waits  # which has served its time, to make room
        start_s, arrived_s, apply_s = (np.empty(len(rows)) for _ in range(3))
        for first in range(0, len(rows), ROWS_AT_ONCE):
            row = np.arange(first, min(first + ROWS_AT_ONCE, len(rows)))
            start_s[row] = self._starts_at(row)
            arrived_s[row] = self._arrives_at(row)
            apply_s[row] = self._is_applied_from(row)
        columns = rows.step, rows.src, rows.dst, rows.chunk, rows.reduce
        times = start_s, self._sent_s[:-1], arrived_s, apply_s, self._applied_s[:-1]
        return Timeline(num_ranks, num_chunks, *columns, *times)

    def _run_clock(self) -> None:
        self._settle()
        while True:
            slot, ends_s = self._slots.activities.next_ended()
            if not len(slot):
                break
            self._end(slot, ends_s)
            self._settle()

    def _settle(self) -> None:
        while self._todo:
            action = next(iter(self._todo))
            rows = self._todo.pop(action)
            action(rows[0] if len(rows) == 1 else np.concatenate(rows))

    def _later(self, action: Callable[[Ints], None], rows: Ints) -> None:
        if len(rows):
            self._todo.setdefault(action, []).append(rows)

    def _first_of_tail(self) -> int:
        if self._slots.cores_are_scarce:
            return len(self._rows)
        shared = np.flatnonzero(self._slots.shares[self._connection])
        last_step = self._rows.step[shared[-1]] if len(shared) else NO_ROW
        return int(np.searchsorted(self._rows.step, last_step, side="right"))

    # Times that are a maximum of other times, once those are known.

    def _starts_at(self, row: Ints) -> Floats:
        rows = self._rows
        ready_s, channel_s = self._applied_s[rows.data_dependency[row]], self._sent_s[rows.before_on_channel[row]]
        return np.maximum(ready_s, channel_s)

    def _arrives_at(self, row: Ints) -> Floats:
        return self._sent_s[row] + self._costs.latency_s(row, self._connections.latency_s[self._connection[row]])

    def _is_applied_from(self, row: Ints) -> Floats:
        rows = self._rows
        free_s = self._arrives_at(row)
        if self._free_s is not None:
            free_s = np.maximum(free_s, self._free_s[self._free_after[row]])
        before_s = self._applied_s[rows.before_on_connection[row]], self._applied_s[rows.before_in_chunk[row]]
        return np.maximum(free_s, np.maximum(*before_s))

    # The states, in their order.

    def _start(self, row: Ints) -> None:
        late = row >= self._tail
        if np.count_nonzero(late):
            self._held.append(row[late])
            row = row[~late]
        start_s, overhead_s = self._starts_at(row), self._costs.overhead_s(row)
        if self._slots.cores_are_scarce:
            left = self._slots.begin_on_cores(self._connection[row], row, start_s, overhead_s)
            row, start_s, overhead_s = row[left], start_s[left], overhead_s[left]
        self._send(row, start_s, overhead_s)

    def _send(self, row: Ints, from_s: Floats, lead_s: Floats) -> None:
        connection, num_bytes = self._connection[row], self._costs.num_bytes(row)
        shares = self._slots.shares[connection]
        num_sharing = np.count_nonzero(shares)
        if num_sharing == len(row):  # the usual case; the general one takes several times longer
            self._slots.begin_sending(connection, row, from_s, lead_s, num_bytes)
            return
        if num_sharing:
            sharing = connection[shares], row[shares], from_s[shares], lead_s[shares], num_bytes[shares]
            self._slots.begin_sending(*sharing)
            row, connection = row[~shares], connection[~shares]
            from_s, lead_s, num_bytes = from_s[~shares], lead_s[~shares], num_bytes[~shares]
        self._sent_s[row] = from_s + (lead_s + num_bytes / self._connections.most[connection])
        self._later(self._leave, row)

    def _leave(self, row: Ints) -> None:
        may_start, may_apply = self._waits.after_send(row)
        self._later(self._start, may_start)
        self._later(self._apply, may_apply)

    def _apply(self, row: Ints) -> None:
        begin_s, work_s = self._is_applied_from(row), self._costs.apply_s(row)
        if self._slots.cores_are_scarce:
            left = self._slots.begin_on_cores(self._connection[row], row, begin_s, work_s, is_applying=True)
            row, begin_s, work_s = row[left], begin_s[left], work_s[left]
        self._applied_s[row] = begin_s + work_s
        self._later(self._be_applied, row)

    def _be_applied(self, row: Ints) -> None:
        self._on_progress(len(row))
        may_apply, may_start = self._waits.after_apply(row)
        self._later(self._apply, may_apply)
        self._later(self._start, may_start)

    def _end(self, slot: Ints, ends_s: Floats) -> None:
        if not self._slots.cores_are_scarce:  # then all work is sending
            row = self._slots.rows_of(slot)
            self._sent_s[row] = ends_s
            self._later(self._leave, row)
            return
        row, sent, overhead, applied = self._slots.ended(slot)
        self._sent_s[row[sent]] = ends_s[sent]
        self._later(self._leave, row[sent])
        self._applied_s[row[applied]] = ends_s[applied]
        self._later(self._be_applied, row[applied])
        if overhead.any():
            self._send(row[overhead], ends_s[overhead], np.zeros(np.count_nonzero(overhead)))


class Slots:
    """The slots of work on shared resources.

    Every connection has one for its bytes and, if cores are scarce, for its overheads and for applying. The last
    `num_timers` only wait for a moment.
    """

    def __init__(self, connections: Connections, topology: Topology, num_timers: int = 0) -> None:
        self._num_connections = len(connections.src)
        self._ends = np.concatenate([connections.src, connections.dst])
        self._cores = topology.processors.cores
        self.cores_are_scarce = bool((self._cores != NONE).any())
        # A core's time counts as the bytes that it could have copied, so that computing and copying get equal parts.
        copies = topology.processors.copy_bytes_per_s
        self._bytes_per_core_s = np.where(np.isfinite(copies), copies, 1.0)
        self.shares: Bools = np.any(connections.use > 0, axis=0)
        self.activities = self._all_slots(connections, num_timers)
        self.first_timer = self.activities.num_slots - num_timers
        self._row = np.full(self.activities.num_slots, NO_ROW, dtype=np.int64)

    def _all_slots(self, connections: Connections, num_timers: int) -> Activities:
        rank = self._ends if self.cores_are_scarce else self._ends[:0]
        width, first = max(len(connections.resource), 1), self._num_connections
        resource = np.zeros((width, first + len(rank) + num_timers), dtype=np.int64)
        use = np.zeros(resource.shape)
        resource[: len(connections.resource), :first] = connections.resource
        use[: len(connections.use), :first] = connections.use
        on_cores = slice(first, first + len(rank))
        resource[0, on_cores] = self._cores[rank]
        bytes_per_core_s = self._bytes_per_core_s[rank]
        use[0, on_cores] = np.where(self._cores[rank] != NONE, 1 / bytes_per_core_s, 0.0)
        most = np.concatenate([np.minimum(connections.most, UNLIMITED), bytes_per_core_s, np.ones(num_timers)])
        return Activities(resource, use, most, connections.resources)

    def begin_on_cores(
        self, connection: Rows, row: Ints, from_s: Floats, work_s: Floats, *, is_applying: bool = False
    ) -> Bools:
        """Begin work on shared cores, and return which rows have no such work, (num_rows,).

        is_applying: whether the receivers apply; otherwise the senders' overheads. All arrays are (num_rows,); work_s:
        of one core.
        """
        end = self._num_connections * is_applying + connection
        rank = self._ends[end]
        on_cores: Bools = (self._cores[rank] != NONE) & (work_s > 0)
        core_bytes = (work_s * self._bytes_per_core_s[rank])[on_cores]
        self.begin_sending(self._num_connections + end[on_cores], row[on_cores], from_s[on_cores], 0.0, core_bytes)
        return ~on_cores

    def begin_waiting(self, timer: int, until_s: float) -> None:
        slot = np.array([self.first_timer + timer])
        self.activities.begin(slot, np.array([until_s]), 0.0, np.zeros(1))

    def begin_sending(self, slot: Rows, row: Ints, from_s: Floats, lead_s: Floats | float, amount: Floats) -> None:
        self._row[slot] = row
        self.activities.begin(slot, from_s, lead_s, amount)

    def rows_of(self, slot: Ints) -> Ints:
        rows: Ints = self._row[slot]
        return rows

    def ended(self, slot: Ints) -> tuple[Ints, Bools, Bools, Bools]:
        kind = slot // max(self._num_connections, 1)
        return self._row[slot], kind == 0, kind == 1, kind >= 2
