"""`Timeline`: the times at which each transfer started, left, arrived and was applied; `TransferCosts`: its costs."""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringsim.network import Floats, Ints, Topology
from ringsim.schedule import AnyInts, Bools, Rows, TransferTable
from ringsim.units import format_time

Seconds = npt.NDArray[np.float64]
OnProgress = Callable[[int], object]


def ignore_progress(_: int) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One run of a schedule, simulated or measured; each column is (num_transfers,), in step order.

    Times are seconds from the start. A transfer holds its link from `start_s` to `sent_s`, and occupies the receiving
    rank from `apply_s` to `applied_s`.
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
        """When the last event happened; `time_s` if all transfers were applied."""
        columns = (self.start_s, self.sent_s, self.arrived_s, self.apply_s, self.applied_s)
        return max(float(column.max(initial=0.0, where=np.isfinite(column))) for column in columns)

    def applied_order(self, rank: int) -> list[tuple[int, int, int]]:
        """Return the transfers that `rank` applied as (step, src, chunk), by time."""
        rows = np.flatnonzero(self.dst == rank)
        rows = rows[np.lexsort((rows, self.applied_s[rows], self.apply_s[rows]))]
        return [(int(self.step[i]), int(self.src[i]), int(self.chunk[i])) for i in rows]

    def columns(self) -> dict[str, list[float]]:
        names = [field.name for field in fields(self)][2:]
        return {name: getattr(self, name).tolist() for name in names}


class CopyCounts(NamedTuple):
    """The copies of ranks that read received chunks in place; (num_rows,) each.

    published: whether the sender copies the chunk to where the receiver reads it.
    at_receiver: the receiver's time besides adding, in copies of the chunk.
    """

    published: Bools
    at_receiver: Floats


class TransferCosts:
    """The costs of each row alone on a topology, jitter included, in seconds of the rank's own core.

    rows: in step order. chunk_bytes: (num_chunks,). copies: None if messages travel.
    """

    def __init__(
        self, rows: TransferTable | Timeline, topology: Topology, chunk_bytes: AnyInts, copies: CopyCounts | None = None
    ) -> None:
        self._rows, self._processors, self._copies = rows, topology.processors, copies
        self._bytes = chunk_bytes.astype(np.float64)
        self._jitter = _jitter_factors(topology, rows.step)
        self._applying_is_free = bool(np.isinf(self._processors.reduce_bytes_per_s).all())
        self._applying_is_free &= not self._processors.receive_overhead_s.any() and copies is None

    def overhead_s(self, row: AnyInts) -> Floats:
        return self._of_compute(row, self._processors.send_overhead_s[self._rows.src[row]])

    def num_bytes(self, row: AnyInts) -> Floats:
        num_bytes = self._bytes[self._rows.chunk[row]]
        return num_bytes if self._copies is None else np.where(self._copies.published[row], num_bytes, 0.0)

    def latency_s(self, row: AnyInts, of_connection_s: Floats) -> Floats:
        return of_connection_s if self._jitter is None else of_connection_s * self._jitter[0][row]

    def receive_overhead_s(self, row: AnyInts) -> Floats:
        return self._of_compute(row, self._processors.receive_overhead_s[self._rows.dst[row]])

    def reduce_s(self, row: AnyInts) -> Floats:
        return self._of_compute(row, self._adding_s(row))

    def apply_s(self, row: AnyInts) -> Floats:
        if self._applying_is_free:
            return np.zeros(len(row))
        dst = self._rows.dst[row]
        apply_s = self._processors.receive_overhead_s[dst] + self._adding_s(row)
        if self._copies is not None:
            copy_s = self._bytes[self._rows.chunk[row]] / self._processors.copy_bytes_per_s[dst]
            apply_s = apply_s + self._copies.at_receiver[row] * copy_s
        return self._of_compute(row, apply_s)

    def _adding_s(self, row: AnyInts) -> Floats:
        reduce_s = self._bytes[self._rows.chunk[row]] / self._processors.reduce_bytes_per_s[self._rows.dst[row]]
        return np.where(self._rows.reduce[row], reduce_s, 0.0)

    def _of_compute(self, row: AnyInts, seconds: Floats) -> Floats:
        return seconds if self._jitter is None else seconds * self._jitter[1][row]


def bytes_s(timeline: Timeline, topology: Topology, chunk_bytes: Ints, row: Ints, channel: Rows) -> Floats:
    """Return the time of the bytes alone on their paths, (num_rows,). channel: (num_rows,)."""
    src, dst = timeline.src[row].astype(np.int64), timeline.dst[row].astype(np.int64)
    paths = topology.connection_paths(src, dst, channel.astype(np.int64))
    return chunk_bytes[timeline.chunk[row]] / paths.alone_bytes_per_s(topology.resources)


def _jitter_factors(topology: Topology, step: Rows) -> Floats | None:
    """Return factors for latency and for computation, (2, num_rows); None without jitter. step: (num_rows,), rising."""
    if topology.jitter is None or not len(step):
        return None
    factors = [topology.jitter.factors(number, size) for number, size in enumerate(np.bincount(step).tolist())]
    return np.concatenate(factors, axis=1)
