"""GOAL text of a `Schedule`: what LogGOPSim's `txt2bin` reads, so that another simulator can check ours.

Format and units are those of spcl/LogGOPSim (`txt2bin.re`): sizes in bytes, `calc` in nanoseconds, one operation or
dependency a line, `a requires b` for "a starts when b is done".
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ringsim.schedule import NO_ROW, Dependencies, Ints, Schedule, dependencies, require_memory, stable_order

BYTES_PER_TRANSFER = 250  # of memory, while it is written, at most
MAX_NICS = 256  # txt2bin keeps the number of a nic in one byte


def goal_lines(
    schedule: Schedule,
    size_bytes: int,
    reduce_bytes_per_s: float = math.inf,
    on_progress: Callable[[int], object] = lambda _: None,
) -> Iterator[str]:
    r"""`schedule` for a tensor of `size_bytes` in GOAL text, line by line, each with its line end.

    Transfer t is `s<t>` on its sender, `r<t>` on its receiver and, if it is reduced at a finite rate, `c<t>`,
    a calc of the rounded nanoseconds. Each pair of ranks numbers its messages with tags, and has its own nic
    at both ends. An empty chunk is sent as one byte, since
    LogGOPSim charges (size - 1) G.

    on_progress: is told, after each rank, how many transfers it receives.

    Raises ValueError for a negative size and for more kinds of pairs than GOAL has nics.

        >>> from ringsim import goal_lines, ring_all_reduce
        >>> next(goal_lines(ring_all_reduce(4), 2**20))
        'num_ranks 4\n'
    """
    messages = _Messages.of(schedule, size_bytes, reduce_bytes_per_s)
    yield f"num_ranks {schedule.num_ranks}\n"
    for rank, rows in enumerate(messages.rows_by_rank(schedule.num_ranks)):
        yield f"rank {rank} {{\n"
        num_received = 0
        for operation in messages.operations(rank, rows):
            num_received += not operation.is_send
            yield from operation.lines()
        yield "}\n"
        on_progress(num_received)


class _Operation(NamedTuple):
    """One operation of a rank for a transfer: it sends it, or it receives it, and adds for `calc_ns` if that is not 0.

    requires: the labels of what must be done before.
    """

    row: int
    is_send: bool
    peer: int
    num_bytes: int
    tag: int
    nic: int
    calc_ns: int
    requires: list[str]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text."""
        kind, to = ("send", "to") if self.is_send else ("recv", "from")
        nic = f" nic {self.nic}" if self.nic else ""
        begins = last = f"{kind[0]}{self.row}"
        yield f"{begins}: {kind} {self.num_bytes}b {to} {self.peer} tag {self.tag}{nic}\n"
        if self.calc_ns and not self.is_send:
            last = f"c{self.row}"
            yield f"{last}: calc {self.calc_ns}\n"
            yield f"{last} requires {begins}\n"
        for label in self.requires:
            yield f"{last} requires {label}\n"


@dataclass(frozen=True, slots=True, eq=False)
class _Messages:
    """The messages of the transfers, by row: arrows, bytes, nanoseconds of adding (0: no calc), tags and nics."""

    waits: Dependencies
    num_bytes: Ints
    calc_ns: Ints
    tag: Ints
    nic: Ints

    @classmethod
    def of(cls, schedule: Schedule, size_bytes: int, reduce_bytes_per_s: float) -> "_Messages":
        require_memory(f"{schedule} in GOAL text", schedule.num_transfers * BYTES_PER_TRANSFER)
        waits = dependencies(schedule)
        num_bytes = schedule.chunk_bytes(size_bytes)[waits.chunk]
        calc_ns = np.rint(num_bytes / reduce_bytes_per_s * 1e9) * waits.reduce
        hops, nic = np.unique((waits.dst - waits.src) % schedule.num_ranks, return_inverse=True)
        if len(hops) > MAX_NICS:
            raise ValueError(f"{schedule}: needs {len(hops)} nics a rank, one for each distance; GOAL has {MAX_NICS}")
        tag = _how_many_before(waits.src.astype(np.int64) * schedule.num_ranks + waits.dst)
        return cls(waits, np.maximum(num_bytes, 1), calc_ns.astype(np.int64), tag, nic.ravel())

    def rows_by_rank(self, num_ranks: int) -> Iterator[Ints]:
        """Yield what a rank sends or receives, in step order.

        In a step the sends first, for which its writes may wait.
        """
        rank, num_rows = np.concatenate([self.waits.src, self.waits.dst]), max(len(self.waits), 1)
        order = stable_order(rank)
        for numbers in np.split(order, np.searchsorted(rank[order], np.arange(1, num_ranks))):
            row, is_received = numbers % num_rows, numbers >= num_rows
            yield row[np.lexsort((row, is_received, self.waits.step[row]))]

    def operations(self, rank: int, rows: Ints) -> Iterator[_Operation]:
        """Yield the operations of one rank; what is true of all its rows is looked up at once."""
        waits = self.waits
        is_send = waits.src[rows] == rank
        peer = np.where(is_send, waits.dst[rows], waits.src[rows])
        facts = rows, is_send, peer, self.num_bytes[rows], self.tag[rows], self.nic[rows], self.calc_ns[rows]
        arrows = (
            waits.data_dependency[rows],
            waits.before_on_channel[rows],
            waits.chunk[rows],
            waits.buffer_dependency[rows],
        )
        waited: dict[int, int] = {}  # of a chunk, the last of its sends that a write has waited for
        for *fact, data, on_channel, chunk, buffer in zip(*(c.tolist() for c in (*facts, *arrows)), strict=True):
            row, is_send, *_ = fact
            if is_send:
                labels = [self._applied(data)] if data != NO_ROW else []
                labels += [f"s{on_channel}"] if on_channel != NO_ROW else []
            else:
                before = {int(waits.before_on_connection[row]), int(waits.before_in_chunk[row])} - {NO_ROW}
                labels = [self._applied(earlier) for earlier in sorted(before)]
                # A later write is applied after this one, so it need not name them again.
                labels += [f"s{send}" for send in self._sends_between(waited.get(chunk, NO_ROW), buffer)]
                waited[chunk] = max(waited.get(chunk, NO_ROW), buffer)
            yield _Operation._make([*fact, labels])

    def _sends_between(self, after: int, last: int) -> list[int]:
        """Return the same rank's sends of the chunk that row `last` sends, behind row `after` and up to it."""
        sends = []
        while last > after:
            sends.append(last)
            last = int(self.waits.sent_before[last])
        return sends[::-1]

    def _applied(self, row: int) -> str:
        return f"c{row}" if self.calc_ns[row] else f"r{row}"


def _how_many_before(key: Ints) -> Ints:
    """Return, for each row, how many rows before it have the same key."""
    order = stable_order(key)
    is_first = np.append(True, key[order[1:]] != key[order[:-1]])[: len(key)]
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(key)), 0))
    count = np.empty(len(key), dtype=np.int64)
    count[order] = np.arange(len(key)) - first
    return count
