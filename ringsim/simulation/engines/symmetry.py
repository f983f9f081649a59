"""Transfers that must happen at the same times, since nothing tells them apart: one of each class is simulated.

Classes come from colour refinement, as in graph theory: two transfers keep the same colour as long as they cost the
same, wait for transfers of one colour, and share resources of one colour with transfers of the same colours. The result
is an equitable partition. The rails of NCCL's rings, for example, are all alike, and so are their hosts. Colours are
64-bit hashes, so that a few NumPy operations colour a step.

A class is sent on one connection, which stands for all connections of its class. It uses of a resource what all of them
use of it, so that the fair rates are the same: each resource of a class is filled alike.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringsim.network import NONE, Floats, Topology
from ringsim.schedule import NO_ROW, Dependencies, Schedule
from ringsim.simulation.engines.event_engine import EventRun
from ringsim.simulation.engines.waits import FOLLOWED_ONCE, ROWS_BEFORE, Ints, following
from ringsim.simulation.engines.work import TransferCosts
from ringsim.simulation.routes import Connections, RowConnections, connect
from ringsim.simulation.timeline import OnProgress, ignore_progress

MIN_TRANSFERS = 2**12  # with fewer, looking for classes takes as long as simulating

MIN_ALIKE = 2  # of a class on average, so that it pays to go by classes
Colours = npt.NDArray[np.uint64]
_FACTORS = np.random.default_rng(0).integers(2**63, 2**64, size=16, dtype=np.uint64) | np.uint64(1)


class Partition(NamedTuple):
    """Things by their colours: the first of each class, in order of first things, and the class of each thing."""

    first: Ints
    number: Ints

    @classmethod
    def of(cls, colours: Colours) -> "Partition":
        _, first, number = np.unique(colours, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return cls(first[order], rank[number])


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """The classes of rows, connections and resources, each with its own numbers."""

    rows: Partition
    connections: Partition
    resources: Partition


def find_classes(rows: Dependencies, sent_on: RowConnections, topology: Topology, chunk_bytes: Ints) -> Classes | None:
    """Return the classes of all rows; None if connections are alike by less than MIN_ALIKE on average.

    chunk_bytes: (num_chunks,).
    """
    colouring = _Colouring(rows, sent_on, topology, chunk_bytes)
    before: tuple[int, ...] = ()
    while (count := colouring.num_colours()) != before:
        if MIN_ALIKE * count[0] > len(sent_on.connections.src):
            return None
        before = count
        colouring.refine()
    return colouring.classes()


class ConnectionColouring:
    """The colours so far of connections and resources, by each other.

    told_apart: (num_connections,), a number for each connection; those with different ones are never alike.
    """

    def __init__(self, connections: Connections, topology: Topology, told_apart: Ints | int = 0) -> None:
        self._uses = connections.use > 0
        self._use = _bits(connections.use)
        self._resource = connections.resource
        self._of_connection = _mixed(_static(connections, topology) + _mixed(np.asarray(told_apart, dtype=np.uint64)))
        self._of_resource = _mixed(
            _bits(connections.resources.capacity) + _mixed(_bits(connections.resources.burst_bytes))
        )

    def share_all_colours(self) -> None:
        before = 0
        while (count := len(np.unique(self._of_connection))) != before:
            before = count
            self._share_colours()

    def refine_along(self, *neighbours: Ints) -> None:
        """Colour connections by their resources, and by the colours of a connection that each has in each column."""
        self.share_all_colours()
        colours = zip(neighbours, _FACTORS[12:], strict=False)
        self._of_connection = _mixed(
            self._of_connection * _FACTORS[3] + sum(self._of_connection[column] * factor for column, factor in colours)
        )

    def num_colours(self) -> tuple[int, ...]:
        """Return the number of colours of connections and of resources."""
        return len(np.unique(self._of_connection)), len(np.unique(self._of_resource))

    def partitions(self) -> tuple[Partition, Partition]:
        """Return the classes of connections and of resources."""
        return Partition.of(self._of_connection), Partition.of(self._of_resource)

    def _share_colours(self) -> None:
        used = np.where(self._uses, _mixed(self._of_resource[self._resource] + self._use), np.uint64(0))
        self._of_connection = _mixed(self._of_connection * _FACTORS[4] + used.sum(axis=0, dtype=np.uint64))
        user = np.where(self._uses, _mixed(self._of_connection + self._use), np.uint64(0))
        users = np.zeros_like(self._of_resource)
        np.add.at(users, self._resource, user)
        self._of_resource = _mixed(self._of_resource * _FACTORS[5] + users)


class _Colouring(ConnectionColouring):
    """The colours so far of rows too."""

    def __init__(self, rows: Dependencies, sent_on: RowConnections, topology: Topology, chunk_bytes: Ints) -> None:
        self._connection, connections = sent_on
        super().__init__(connections, topology)
        self._before = np.array([getattr(rows, name) for name in ROWS_BEFORE])
        self._after = np.array([following(getattr(rows, name))[:-1] for name in FOLLOWED_ONCE])
        self._step_bounds = np.searchsorted(rows.step, np.arange(int(rows.step.max(initial=-1)) + 2)).tolist()
        self._within_step = self._steps_with_chains()
        self._own = _mixed(_bits(chunk_bytes[rows.chunk].astype(np.float64)) + rows.reduce * _FACTORS[0])
        self._by_connection = np.argsort(self._connection, kind="stable")
        in_order = self._connection[self._by_connection]
        self._first_of_connection = np.searchsorted(in_order, np.arange(len(connections.src)))
        self._of_row = np.full(len(rows) + 1, _FACTORS[1])  # all alike; the last is that of NO_ROW

    def _steps_with_chains(self) -> list[bool]:
        """Return, for each step, whether some of its rows wait for others of it."""
        first, last = self._step_bounds[:-1], self._step_bounds[1:]
        latest = self._before.max(axis=0)
        return [begin < end and int(latest[begin:end].max()) >= begin for begin, end in zip(first, last, strict=True)]

    def refine(self) -> None:
        """Colour connections and resources by each other, all rows by these, and connections by their rows.

        Every new colour depends on the old one too. So the classes only become smaller, and if none does in a round,
        they are those of an equitable partition.
        """
        self.share_all_colours()
        after = sum(self._of_row[column] * factor for column, factor in zip(self._after, _FACTORS[12:], strict=False))
        own = self._own + self._of_connection[self._connection] * _FACTORS[2] + _mixed(after)
        for first, last, waits in zip(self._step_bounds[:-1], self._step_bounds[1:], self._within_step, strict=True):
            self._colour_step(slice(first, last), own, waits)
        total = np.add.reduceat(self._of_row[self._by_connection], self._first_of_connection)
        self._of_connection = _mixed(self._of_connection * _FACTORS[3] + total)

    def _colour_step(self, rows: slice, own: Colours, waits: bool) -> None:
        """Once where the rows wait for earlier steps alone; otherwise until this tells no more of them apart."""
        weights = _FACTORS[6 : 6 + len(self._before), None]
        num_colours = 0
        while True:
            waits_for = (self._of_row[self._before[:, rows]] * weights).sum(axis=0, dtype=np.uint64)
            self._of_row[rows] = _mixed(own[rows] + self._of_row[rows] * _FACTORS[0] + waits_for)
            if not waits or (count := len(np.unique(self._of_row[rows]))) == num_colours:
                return
            num_colours = count

    def num_colours(self) -> tuple[int, ...]:
        """Return the number of colours of connections, of resources, and of rows."""
        return *super().num_colours(), len(np.unique(self._of_row))

    def classes(self) -> Classes:
        return Classes(Partition.of(self._of_row[:-1]), *self.partitions())


def _static(connections: Connections, topology: Topology) -> Colours:
    """Return what tells connections apart before anything is sent on them.

    Their latency and rate, and their ends' costs.
    """
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
    """Return a hash of each number: the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    colours = (colours ^ (colours >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    colours = (colours ^ (colours >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return colours ^ (colours >> np.uint64(31))


def may_have_classes(schedule: Schedule, topology: Topology, chunk_bytes: Ints) -> bool:
    """Whether it is worth looking: chunks of one size, and ranks that are not told apart by chance or by failures."""
    if schedule.num_transfers < MIN_TRANSFERS or (chunk_bytes != chunk_bytes[0]).any():
        return False
    has_cores = bool((topology.processors.cores != NONE).any())
    return topology.jitter is None and not has_cores and not np.isfinite(topology.resources.fails_at_s).any()


def time_classes(
    rows: Dependencies, topology: Topology, chunk_bytes: Ints, on_progress: OnProgress = ignore_progress
) -> float:
    """Return the seconds until the last rank has finished, as `run_events` has it but for rounding.

    For schedules that `may_have_classes` permits. chunk_bytes: (num_chunks,).
    """
    sent_on = connect(rows, topology)
    classes = find_classes(rows, sent_on, topology, chunk_bytes)
    few = None if classes is None else _rows_of_classes(rows, classes.rows)
    if classes is None or few is None or not _are_followed_once(few):
        run = EventRun(TransferCosts(rows, topology, chunk_bytes), sent_on, on_progress)
        run.finish()
        return run.time_s
    number = classes.connections.number[sent_on.number[classes.rows.first]].astype(np.int32)
    sent_on = RowConnections(
        number, connections_of_classes(sent_on.connections, classes.connections, classes.resources)
    )
    run = EventRun(TransferCosts(few, topology, chunk_bytes), sent_on)
    run.finish()
    on_progress(len(rows))
    return run.time_s


def _rows_of_classes(rows: Dependencies, classes: Partition) -> Dependencies:
    """Return the first row of each class, which waits for the first rows of other classes."""
    columns = {name: getattr(rows, name)[classes.first] for name in Dependencies.__dataclass_fields__}
    for name in ROWS_BEFORE:
        before = columns[name]
        columns[name] = np.where(before == NO_ROW, NO_ROW, classes.number[before]).astype(np.int32)
    return Dependencies(**columns)


def _are_followed_once(rows: Dependencies) -> bool:
    """Whether at most one row follows each on its channel, and so on, as the engine takes for granted."""
    columns = (getattr(rows, name) for name in FOLLOWED_ONCE)
    return all(np.bincount(c[c != NO_ROW], minlength=1).max() <= 1 for c in columns)


def connections_of_classes(connections: Connections, classes: Partition, of_resources: Partition) -> Connections:
    """Return the first connection of each class, with what all of its class use of the first resource of each class."""
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
