"""The event engine with one transfer of each class: what is alike happens at the same times, and is simulated once.

A class (see `find_classes`) is sent on one connection, which stands for all connections of its class. It uses of a
resource what all of them use of it, so that the fair rates are the same: each resource of a class is filled alike.
"""

from dataclasses import replace

import numpy as np

from ringsim.network import NONE, Topology
from ringsim.schedule import NO_ROW, Dependencies, Schedule, dependencies
from ringsim.simulation.engines.by_event import EventRun
from ringsim.simulation.engines.row_classes import Classes, Partition, find_classes
from ringsim.simulation.engines.slots import Connections, connections_of, number_connections
from ringsim.simulation.engines.waiting import FOLLOWED_ONCE, ROWS_BEFORE, Ints
from ringsim.simulation.timeline import OnProgress, ignore_progress

MIN_TRANSFERS = 2**12  # with fewer, looking for classes takes as long as simulating


def may_have_classes(schedule: Schedule, topology: Topology, chunk_bytes: Ints) -> bool:
    """Whether it is worth looking: chunks of one size, and ranks that are not told apart by chance or by failures."""
    if schedule.num_transfers < MIN_TRANSFERS or (chunk_bytes != chunk_bytes[0]).any():
        return False
    has_cores = bool((topology.processors.cores != NONE).any())
    return topology.jitter is None and not has_cores and not np.isfinite(topology.resources.fails_at_s).any()


def time_classes(
    schedule: Schedule,
    topology: Topology,
    chunk_bytes: Ints,
    on_progress: OnProgress = ignore_progress,
    *,
    in_order: bool = False,
) -> float:
    """Seconds until the last rank has finished, as `run_events` has it but for rounding.

    For what `may_have_classes` permits. chunk_bytes: (num_chunks,). in_order: see `dependencies`.
    """
    rows = dependencies(schedule, in_order=in_order)
    connection, ends = number_connections(rows, topology.num_ranks)
    connections = connections_of(ends, topology)
    classes = find_classes(rows, connection, connections, topology, chunk_bytes)
    few = None if classes is None else _rows_of_classes(rows, classes.rows)
    if classes is None or few is None or not _are_followed_once(few):
        return _time_s(
            EventRun(rows, topology, chunk_bytes, on_progress=on_progress, sent_on=(connection, connections))
        )
    number = classes.connections.number[connection[classes.rows.first]].astype(np.int32)
    time_s = _time_s(
        EventRun(few, topology, chunk_bytes, sent_on=(number, _connections_of_classes(connections, classes)))
    )
    on_progress(len(rows))
    return time_s


def _time_s(run: EventRun) -> float:
    run.finish()
    return run.time_s


def _rows_of_classes(rows: Dependencies, classes: Partition) -> Dependencies:
    """The first row of each class, which waits for the first rows of other classes."""
    columns = {name: getattr(rows, name)[classes.first] for name in Dependencies.__dataclass_fields__}
    for name in ROWS_BEFORE:
        before = columns[name]
        columns[name] = np.where(before == NO_ROW, NO_ROW, classes.number[before]).astype(np.int32)
    return Dependencies(**columns)


def _are_followed_once(rows: Dependencies) -> bool:
    """Whether at most one row follows each on its channel, and so on, as the engine takes for granted."""
    columns = (getattr(rows, name) for name in FOLLOWED_ONCE)
    return all(np.bincount(c[c != NO_ROW], minlength=1).max() <= 1 for c in columns)


def _connections_of_classes(connections: Connections, classes: Classes) -> Connections:
    """The first connection of each class, with what all of its class use of the first resource of each class."""
    first, num_classes = classes.connections.first, len(classes.connections.first)
    column, user = np.nonzero(connections.use > 0)
    resource, use = connections.resource[column, user], connections.use[column, user]
    kept = classes.resources.first[classes.resources.number[resource]] == resource
    pair = classes.connections.number[user[kept]] * (len(connections.resources.names) + 1) + resource[kept]
    pairs, number = np.unique(pair, return_inverse=True)
    owner, used = np.divmod(pairs, len(connections.resources.names) + 1)
    place = np.arange(len(pairs)) - np.searchsorted(owner, owner)
    shape = int(place.max(initial=-1)) + 1, num_classes
    resources, uses = np.zeros(shape, dtype=np.int64), np.zeros(shape)
    resources[place, owner] = used
    uses[place, owner] = np.bincount(number, weights=use[kept])
    columns = {name: getattr(connections, name)[first] for name in ("src", "dst", "latency_s", "most")}
    return replace(connections, **columns, resource=resources, use=uses)
