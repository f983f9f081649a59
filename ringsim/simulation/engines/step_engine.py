"""The step engine: rings in virtual time on a topology where nothing is shared, a step at a time.

There every time is a maximum of earlier times plus a cost, so a step is evaluated as a few NumPy operations over all
its transfers. Each rank has one connection out and one in, and one transfer a step on each, so that a rank that
executes in order does the same at the same times. The module knows nothing about collectives: it reads transfers and
obeys the rule of execution (see `schedule`).

Of a relay only the times of the last round are kept, so that a ring of 65,536 ranks needs little memory. Other
schedules are listed. What makes it fast: a cost that is the same for all transfers is one number, and an index that
names neighbours in order is a slice.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ringsim.network import Floats, Ints, Topology
from ringsim.schedule import Relay, Schedule, dependencies, require_memory
from ringsim.simulation.engines.waits import unknown
from ringsim.simulation.engines.work import TransferCosts
from ringsim.simulation.routes import connect, have_contention, used_connections
from ringsim.simulation.timeline import OnProgress, Seconds, Timeline, ignore_progress

BYTES_OF_HOP = 8 * 12  # of memory, with all that is made on the way
Cost = Floats | float  # seconds of each transfer, or of any
Index = Ints | slice  # a slice where the numbers are neighbours, in order


def is_for_steps(schedule: Schedule, topology: Topology) -> bool:
    """Return whether the step engine can run a schedule: it is a ring, whose messages share nothing."""
    ends = used_connections(schedule)
    if min(len(np.unique(ends.src)), len(np.unique(ends.dst))) < len(ends.src):
        return False  # a rank has several connections out, or several in
    rows = schedule.steps.relay or schedule.steps.table
    step = rows.turn if isinstance(rows, Relay) else rows.step
    senders = step.astype(np.int64) * schedule.num_ranks + rows.src
    return len(np.unique(senders)) == len(senders) and not have_contention(ends, topology)


def run_steps(
    schedule: Schedule, topology: Topology, chunk_bytes: Ints, on_progress: OnProgress = ignore_progress
) -> Timeline:
    """Return every transfer of `schedule` with its times. chunk_bytes: (num_chunks,)."""
    table, first = schedule.steps.table, 0
    columns = StepTimes(*(np.empty(len(table)) for _ in StepTimes._fields))
    for times in _times(schedule, topology, chunk_bytes):
        rows = slice(first, first := first + len(times.start_s))
        for column, seconds in zip(columns, times, strict=True):
            column[rows] = seconds
        on_progress(len(times.start_s))
    transfers = table.step, table.src, table.dst, table.chunk, table.reduce
    return Timeline(schedule.num_ranks, schedule.num_chunks, *transfers, *columns)


def time_steps(
    schedule: Schedule, topology: Topology, chunk_bytes: Ints, on_progress: OnProgress = ignore_progress
) -> float:
    """Return the seconds until the last rank has finished, without keeping a timeline."""
    last_s = 0.0
    for times in _times(schedule, topology, chunk_bytes):
        last_s = max(last_s, float(times.applied_s.max(initial=0.0)))
        on_progress(len(times.applied_s))
    return last_s


class StepTimes(NamedTuple):
    """The times of one step's transfers, each of shape (num_transfers,), as in `Timeline`."""

    start_s: Seconds
    sent_s: Seconds
    arrived_s: Seconds
    apply_s: Seconds
    applied_s: Seconds


def _times(schedule: Schedule, topology: Topology, chunk_bytes: Ints) -> Iterator[StepTimes]:
    relay = schedule.steps.relay
    if relay is None:
        return _times_of_table(schedule, topology, chunk_bytes)
    require_memory(f"{schedule}: the times of a round of {len(relay.src):,} transfers", BYTES_OF_HOP * len(relay.src))
    return _times_of_relay(relay, topology, chunk_bytes)


def _times_of_table(schedule: Schedule, topology: Topology, chunk_bytes: Ints) -> Iterator[StepTimes]:
    rows = dependencies(schedule)
    costs, (number, connections) = TransferCosts(rows, topology, chunk_bytes), connect(rows, topology)
    sent_s, applied_s = unknown(len(rows)), unknown(len(rows))  # the last element stands for NO_ROW
    for first, last in pairwise(np.searchsorted(rows.step, np.arange(schedule.num_steps + 1)).tolist()):
        row, on = np.arange(first, last), number[first:last]
        start = np.maximum(sent_s[rows.before_on_channel[row]], applied_s[rows.data_dependency[row]])
        sent = start + (costs.overhead_s(row) + costs.num_bytes(row) / connections.most[on])
        sent_s[row] = sent
        arrived = sent + costs.latency_s(row, connections.latency_s[on])
        free = np.maximum(arrived, sent_s[rows.buffer_dependency[row]])  # after all that was sent before on the channel
        apply = np.maximum(applied_s[rows.before_on_connection[row]], free)
        applied_s[row] = apply + costs.apply_s(row)
        yield StepTimes(start, sent, arrived, apply, applied_s[row])


def _times_of_relay(relay: Relay, topology: Topology, chunk_bytes: Ints) -> Iterator[StepTimes]:
    turns = [_Turn(relay, turn, topology, chunk_bytes) for turn in range(relay.num_turns)]
    sent_s, applied_s = np.zeros(topology.num_ranks), np.zeros(topology.num_ranks)  # of each sender, the last ones
    brought_s, brings_s = np.zeros(len(relay.src)), np.empty(len(relay.src))  # in the round before, and in this one
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
            yield StepTimes(start, sent, arrived, apply, applied)
        brought_s, brings_s = brings_s, brought_s
        if not turns[0].is_any_chunk:
            chunk = chunk[relay.after]


class _Turn:
    """The hops of one turn of all rounds, and what they cost.

    by_chunk: if all hops are alike, the seconds of sending and of adding each chunk; one number if any chunk.
    """

    def __init__(self, relay: Relay, turn: int, topology: Topology, chunk_bytes: Ints) -> None:
        self.hops = relay.hops_of(turn)
        src, dst, channel = relay.src[self.hops], relay.dst[self.hops], relay.channel[self.hops]
        self.src, self.after = _index(src), _index(relay.after[self.hops])
        self._topology, self._bytes = topology, _one_if_same(chunk_bytes.astype(np.float64))
        paths, processors = topology.connection_paths(src, dst, channel), topology.processors
        paths.check()
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
        """Whether the cost of a transfer does not depend on its chunk."""
        return isinstance(self._bytes, float)

    def costs(self, step: int, chunk: Ints, reduces: bool) -> tuple[Cost, Cost, Cost]:
        """Return the seconds of sending, of the way, and of applying. chunk: on all hops, in this round."""
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
    """Return an overhead and what these bytes take at a rate."""
    return cost[0] + size / cost[1]


def _of_chunk(values: Floats | float, chunk: Ints) -> Floats | float:
    """Return the value of each of these chunks."""
    return values if isinstance(values, float) else values[chunk]


def _one_if_same(values: Floats) -> Floats | float:
    """Return the one value that they all have, as a number, which NumPy is faster with."""
    return float(values[0]) if len(values) and (values == values[0]).all() else values


def _index(numbers: Ints) -> Index:
    first = int(numbers[0]) if len(numbers) else 0
    neighbours = slice(first, first + len(numbers))
    return neighbours if (numbers == np.arange(neighbours.start, neighbours.stop)).all() else numbers
