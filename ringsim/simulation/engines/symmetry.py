"""Connections that must be busy at the same times, since nothing tells them apart: one of each class is simulated.

Classes come from colour refinement, as in graph theory: two connections keep the same colour as long as they cost the
same, and share resources of one colour with connections of the same colours. The result is an equitable partition. The
rails of NCCL's rings, for example, are all alike, and so are their hosts. Colours are 64-bit hashes.

A class is one connection, which stands for all connections of its class. It uses of a resource what all of them use of
it, so that the fair rates are the same: each resource of a class is filled alike.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringsim.network import NONE, Floats, Topology
from ringsim.schedule import Schedule
from ringsim.simulation.engines.waits import Ints
from ringsim.simulation.routes import Connections

MIN_TRANSFERS = 2**12  # with fewer, looking for classes takes as long as simulating

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
