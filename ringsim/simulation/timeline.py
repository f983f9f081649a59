"""`Timeline`: when each transfer started, left, arrived and was applied; and what each would take alone."""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from ringsim.network import Floats, Ints, Topology
from ringsim.schedule import Rows
from ringsim.units import format_time

Seconds = npt.NDArray[np.float64]
OnProgress = Callable[[int], object]


def ignore_progress(_: int) -> None:
    """Do nothing; what is told how far a simulation is where nobody wants to know."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One run of a schedule, simulated or measured; a column per field, each of shape (num_transfers,).

    Rows are in step order. Times are seconds from the start of the run: a transfer holds its link from
    `start_s` to `sent_s`, has arrived at `arrived_s`, and occupies the receiving rank from `apply_s` to
    `applied_s`.
    """

    num_ranks: int
    num_chunks: int
    step: npt.NDArray[np.int32]
    src: npt.NDArray[np.int32]
    dst: npt.NDArray[np.int32]
    chunk: npt.NDArray[np.int32]
    reduce: npt.NDArray[np.bool_]
    start_s: Seconds
    sent_s: Seconds
    arrived_s: Seconds
    apply_s: Seconds
    applied_s: Seconds

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        time = format_time(self.time_s) if math.isfinite(self.time_s) else "never finishes"
        return f"Timeline({self.num_ranks} ranks, {len(self)} transfers, {time})"

    @property
    def time_s(self) -> float:
        """When the last transfer was applied; 0 if there is none, infinite if one never is."""
        return float(self.applied_s.max(initial=0.0))

    @property
    def until_s(self) -> float:
        """When the last thing happened that did happen; `time_s` where everything did."""
        columns = (self.start_s, self.sent_s, self.arrived_s, self.apply_s, self.applied_s)
        return max(float(column.max(initial=0.0, where=np.isfinite(column))) for column in columns)

    def applied_order(self, rank: int) -> list[tuple[int, int, int]]:
        """Return what `rank` applied, as (step, src, chunk), in the order of time."""
        rows = np.flatnonzero(self.dst == rank)
        rows = rows[np.lexsort((rows, self.applied_s[rows], self.apply_s[rows]))]
        return [(int(self.step[i]), int(self.src[i]), int(self.chunk[i])) for i in rows]

    def columns(self) -> dict[str, list[float]]:
        """Return all columns as plain lists, for JSON."""
        names = [field.name for field in fields(self)][2:]
        return {name: getattr(self, name).tolist() for name in names}


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Seconds on its own core, of some rows of a timeline; each (num_rows,), jitter included."""

    send_overhead_s: Floats
    receive_overhead_s: Floats
    reduce_s: Floats


def costs_of(timeline: Timeline, topology: Topology, chunk_bytes: Ints, row: Ints) -> Costs:
    """Return what sender and receiver do for these rows. chunk_bytes: (num_chunks,)."""
    processors, factors = topology.processors, jitter_factors(topology, timeline.step)
    factor = np.ones(len(row)) if factors is None else factors[1][row]
    src, dst = timeline.src[row], timeline.dst[row]
    reduce_s = chunk_bytes[timeline.chunk[row]] / processors.reduce_bytes_per_s[dst]
    return Costs(
        send_overhead_s=processors.send_overhead_s[src] * factor,
        receive_overhead_s=processors.receive_overhead_s[dst] * factor,
        reduce_s=np.where(timeline.reduce[row], reduce_s, 0.0) * factor,
    )


def bytes_s(timeline: Timeline, topology: Topology, chunk_bytes: Ints, row: Ints, channel: Rows) -> Floats:
    """Return what their bytes alone take on their paths: (num_rows,). channel: (num_rows,), on which they are sent."""
    src, dst = timeline.src[row].astype(np.int64), timeline.dst[row].astype(np.int64)
    paths = topology.connection_paths(src, dst, channel.astype(np.int64))
    return chunk_bytes[timeline.chunk[row]] / paths.alone_bytes_per_s(topology.resources)


def jitter_factors(topology: Topology, step: Rows) -> Floats | None:
    """Return what to multiply latencies and computing with, if anything: (2, num_rows). step: (num_rows,), rising."""
    if topology.jitter is None or not len(step):
        return None
    factors = [topology.jitter.factors(number, size) for number, size in enumerate(np.bincount(step).tolist())]
    return np.concatenate(factors, axis=1)
