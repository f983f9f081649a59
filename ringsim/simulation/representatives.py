"""A few connections that represent all, if the rule of a schedule is known: most transfers are never listed.

Connections of one class are busy at the same times, and one is simulated for all. Classes come from colour refinement:
two connections keep the same colour, a 64-bit hash, while they cost the same and share resources of one colour with
connections of the same colours: an equitable partition. In a `Relay`, such as NCCL's rings, the connections before and
after a class must also each be of one class: of rings over hosts of m ranks m connections remain. In `Copies`, such as
NCCL's trees on each rail, one copy of each part represents all if the copies of every connection are of one class.

The connection that represents a class uses as much of a resource as the whole class, which keeps the fair rates.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringsim.network import Floats, Topology, connection_keys
from ringsim.schedule import NO_ROW, Copies, Dependencies, Relay, Rows, Schedule, TransferTable, dependencies
from ringsim.simulation.events import EventRun
from ringsim.simulation.routes import Connections, Ends, RowConnections, connections_of, used_connections
from ringsim.simulation.timeline import OnProgress, TransferCosts, ignore_progress
from ringsim.simulation.waits import Ints

# More representatives take more than about ten seconds; in a relay few of them are active at once.
MAX_ROUND_ROWS, MAX_COPY_ROWS = 2**17, 2**19

Colours = npt.NDArray[np.uint64]
_FACTORS = np.random.default_rng(0).integers(2**63, 2**64, size=16, dtype=np.uint64) | np.uint64(1)


@dataclass(frozen=True, slots=True, eq=False)
class Representatives:
    """The transfers that represent a schedule whose chunks all have `chunk_bytes` bytes.

    listed: returns these `num_listed` transfers, and the number of the connection of each, (num_listed,).
    """

    schedule: Schedule
    topology: Topology
    chunk_bytes: int
    num_listed: int
    listed: Callable[[], tuple[Dependencies, Rows]]
    connections: Connections

    def time_s(self, on_progress: OnProgress = ignore_progress) -> float:
        rows, number = self.listed()
        sizes = np.full(int(rows.chunk.max()) + 1, self.chunk_bytes)
        costs = TransferCosts(rows, self.topology, sizes)
        run = EventRun(rows, self.topology, costs, RowConnections(number, self.connections))
        run.finish()
        on_progress(self.schedule.num_transfers)
        return run.time_s


def may_have_representatives(schedule: Schedule) -> bool:
    """Return whether the rule of the transfers is known, and not too large."""
    copies = schedule.steps.copies
    return schedule.steps.relay is not None or (copies is not None and copies.steps.num_transfers <= MAX_COPY_ROWS)


def representatives(schedule: Schedule, topology: Topology, chunk_bytes: int) -> Representatives | None:
    """Return the representatives of a schedule that is not executed in order; None if not known, or too many.

    Chunks must have one size, and neither jitter nor failures may tell ranks apart.
    """
    if not may_have_representatives(schedule):
        return None
    relay, copies = schedule.steps.relay, schedule.steps.copies
    few = _of_relay(relay, topology) if relay else _of_copies(schedule, copies, topology) if copies else None
    return Representatives(schedule, topology, chunk_bytes, *few) if few else None


_Few = tuple[int, Callable[[], tuple[Dependencies, Rows]], Connections]  # the last fields of `Representatives`


def _of_relay(relay: Relay, topology: Topology) -> _Few | None:
    keys = connection_keys(relay.src, relay.dst, relay.channel, topology.num_ranks)
    if len(np.unique(keys)) < len(keys):
        return None  # chunks go in segments, and segments wait for each other
    connections = connections_of(Ends.of(keys, topology.num_ranks), topology)
    num_rounds = len(relay.reduces)
    colouring = _Colouring(connections, topology)
    classes = colouring.classes(MAX_ROUND_ROWS // max(num_rounds, 1), relay.after, np.argsort(relay.after))
    if classes is None:
        return None
    first, number = classes[0]
    none = np.zeros_like(first)
    columns = {name: getattr(relay, name)[first] for name in ("src", "dst", "channel")}
    few = replace(relay, **columns, chunk=none, turn=none, after=number[relay.after[first]], num_turns=1)
    own = np.tile(np.arange(len(first), dtype=np.int32), num_rounds)
    return len(own), lambda: (_rounds(few), own), _connections_of(connections, *classes)


def _rounds(relay: Relay) -> Dependencies:
    """Return the transfers of all rounds with their waits; `after` may name a hop twice."""
    table, width = relay.table(), len(relay.src)
    row = np.arange(len(table), dtype=np.int32).reshape(-1, width)
    none = np.full(len(table), NO_ROW, dtype=np.int32)
    before = np.concatenate([none[:width], row[:-1].ravel()])
    return Dependencies(
        **{field.name: getattr(table, field.name) for field in fields(TransferTable)},
        data_dependency=np.concatenate([none[:width], row[:-1, relay.after].ravel()]),
        before_on_channel=before,
        before_on_connection=before,
        before_in_chunk=none,
        sent_before=none,
        buffer_dependency=none,
    )


def _of_copies(schedule: Schedule, copies: Copies, topology: Topology) -> _Few | None:
    num_ranks = topology.num_ranks
    first = replace(schedule, steps=copies.steps)  # which has some of its chunks
    own = used_connections(first)
    src, dst, channel, original = copies.of_connections(own.src, own.dst, own.channel)
    connections = connections_of(Ends.of(connection_keys(src, dst, channel, num_ranks), num_ranks), topology)
    classes = _Colouring(connections, topology, original).classes(len(own.src))
    if classes is None:
        return None
    place = np.empty(len(own.src), dtype=np.int32)
    place[original[classes[0].first]] = np.arange(len(own.src))
    keys = connection_keys(own.src, own.dst, own.channel, num_ranks)

    def listed() -> tuple[Dependencies, Rows]:
        rows = dependencies(first)
        return rows, place[np.searchsorted(keys, connection_keys(rows.src, rows.dst, rows.channel, num_ranks))]

    return copies.steps.num_transfers, listed, _connections_of(connections, *classes)


class _Partition(NamedTuple):
    """The first member of each class, in order, and the class of each member."""

    first: Ints
    number: Ints


def _partition(colours: Colours) -> _Partition:
    _, first, number = np.unique(colours, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return _Partition(first[order], rank[number])


class _Colouring:
    """The current colours of connections and of resources, each refined by the other.

    told_apart: (num_connections,); connections with different numbers are never alike.
    """

    def __init__(self, connections: Connections, topology: Topology, told_apart: Ints | int = 0) -> None:
        self._uses, self._use, self._resource = connections.use > 0, _bits(connections.use), connections.resource
        self._of_connection = _mixed(_static(connections, topology) + _mixed(np.asarray(told_apart, dtype=np.uint64)))
        burst = _mixed(_bits(connections.resources.burst_bytes))
        self._of_resource = _mixed(_bits(connections.resources.capacity) + burst)

    def classes(self, max_classes: int, *neighbours: Ints) -> tuple[_Partition, _Partition] | None:
        """Return the classes of connections and of resources; None for more than `max_classes` of connections.

        neighbours: (num_connections,) each; those of one class must have one colour.
        """
        known = (0, 0)
        while (counts := (self._num_colours(), len(np.unique(self._of_resource)))) != known:
            if counts[0] > max_classes:
                return None
            known = counts
            self._share_all_colours()
            colours = zip(neighbours, _FACTORS[12:], strict=False)
            near = sum(self._of_connection[column] * factor for column, factor in colours)
            self._of_connection = _mixed(self._of_connection * _FACTORS[3] + near)
        return _partition(self._of_connection), _partition(self._of_resource)

    def _num_colours(self) -> int:
        return len(np.unique(self._of_connection))

    def _share_all_colours(self) -> None:
        before = 0
        while (count := self._num_colours()) != before:
            before = count
            used = np.where(self._uses, _mixed(self._of_resource[self._resource] + self._use), np.uint64(0))
            self._of_connection = _mixed(self._of_connection * _FACTORS[4] + used.sum(axis=0, dtype=np.uint64))
            user = np.where(self._uses, _mixed(self._of_connection + self._use), np.uint64(0))
            users = np.zeros_like(self._of_resource)
            np.add.at(users, self._resource, user)
            self._of_resource = _mixed(self._of_resource * _FACTORS[5] + users)


def _static(connections: Connections, topology: Topology) -> Colours:
    processors, src, dst = topology.processors, connections.src, connections.dst
    columns: list[Floats] = [
        connections.latency_s,
        connections.most,
        processors.send_overhead_s[src],
        processors.receive_overhead_s[dst],
        processors.reduce_bytes_per_s[dst],
    ]
    total = np.zeros(len(src), dtype=np.uint64)
    for column, factor in zip(columns, _FACTORS, strict=False):
        total += _mixed(_bits(column)) * factor
    return _mixed(total)


def _bits(numbers: Floats) -> Colours:
    bits: Colours = np.ascontiguousarray(numbers + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    return bits


def _mixed(colours: Colours) -> Colours:
    """Return a hash of each number: the finaliser of SplitMix64 (Steele et al. 2014)."""
    colours = (colours ^ (colours >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    colours = (colours ^ (colours >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return colours ^ (colours >> np.uint64(31))


def _connections_of(connections: Connections, classes: _Partition, of_resources: _Partition) -> Connections:
    first, num_classes = classes.first, len(classes.first)
    column, user = np.nonzero(connections.use > 0)
    resource, use = connections.resource[column, user], connections.use[column, user]
    kept = of_resources.first[of_resources.number[resource]] == resource
    pair = classes.number[user[kept]] * (len(connections.resources.names) + 1) + resource[kept]
    pairs, number = np.unique(pair, return_inverse=True)
    owner, used = np.divmod(pairs, len(connections.resources.names) + 1)
    place = np.arange(len(pairs)) - np.searchsorted(owner, owner)
    shape = int(place.max(initial=-1)) + 1, num_classes
    resources, uses = np.zeros(shape, dtype=np.int64), np.zeros(shape)
    resources[place, owner] = used
    uses[place, owner] = np.bincount(number, weights=use[kept])
    columns = {name: getattr(connections, name)[first] for name in ("src", "dst", "latency_s", "most")}
    return replace(connections, **columns, resource=resources, use=uses)
