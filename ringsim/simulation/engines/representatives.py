"""A few connections that stand for all, where a schedule says how it is made: so most transfers are never listed.

`symmetry` has the classes of connections; which transfers go over them is known from the steps:

- In a `Relay`, as NCCL's rings are, every round is like the one before. So connections are alike that cost the same,
  follow on and are followed by connections that are alike, and share resources that are alike. Of rings over hosts of m
  ranks m connections are left: one host stands for all, however many there are.
- Of `Copies`, as NCCL's trees are on each of its rails, one copy of each part stands for all if the copies of every
  connection share resources that are alike.

A representative is simulated through all steps on the event engine, at the times that all have whom it stands for.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ringsim.network import Topology, connection_keys
from ringsim.schedule import NO_ROW, Copies, Dependencies, Relay, Rows, Schedule, dependencies
from ringsim.simulation.engines.event_engine import EventRun
from ringsim.simulation.engines.symmetry import ConnectionColouring, connections_of_classes
from ringsim.simulation.engines.waits import Ints
from ringsim.simulation.engines.work import TransferCosts
from ringsim.simulation.routes import Connections, Ends, RowConnections, connections_of, used_connections

# Representatives beyond which they take more than some ten seconds; of a relay few happen at once.
MAX_ROUND_ROWS, MAX_COPY_ROWS = 2**17, 2**19


@dataclass(frozen=True, slots=True, eq=False)
class Representatives:
    """The transfers that stand for all of a schedule.

    rows: makes them. number: (num_rows,) of their connections, of the rows that it has made.
    """

    num_rows: int
    rows: Callable[[], Dependencies]
    number: Callable[[Dependencies], Rows]
    connections: Connections

    def time_s(self, topology: Topology, chunk_bytes: int) -> float:
        """Return the seconds until the last rank has finished, if all chunks have `chunk_bytes` bytes."""
        rows = self.rows()
        sizes = np.full(int(rows.chunk.max()) + 1, chunk_bytes)
        run = EventRun(TransferCosts(rows, topology, sizes), RowConnections(self.number(rows), self.connections))
        run.finish()
        return run.time_s


def representatives(schedule: Schedule, topology: Topology) -> Representatives | None:
    """Return the representatives of a schedule whose ranks do not execute in order; None if not known, or too many.

    For topologies on which transfers may have classes, see `symmetry.may_have_classes`.
    """
    if not may_have_representatives(schedule):
        return None
    relay, copies = schedule.steps.relay, schedule.steps.copies
    if relay:
        return _of_relay(relay, topology)
    return _of_copies(schedule, copies, topology) if copies else None


def may_have_representatives(schedule: Schedule) -> bool:
    """Return whether it is worth looking: what its transfers follow from is known, and that is not too large."""
    copies = schedule.steps.copies
    return schedule.steps.relay is not None or (copies is not None and copies.steps.num_transfers <= MAX_COPY_ROWS)


def _of_relay(relay: Relay, topology: Topology) -> Representatives | None:
    keys = connection_keys(relay.src, relay.dst, relay.channel, topology.num_ranks)
    if len(np.unique(keys)) < len(keys):
        return None  # chunks go in segments, of which one waits for another
    connections = connections_of(Ends.of(keys, topology.num_ranks), topology)
    colouring = ConnectionColouring(connections, topology)
    neighbours = relay.after, np.argsort(relay.after)
    num_rounds = len(relay.reduces)
    known: tuple[int, ...] = ()
    while (counts := colouring.num_colours()) != known:
        if counts[0] * num_rounds > MAX_ROUND_ROWS:
            return None
        known = counts
        colouring.refine_along(*neighbours)
    classes, resources = colouring.partitions()
    number = np.tile(np.arange(len(classes.first), dtype=np.int32), num_rounds)
    return Representatives(
        num_rows=len(number),
        rows=lambda: _rounds(relay, classes.first, classes.number[relay.after[classes.first]]),
        number=lambda _: number,
        connections=connections_of_classes(connections, classes, resources),
    )


def _rounds(relay: Relay, connections: Ints, after: Ints) -> Dependencies:
    """Return what goes over these connections, round after round. after: the place of the one that each follows on."""
    num_rounds, width = len(relay.reduces), len(connections)
    row = np.arange(num_rounds * width, dtype=np.int32).reshape(num_rounds, width)
    none = np.full(row.size, NO_ROW, dtype=np.int32)

    def in_all_rounds(column: Ints) -> Rows:
        return np.tile(column[connections].astype(np.int32), num_rounds)

    def in_round_before(places: Ints) -> Rows:
        return np.concatenate([none[:width], row[:-1, places].ravel()])

    before = in_round_before(np.arange(width))
    return Dependencies(
        step=np.repeat(np.arange(num_rounds, dtype=np.int32), width),
        src=in_all_rounds(relay.src),
        dst=in_all_rounds(relay.dst),
        chunk=np.zeros(row.size, dtype=np.int32),
        reduce=np.repeat(np.array(relay.reduces), width),
        channel=in_all_rounds(relay.channel),
        data_dependency=in_round_before(after),
        before_on_channel=before,
        before_on_connection=before,
        before_in_chunk=none,
        sent_before=none,
        buffer_dependency=none,
    )


def _of_copies(schedule: Schedule, copies: Copies, topology: Topology) -> Representatives | None:
    num_ranks = topology.num_ranks
    first = replace(schedule, steps=copies.steps)  # which has some of its chunks
    own = used_connections(first)
    src, dst, channel, original = copies.of_connections(own.src, own.dst, own.channel)
    connections = connections_of(Ends.of(connection_keys(src, dst, channel, num_ranks), num_ranks), topology)
    colouring = ConnectionColouring(connections, topology, original)
    known: tuple[int, ...] = ()
    while (counts := colouring.num_colours()) != known:
        if counts[0] > len(own.src):
            return None
        known = counts
        colouring.share_all_colours()
    classes, resources = colouring.partitions()
    place = np.empty(len(own.src), dtype=np.int32)
    place[original[classes.first]] = np.arange(len(own.src))
    keys = connection_keys(own.src, own.dst, own.channel, num_ranks)
    return Representatives(
        num_rows=copies.steps.num_transfers,
        rows=lambda: dependencies(first),
        number=lambda rows: place[np.searchsorted(keys, connection_keys(rows.src, rows.dst, rows.channel, num_ranks))],
        connections=connections_of_classes(connections, classes, resources),
    )
