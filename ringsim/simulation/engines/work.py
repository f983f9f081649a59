"""The work of transfers: what each costs (`TransferCosts`), and where it goes on if it shares something (`Slots`)."""

from typing import NamedTuple

import numpy as np

from ringsim.network import NONE, Floats, Topology
from ringsim.schedule import NO_ROW, Bools, Dependencies, Rows
from ringsim.simulation.engines.rates import Activities
from ringsim.simulation.engines.waits import Ints
from ringsim.simulation.routes import Connections
from ringsim.simulation.timeline import jitter_factors

UNLIMITED = 1e30  # bytes a second; rates are finite


class CopyCounts(NamedTuple):
    """The copies of ranks that read in place what they receive; (num_rows,) each.

    published: whether the sender copies the chunk to where the receiver reads it.
    at_receiver: how many copies of the chunk take as long as what the receiver does beside adding.
    """

    published: Bools
    at_receiver: Floats


class TransferCosts:
    """The costs of each row on a topology, jitter included.

    chunk_bytes: (num_chunks,). copies: what is copied where ranks read in place what they receive; None if messages
    travel.
    """

    def __init__(
        self, rows: Dependencies, topology: Topology, chunk_bytes: Ints, copies: CopyCounts | None = None
    ) -> None:
        self.rows, self.topology = rows, topology
        self.num_chunks = len(chunk_bytes)
        self._bytes = chunk_bytes.astype(np.float64)
        self._copies = copies
        self._jitter = jitter_factors(topology, rows.step)
        processors = topology.processors
        self._applying_is_free = bool(np.isinf(processors.reduce_bytes_per_s).all())
        self._applying_is_free &= not processors.receive_overhead_s.any() and copies is None

    def overhead_s(self, row: Ints) -> Floats:
        """Return what the senders do, on their own cores, before the bytes go."""
        overhead_s = self.topology.processors.send_overhead_s[self.rows.src[row]]
        return overhead_s if self._jitter is None else overhead_s * self._jitter[1][row]

    def num_bytes(self, row: Ints) -> Floats:
        """Return the bytes that go over the connections."""
        num_bytes = self._bytes[self.rows.chunk[row]]
        return num_bytes if self._copies is None else np.where(self._copies.published[row], num_bytes, 0.0)

    def latency_s(self, row: Ints, of_connection_s: Floats) -> Floats:
        """Return the latencies of the rows. of_connection_s: those of their connections."""
        return of_connection_s if self._jitter is None else of_connection_s * self._jitter[0][row]

    def apply_s(self, row: Ints) -> Floats:
        """Return what applying takes on their own cores."""
        if self._applying_is_free:
            return np.zeros(len(row))
        processors, dst = self.topology.processors, self.rows.dst[row]
        num_bytes = self._bytes[self.rows.chunk[row]]
        reduce_s = num_bytes / processors.reduce_bytes_per_s[dst]
        apply_s = processors.receive_overhead_s[dst] + np.where(self.rows.reduce[row], reduce_s, 0.0)
        if self._copies is not None:
            apply_s = apply_s + self._copies.at_receiver[row] * (num_bytes / processors.copy_bytes_per_s[dst])
        return apply_s if self._jitter is None else apply_s * self._jitter[1][row]


class Slots:
    """The places where work that shares something goes on.

    A slot for each connection; where cores are scarce also one for its overheads, and one for what is applied of it.
    num_timers: slots more, the last ones, in which nothing is done but waiting for a moment.
    """

    def __init__(self, connections: Connections, topology: Topology, num_timers: int = 0) -> None:
        self._num_connections = len(connections.src)
        self._ends = np.concatenate([connections.src, connections.dst])
        self._cores = topology.processors.cores
        self.cores_are_scarce = bool((self._cores != NONE).any())
        # A core's time counts as the bytes that it could have copied: so computing and copying get equal parts of it.
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
        """Begin what the rows do on cores that ranks share, and return which rows do nothing there, (num_rows,).

        That is applying, on the cores of the receivers, if `is_applying`, else the overheads of the senders.
        connection, row, from_s, work_s: (num_rows,); from when, and for how many seconds of one core.
        """
        end = self._num_connections * is_applying + connection
        rank = self._ends[end]
        on_cores: Bools = (self._cores[rank] != NONE) & (work_s > 0)
        core_bytes = (work_s * self._bytes_per_core_s[rank])[on_cores]
        self.begin_sending(self._num_connections + end[on_cores], row[on_cores], from_s[on_cores], 0.0, core_bytes)
        return ~on_cores

    def begin_waiting(self, timer: int, until_s: float) -> None:
        """Begin to wait in one of the timers, counted from 0, until that moment."""
        slot = np.array([self.first_timer + timer])
        self.activities.begin(slot, np.array([until_s]), 0.0, np.zeros(1))

    def begin_sending(self, slot: Rows, row: Ints, from_s: Floats, lead_s: Floats | float, amount: Floats) -> None:
        """Begin to send over the connections of these slots, after a lead that shares nothing."""
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
