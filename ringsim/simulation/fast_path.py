"""The fast path: the time of a schedule whose transfers follow from a rule, without listing all of them.

`fast_path` chooses: the rounds of a ring or the steps of another schedule that share nothing, both here, or a few
transfers that represent all (see `representatives`).

If nothing is shared, every time is a maximum of earlier times plus a cost: a round is a few NumPy operations, and only
its own times are kept. Each rank has one connection out and one in; execution in order therefore has the same times.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ringsim.limits import LOOKED_AT_TRANSFERS, require_memory
from ringsim.network import NONE, Floats, Ints, Topology
from ringsim.schedule import Relay, Schedule, dependencies
from ringsim.simulation.representatives import Representatives, representatives
from ringsim.simulation.routes import connect, have_contention, used_connections
from ringsim.simulation.timeline import OnProgress, Seconds, Timeline, TransferCosts, ignore_progress
from ringsim.simulation.waits import unknown

MIN_TRANSFERS = 2**12  # below, the search for representatives takes longer than the simulation
BYTES_OF_HOP = 8 * 12  # of memory, intermediate arrays included
Cost = Floats | float  # seconds of each transfer, or of any
Index = Ints | slice  # a slice where the numbers are neighbours, in order


def fast_path(
    schedule: Schedule, topology: Topology, chunk_bytes: Ints, *, in_order: bool
) -> "PrivateRounds | Representatives | None":
    """Return an object that gives the time without listing all transfers; None if they must be listed.

    chunk_bytes: (num_chunks,). in_order: see `dependencies`.
    """
    if rounds := private_rounds(schedule, topology, chunk_bytes):
        return rounds
    if in_order or not may_be_alike(schedule, topology, chunk_bytes):
        return None
    return representatives(schedule, topology, int(chunk_bytes[0]))


def may_be_alike(schedule: Schedule, topology: Topology, chunk_bytes: Ints) -> bool:
    """Return whether to look for representatives: neither sizes, jitter nor failures tell ranks apart."""
    if schedule.num_transfers < MIN_TRANSFERS or (chunk_bytes != chunk_bytes[0]).any():
        return False
    has_cores = bool((topology.processors.cores != NONE).any())
    return topology.jitter is None and not has_cores and not np.isfinite(topology.resources.fails_at_s).any()


def private_rounds(schedule: Schedule, topology: Topology, chunk_bytes: Ints) -> "PrivateRounds | None":
    """Return the rounds of a relay, or the steps of a short table, that share nothing; None for other schedules.

    Every rank sends once in a step.
    """
    relay = schedule.steps.relay
    if relay is None and schedule.num_transfers > LOOKED_AT_TRANSFERS:
        return None
    ends = used_connections(schedule)
    if min(len(np.unique(ends.src)), len(np.unique(ends.dst))) < len(ends.src):
        return None
    rows = relay or schedule.steps.table
    step = relay.turn if relay else schedule.steps.table.step
    senders = step.astype(np.int64) * schedule.num_ranks + rows.src
    if len(np.unique(senders)) < len(senders) or have_contention(ends, topology):
        return None
    return PrivateRounds(schedule, relay, topology, chunk_bytes)


class RoundTimes(NamedTuple):
    """The times of the transfers of one turn or step, as in `Timeline`; (num_hops,) each."""

    start_s: Seconds
    sent_s: Seconds
    arrived_s: Seconds
    apply_s: Seconds
    applied_s: Seconds


@dataclass(frozen=True, slots=True, eq=False)
class PrivateRounds:
    """A relay in virtual time or, without one, the steps of a table; the transfers share nothing."""

    schedule: Schedule
    relay: Relay | None
    topology: Topology
    chunk_bytes: Ints

    @property
    def num_listed(self) -> int:
        return len(self.relay.src) if self.relay else self.schedule.num_transfers

    def timeline(self, on_progress: OnProgress = ignore_progress) -> Timeline:
        table, first = self.schedule.steps.table, 0
        columns = RoundTimes(*(np.empty(len(table)) for _ in RoundTimes._fields))
        for times in self._times():
            rows = slice(first, first := first + len(times.start_s))
            for column, seconds in zip(columns, times, strict=True):
                column[rows] = seconds
            on_progress(len(times.start_s))
        transfers = table.step, table.src, table.dst, table.chunk, table.reduce
        return Timeline(self.schedule.num_ranks, self.schedule.num_chunks, *transfers, *columns)

    def time_s(self, on_progress: OnProgress = ignore_progress) -> float:
        last_s = 0.0
        for times in self._times():
            last_s = max(last_s, float(times.applied_s.max(initial=0.0)))
            on_progress(len(times.applied_s))
        return last_s

    def _times(self) -> Iterator[RoundTimes]:
        return self._times_of_rounds(self.relay) if self.relay else self._times_of_steps()

    def _times_of_steps(self) -> Iterator[RoundTimes]:
        rows = dependencies(self.schedule)
        costs, (number, connections) = (
            TransferCosts(rows, self.topology, self.chunk_bytes),
            connect(rows, self.topology),
        )
        sent_s, applied_s = unknown(len(rows)), unknown(len(rows))  # the last element stands for NO_ROW
        for first, last in pairwise(np.searchsorted(rows.step, np.arange(self.schedule.num_steps + 1)).tolist()):
            row, on = np.arange(first, last), number[first:last]
            start = np.maximum(sent_s[rows.before_on_channel[row]], applied_s[rows.data_dependency[row]])
            sent_s[row] = sent = start + (costs.overhead_s(row) + costs.num_bytes(row) / connections.most[on])
            arrived = sent + costs.latency_s(row, connections.latency_s[on])
            free = np.maximum(arrived, sent_s[rows.buffer_dependency[row]])  # one channel: earlier sends have also left
            apply = np.maximum(applied_s[rows.before_on_connection[row]], free)
            applied_s[row] = applied = apply + costs.apply_s(row)
            yield RoundTimes(start, sent, arrived, apply, applied)

    def _times_of_rounds(self, relay: Relay) -> Iterator[RoundTimes]:
        num_ranks, num_hops = self.topology.num_ranks, len(relay.src)
        require_memory(f"{self.schedule}: the times of a round of {num_hops:,} transfers", BYTES_OF_HOP * num_hops)
        turns = [_Turn(relay, turn, self.topology, self.chunk_bytes) for turn in range(relay.num_turns)]
        sent_s, applied_s = np.zeros(num_ranks), np.zeros(num_ranks)  # of each sender, the last ones
        brought_s, brings_s = np.zeros(num_hops), np.empty(num_hops)  # in the round before, and in this one
        chunk = relay.chunk
        for number, reduces in enumerate(relay.reduces):
            for turn, own in enumerate(turns):
                send_s, latency_s, apply_s = own.costs(number * relay.num_turns + turn, chunk, reduces)
                start = np.maximum(sent_s[own.src], brought_s[own.after])
                sent = start + send_s
                arrived = sent + latency_s
                apply = np.maximum(applied_s[own.src], arrived)
                applied = apply + apply_s
                sent_s[own.src], applied_s[own.src], brings_s[own.hops] = sent, applied, applied
                yield RoundTimes(start, sent, arrived, apply, applied)
            brought_s, brings_s = brings_s, brought_s
            if not turns[0].is_any_chunk:
                chunk = chunk[relay.after]


class _Turn:
    """The hops of one turn of all rounds, and their costs.

    _by_chunk: if all hops are alike, the seconds of sending and of adding each chunk, or any chunk.
    """

    def __init__(self, relay: Relay, turn: int, topology: Topology, chunk_bytes: Ints) -> None:
        self.hops = relay.hops_of(turn)
        src, dst, channel = relay.src[self.hops], relay.dst[self.hops], relay.channel[self.hops]
        self.src, self.after = _index(src), _index(relay.after[self.hops])
        self._topology, self._bytes = topology, _one_if_same(chunk_bytes.astype(np.float64))
        paths, processors = topology.connection_paths(src, dst, channel), topology.processors
        self._latency_s = _one_if_same(paths.latency_s)
        self._send = (
            _one_if_same(processors.send_overhead_s[src]),
            _one_if_same(paths.alone_bytes_per_s(topology.resources)),
        )
        self._add = _one_if_same(processors.receive_overhead_s[dst]), _one_if_same(processors.reduce_bytes_per_s[dst])
        self._by_chunk: tuple[Cost, Cost] | None = None
        if all(isinstance(cost, float) for cost in (*self._send, *self._add)):
            self._by_chunk = _seconds(self._send, self._bytes), _seconds(self._add, self._bytes)

    @property
    def is_any_chunk(self) -> bool:
        return isinstance(self._bytes, float)

    def costs(self, step: int, chunk: Ints, reduces: bool) -> tuple[Cost, Cost, Cost]:
        """Return the seconds of sending, of the path, and of applying. chunk: of every hop."""
        own = chunk[self.hops]
        if self._topology.jitter is None and self._by_chunk is not None:
            send_s, add_s = self._by_chunk
            return _of_chunk(send_s, own), self._latency_s, _of_chunk(add_s, own) if reduces else self._add[0]
        size, overhead_s, latency_s = _of_chunk(self._bytes, own), self._send[0], self._latency_s
        apply_s = _seconds(self._add, size) if reduces else self._add[0]
        if self._topology.jitter is not None:
            of_latency, of_compute = self._topology.jitter.factors(step, len(own))
            overhead_s, latency_s, apply_s = overhead_s * of_compute, latency_s * of_latency, apply_s * of_compute
        return overhead_s + size / self._send[1], latency_s, apply_s


def _seconds(cost: tuple[Cost, Floats | float], size: Cost) -> Cost:
    return cost[0] + size / cost[1]


def _of_chunk(values: Floats | float, chunk: Ints) -> Floats | float:
    return values if isinstance(values, float) else values[chunk]


def _one_if_same(values: Floats) -> Floats | float:
    return float(values[0]) if len(values) and (values == values[0]).all() else values


def _index(numbers: Ints) -> Index:
    first = int(numbers[0]) if len(numbers) else 0
    neighbours = slice(first, first + len(numbers))
    return neighbours if (numbers == np.arange(neighbours.start, neighbours.stop)).all() else numbers
