"""`Slots`: where the work of a schedule that shares something goes on, and on which transfer's behalf."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from ringsim.network import NONE, Floats, Paths, Resources, Topology, connection_ends, connection_keys
from ringsim.schedule import NO_ROW, Dependencies, Rows
from ringsim.simulation.engines.rates import Activities
from ringsim.simulation.engines.waiting import Bools, Ints

UNLIMITED = 1e30  # bytes a second; rates are finite


@dataclass(frozen=True, slots=True, eq=False)
class Connections:
    """What the transfers of a schedule are sent on, and what limits them; (num_connections,) unless said otherwise.

    most: bytes a second, where nothing is shared.
    resource, use: (width, num_connections), of what is shared.
    resources: those of the topology, and the links of the pairs of ranks that have several connections.
    """

    src: Ints
    dst: Ints
    latency_s: Floats
    most: Floats
    resource: Ints
    use: Floats
    resources: Resources


class Ends(NamedTuple):
    """Of each connection, (num_connections,): its ranks, a number that its sender's channel has alone, the channel."""

    src: Ints
    dst: Ints
    sender: Ints
    channel: Ints

    @classmethod
    def of(cls, keys: Ints, num_ranks: int) -> Self:
        """Those of the connections that have these keys."""
        src, dst, channel = connection_ends(keys, num_ranks)
        return cls(src, dst, keys // num_ranks, channel)

    def of_workers(self, num_workers: int) -> "Ends":
        """The connections of so many workers, one after the other: each has its own, between the same ranks."""
        src, dst, channel = (np.tile(column, num_workers) for column in (self.src, self.dst, self.channel))
        num_senders = self.sender.max(initial=0) + 1
        sender = np.concatenate([self.sender + worker * num_senders for worker in range(num_workers)])
        return Ends(src, dst, sender, channel)


def number_connections(rows: Dependencies, num_ranks: int) -> tuple[Rows, Ends]:
    """For each transfer the number of its connection, and all connections."""
    keys = connection_keys(rows.src, rows.dst, rows.channel, num_ranks)
    known, number = np.unique(keys, return_inverse=True)
    return number.astype(np.int32), Ends.of(known, num_ranks)


def connections_of(ends: Ends, topology: Topology) -> Connections:
    """The connections between these pairs of ranks, in their order."""
    paths, resources = _with_links_of_pairs(ends, topology)
    paths.check()
    named = paths.resource != NONE
    shared = named.copy()
    shared[named] = _is_shared(ends, paths, resources, topology.processors.cores)[paths.resource[named]]
    private = named & ~shared
    alone = np.full(named.shape, np.inf)
    alone[private] = resources.capacity[paths.resource[private]] / paths.use_per_byte[private]
    return Connections(
        src=ends.src,
        dst=ends.dst,
        latency_s=paths.latency_s,
        most=np.minimum(paths.bytes_per_s, alone.min(axis=1, initial=np.inf)),
        resource=np.where(shared, paths.resource, 0).T,
        use=np.where(shared, paths.use_per_byte, 0.0).T,
        resources=resources,
    )


def _with_links_of_pairs(ends: Ends, topology: Topology) -> tuple[Paths, Resources]:
    """The paths, on which what limits a message whatever else happens is a resource if a pair has several channels."""
    paths, resources = topology.connection_paths(ends.src, ends.dst, ends.channel), topology.resources
    pair, number, count = np.unique(ends.src * topology.num_ranks + ends.dst, return_inverse=True, return_counts=True)
    several = (count[number] > 1) & np.isfinite(paths.bytes_per_s)
    if not several.any():
        return paths, resources
    capacity = np.full(len(pair), np.inf)
    capacity[number] = paths.bytes_per_s
    names = (f"link{number // topology.num_ranks}-{number % topology.num_ranks}" for number in pair.tolist())
    link = np.where(several, len(resources.names) + number, NONE)
    return replace(
        paths,
        bytes_per_s=np.where(several, np.inf, paths.bytes_per_s),
        resource=np.column_stack([paths.resource, link]),
        use_per_byte=np.column_stack([paths.use_per_byte, np.where(several, 1.0, 0.0)]),
    ), Resources(
        (*resources.names, *names),
        np.concatenate([resources.capacity, capacity]),
        np.concatenate([resources.fails_at_s, np.full(len(pair), np.inf)]),
    )


def _is_shared(ends: Ends, paths: Paths, resources: Resources, cores: Ints) -> Bools:
    """Of each resource, whether more than one channel or rank uses it, or time does not treat it all alike."""
    named = paths.resource != NONE
    sender = np.broadcast_to(ends.sender[:, None], named.shape)[named]
    num_senders = int(sender.max(initial=0)) + 1
    users = np.unique(paths.resource[named] * num_senders + sender)  # a channel sends one message at a time
    count = np.bincount(users // num_senders, minlength=len(resources.names))
    count += np.bincount(cores[cores != NONE], minlength=len(count))
    shared: Bools = (count > 1) | np.isfinite(resources.fails_at_s)
    return shared


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
        """The rows whose work is in these slots, or was there last."""
        rows: Ints = self._row[slot]
        return rows

    def ended(self, slot: Ints) -> tuple[Ints, Bools, Bools, Bools]:
        """The rows whose work was in these slots, and which of them were sent, were overheads, were applied."""
        kind = slot // max(self._num_connections, 1)
        return self._row[slot], kind == 0, kind == 1, kind >= 2
