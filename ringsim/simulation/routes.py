"""The connections of a schedule, their shared resources, and in-network reduction.

A connection is a pair of ranks and a channel. A resource is shared if connections of different senders use it. Other
resources limit one message at a time, and are part of the connection's own rate.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from ringsim.network import NONE, Floats, InSwitch, Ints, Paths, Resources, Topology, connection_ends, connection_keys
from ringsim.schedule import Bools, Dependencies, Rows, Schedule, Steps


@dataclass(frozen=True, slots=True, eq=False)
class Connections:
    """The connections of a schedule, and their limits; (num_connections,) unless said otherwise.

    most: bytes per second if nothing is shared.
    resource, use: (width, num_connections), of shared resources.
    resources: those of the topology, and the links of pairs of ranks with several connections.
    """

    src: Ints
    dst: Ints
    latency_s: Floats
    most: Floats
    resource: Ints
    use: Floats
    resources: Resources


class Ends(NamedTuple):
    """The ends of connections, (num_connections,). sender: a number for the sending rank and channel."""

    src: Ints
    dst: Ints
    sender: Ints
    channel: Ints

    @classmethod
    def of(cls, keys: Ints, num_ranks: int) -> Self:
        src, dst, channel = connection_ends(keys, num_ranks)
        return cls(src, dst, keys // num_ranks, channel)

    def of_workers(self, num_workers: int) -> "Ends":
        src, dst, channel = (np.tile(column, num_workers) for column in (self.src, self.dst, self.channel))
        num_senders = self.sender.max(initial=0) + 1
        sender = np.concatenate([self.sender + worker * num_senders for worker in range(num_workers)])
        return Ends(src, dst, sender, channel)


class RowConnections(NamedTuple):
    """All connections, and the number of each row's connection, (num_rows,)."""

    number: Rows
    connections: Connections


def connect(rows: Dependencies, topology: Topology, num_workers: int = 1) -> RowConnections:
    """Return the connections of these rows, once for each worker; rows use the first worker's."""
    keys = connection_keys(rows.src, rows.dst, rows.channel, topology.num_ranks)
    known, number = np.unique(keys, return_inverse=True)
    ends = Ends.of(known, topology.num_ranks).of_workers(num_workers)
    return RowConnections(number.astype(np.int32), connections_of(ends, topology))


def connections_of(ends: Ends, topology: Topology) -> Connections:
    """Return the connections between these pairs of ranks, in their order."""
    paths, resources = _with_links_of_pairs(ends, topology)
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
        np.concatenate([resources.burst_bytes, np.zeros(len(pair))]),
    )


def _is_shared(ends: Ends, paths: Paths, resources: Resources, cores: Ints) -> Bools:
    named = paths.resource != NONE
    sender = np.broadcast_to(ends.sender[:, None], named.shape)[named]
    num_senders = int(sender.max(initial=0)) + 1
    users = np.unique(paths.resource[named] * num_senders + sender)  # a channel sends one message at a time
    count = np.bincount(users // num_senders, minlength=len(resources.names))
    count += np.bincount(cores[cores != NONE], minlength=len(count))
    return (count > 1) | np.isfinite(resources.fails_at_s) | (resources.burst_bytes > 0)


def has_contention(schedule: Schedule, topology: Topology) -> bool:
    """Return whether two messages of a schedule can contend on a topology.

    They cannot if every resource serves at most one channel of one rank.
    """
    return have_contention(used_connections(schedule), topology)


def have_contention(connections: Ends, topology: Topology) -> bool:
    """Return whether messages on these connections can contend."""
    if (topology.processors.cores != NONE).any():
        return True
    return bool((connections_of(connections, topology).use > 0).any())


def used_connections(schedule: Schedule) -> Ends:
    """Return the connections that some transfer uses, each once, in order."""
    return Ends.of(np.unique(_connection_keys(schedule.steps, schedule.num_ranks)), schedule.num_ranks)


def _connection_keys(steps: Steps, num_ranks: int) -> Ints:
    if steps.copies and not steps.relay:
        first = connection_ends(np.unique(_connection_keys(steps.copies.steps, num_ranks)), num_ranks)
        return connection_keys(*steps.copies.of_connections(*first)[:3], num_ranks)
    rows = steps.relay or steps.table
    return connection_keys(rows.src, rows.dst, rows.channel, num_ranks)


def with_in_network_reduction(schedules: Sequence[Schedule], topology: Topology) -> Topology:
    """Return the topology with the connections whose messages its switches add or copy.

    A switch adds the messages of a step that a rank adds to one chunk, and copies a chunk that a rank sends to several,
    if all these ranks are connected to it, and this holds for all messages of a connection.
    """
    if topology.switch_of_rank is None:
        return topology
    num_ranks = topology.num_ranks
    kinds = 2 * num_ranks + 1
    distinct = {id(schedule): schedule for schedule in schedules}.values()
    merged = (_merged(schedule, topology.switch_of_rank) for schedule in distinct)
    known = [np.unique(key * kinds + number + num_ranks) for key, number in merged]
    key, number = np.divmod(np.unique(np.concatenate(known)), kinds)
    number -= num_ranks
    first = np.flatnonzero(np.diff(key, prepend=-1))
    kept = first[(np.diff(np.append(first, len(key))) == 1) & (number[first] != 0)]
    if not len(kept):
        return topology
    added, copied = np.maximum(number[kept], 1), np.maximum(-number[kept], 1)
    reducing = copy(topology)
    reducing.in_switch = InSwitch(key[kept], added, copied)
    return reducing


def _merged(schedule: Schedule, switch: Ints) -> tuple[Ints, Ints]:
    """Return connections, and the number of messages on each that are added together or, as a negative number, copied.

    It is 0 in a relay, in which no rank sends or receives a chunk twice at a time.
    """
    if schedule.steps.relay:
        key = _connection_keys(schedule.steps, schedule.num_ranks)
        return key, np.zeros_like(key)
    rows, num_ranks = schedule.steps.table, schedule.num_ranks
    is_local = switch[rows.src] == switch[rows.dst]
    owner = np.where(rows.reduce, rows.dst, rows.src)
    # A group has one step, kind, owner and chunk, and goes from or to the owner's switch.
    kind = (rows.step.astype(np.int64) * num_ranks + owner) * 4 + 2 * rows.reduce + is_local
    _, group, count = np.unique(kind * schedule.num_chunks + rows.chunk, return_inverse=True, return_counts=True)
    number = np.where(is_local & (count[group] > 1), np.where(rows.reduce, count[group], -count[group]), 0)
    return connection_keys(rows.src, rows.dst, rows.channel, num_ranks), number
