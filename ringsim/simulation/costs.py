"""What transfers of a timeline would take if nothing else were going on."""

from dataclasses import dataclass

import numpy as np

from ringsim.network import Floats, Ints, Topology
from ringsim.schedule import Rows
from ringsim.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Seconds on a core of its own, of some rows of a timeline; each (num_rows,), jitter included."""

    send_overhead_s: Floats
    receive_overhead_s: Floats
    reduce_s: Floats


def costs_of(timeline: Timeline, topology: Topology, chunk_bytes: Ints, row: Ints) -> Costs:
    """What sender and receiver do for these rows. chunk_bytes: (num_chunks,)."""
    processors, factor = topology.processors, _compute_factors(timeline, topology, row)
    src, dst = timeline.src[row], timeline.dst[row]
    reduce_s = chunk_bytes[timeline.chunk[row]] / processors.reduce_bytes_per_s[dst]
    return Costs(
        send_overhead_s=processors.send_overhead_s[src] * factor,
        receive_overhead_s=processors.receive_overhead_s[dst] * factor,
        reduce_s=np.where(timeline.reduce[row], reduce_s, 0.0) * factor,
    )


def bytes_s(timeline: Timeline, topology: Topology, chunk_bytes: Ints, row: Ints, channel: Rows) -> Floats:
    """(num_rows,): what their bytes alone take on their paths. channel: (num_rows,), on which they are sent."""
    src, dst = timeline.src[row].astype(np.int64), timeline.dst[row].astype(np.int64)
    paths = topology.connection_paths(src, dst, channel.astype(np.int64))
    seconds: Floats = chunk_bytes[timeline.chunk[row]] / paths.alone_bytes_per_s(topology.resources)
    return seconds


def _compute_factors(timeline: Timeline, topology: Topology, row: Ints) -> Floats:
    """What `Jitter` multiplies overheads and reductions with; it draws for a whole step at once."""
    factors = np.ones(len(row))
    if topology.jitter is None or not len(row):
        return factors
    sizes = np.bincount(timeline.step)
    first = np.cumsum(sizes) - sizes
    order = np.argsort(timeline.step[row], kind="stable")
    steps, begins = np.unique(timeline.step[row[order]], return_index=True)
    for step, places in zip(steps.tolist(), np.split(order, begins[1:]), strict=True):
        _, of_compute = topology.jitter.factors(step, int(sizes[step]))
        factors[places] = of_compute[row[places] - first[step]]
    return factors
