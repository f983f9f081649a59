"""Rings that share links, such as NCCL's, in virtual time: one connection stands for all that nothing tells apart.

In a `Relay` every round is like the one before, so it is enough to know which connections are alike: those that cost
the same, follow on and are followed by connections that are alike, and share resources that are alike. Of NCCL's rings
on hosts of m ranks m connections are left, however many hosts there are: one host stands for all. Each is simulated
through all rounds, on the event engine. So the transfers, which can be tens of millions, are never listed.
"""

import numpy as np

from ringsim.network import Topology, connection_keys
from ringsim.schedule import NO_ROW, Dependencies, Relay, Rows
from ringsim.simulation.engines.event_engine import EventRun
from ringsim.simulation.engines.symmetry import ConnectionColouring, Partition, connections_of_classes
from ringsim.simulation.engines.waits import Ints
from ringsim.simulation.engines.work import TransferCosts
from ringsim.simulation.routes import Connections, Ends, RowConnections, connections_of

MAX_ROWS = 2**17  # of the classes, in all rounds; they take some ten seconds


class RelayClasses:
    """The classes of the connections of a relay on a topology, of which one each is simulated."""

    def __init__(self, relay: Relay, connections: Connections, classes: Partition, resources: Partition) -> None:
        self._relay, self._connections, self._classes, self._resources = relay, connections, classes, resources

    @property
    def num_rows(self) -> int:
        """The transfers that are simulated."""
        return len(self._relay.reduces) * len(self._classes.first)

    def time_s(self, topology: Topology, chunk_bytes: Ints) -> float:
        """Return the seconds until the last rank has finished. chunk_bytes: (num_chunks,), all the same."""
        sent_on = RowConnections(
            np.tile(np.arange(len(self._classes.first), dtype=np.int32), len(self._relay.reduces)),
            connections_of_classes(self._connections, self._classes, self._resources),
        )
        run = EventRun(TransferCosts(self._rows(), topology, chunk_bytes[:1]), sent_on)
        run.finish()
        return run.time_s

    def _rows(self) -> Dependencies:
        """Return the transfers of one connection of each class, round after round."""
        relay, first = self._relay, self._classes.first
        num_rounds, num_classes = len(relay.reduces), len(first)
        row = np.arange(num_rounds * num_classes, dtype=np.int32).reshape(num_rounds, num_classes)
        none = np.full(row.size, NO_ROW, dtype=np.int32)

        def in_all_rounds(column: Ints) -> Rows:
            return np.tile(column[first].astype(np.int32), num_rounds)

        def in_round_before(column: Ints) -> Rows:
            before = np.full(row.shape, NO_ROW, dtype=np.int32)
            before[1:] = row[:-1, column]
            return before.ravel()

        before = in_round_before(np.arange(num_classes))
        return Dependencies(
            step=np.repeat(np.arange(num_rounds, dtype=np.int32), num_classes),
            src=in_all_rounds(relay.src),
            dst=in_all_rounds(relay.dst),
            chunk=np.zeros(row.size, dtype=np.int32),
            reduce=np.repeat(np.array(relay.reduces), num_classes),
            channel=in_all_rounds(relay.channel),
            data_dependency=in_round_before(self._classes.number[relay.after[first]]),
            before_on_channel=before,
            before_on_connection=before,
            before_in_chunk=none,
            sent_before=none,
            buffer_dependency=none,
        )


def classes_of_relay(relay: Relay, topology: Topology, max_rows: int = MAX_ROWS) -> RelayClasses | None:
    """Return the classes of a relay's connections; None if more than `max_rows` transfers would be simulated.

    For topologies on which transfers may have classes, see `symmetry.may_have_classes`.
    """
    keys = connection_keys(relay.src, relay.dst, relay.channel, topology.num_ranks)
    connections = connections_of(Ends.of(keys, topology.num_ranks), topology)
    colouring = ConnectionColouring(connections, topology)
    before = relay.after
    after = np.argsort(before)
    known: tuple[int, ...] = ()
    while (counts := colouring.num_colours()) != known:
        if counts[0] * len(relay.reduces) > max_rows:
            return None
        known = counts
        colouring.refine_along(before, after)
    return RelayClasses(relay, connections, *colouring.partitions())
