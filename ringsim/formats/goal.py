"""GOAL text of a `Schedule`: what LogGOPSim's `txt2bin` reads, so that another simulator can check ours.

Format and units are those of spcl/LogGOPSim (`txt2bin.re`): sizes in bytes, `calc` in nanoseconds, one operation or
dependency a line, `a requires b` for "a starts when b is done".
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ringsim.schedule import NO_ROW, Dependencies, Schedule, dependencies, require_memory

BYTES_PER_TRANSFER = 400  # of memory, while it is written, at most
MAX_NICS = 256  # txt2bin keeps the number of a nic in one byte


def goal_lines(schedule: Schedule, size_bytes: int, reduce_bytes_per_s: float = math.inf) -> Iterator[str]:
    r"""`schedule` for a tensor of `size_bytes` in GOAL text, line by line, each with its line end.

    Transfer t is `s<t>` on its sender, `r<t>` on its receiver and, if it is reduced at a finite rate, `c<t>`,
    a calc of the rounded nanoseconds. Each pair of ranks numbers its messages with tags, and has a nic of its own
    at both ends, as the pairs of a `Network` have their links. An empty chunk is sent as one byte, since
    LogGOPSim charges (size - 1) G.

    Raises ValueError for a negative size and for more kinds of pairs than GOAL has nics.

        >>> from ringsim import goal_lines, ring_all_reduce
        >>> next(goal_lines(ring_all_reduce(4), 2**20))
        'num_ranks 4\n'
    """
    operations = _Operations.of(schedule, size_bytes, reduce_bytes_per_s)
    rows_of: list[list[int]] = [[] for _ in range(schedule.num_ranks)]
    for row, (src, dst) in enumerate(zip(operations.waits.src, operations.waits.dst, strict=True)):
        rows_of[src].append(row)
        rows_of[dst].append(row)
    yield f"num_ranks {schedule.num_ranks}\n"
    for rank, rows in enumerate(rows_of):
        yield f"rank {rank} {{\n"
        yield from operations.lines(rank, rows)
        yield "}\n"


@dataclass(frozen=True, slots=True, eq=False)
class _Operations:
    """What the transfers become: their arrows, bytes, nanoseconds of adding (0: no calc), tags and nics, by row."""

    waits: Dependencies
    num_bytes: list[int]
    calc_ns: list[int]
    tag: list[int]
    nic: list[int]

    @classmethod
    def of(cls, schedule: Schedule, size_bytes: int, reduce_bytes_per_s: float) -> "_Operations":
        require_memory(f"{schedule} in GOAL text", schedule.num_transfers * BYTES_PER_TRANSFER)
        waits = dependencies(schedule)
        num_bytes = schedule.chunk_bytes(size_bytes)[waits.chunk]
        calc_ns = np.rint(num_bytes / reduce_bytes_per_s * 1e9) * waits.reduce
        hops, nic = np.unique((waits.dst - waits.src) % schedule.num_ranks, return_inverse=True)
        if len(hops) > MAX_NICS:
            raise ValueError(f"{schedule}: needs {len(hops)} nics a rank, one for each distance; GOAL has {MAX_NICS}")
        sent: Counter[tuple[int, int]] = Counter()  # by sender and receiver
        tag: list[int] = []
        for pair in zip(waits.src.tolist(), waits.dst.tolist(), strict=True):
            tag.append(sent[pair])
            sent[pair] += 1
        return cls(waits, np.maximum(num_bytes, 1).tolist(), calc_ns.astype(int).tolist(), tag, nic.ravel().tolist())

    def lines(self, rank: int, rows: list[int]) -> Iterator[str]:
        """The operations of one rank, each followed by what it requires."""
        sends: list[int] = []  # in the order of rows
        num_left = 0  # of the sends, those that a write has waited for
        applied = f"r{NO_ROW}"
        for row in self._in_order(rank, rows):
            if self.waits.src[row] == rank:
                sends.append(row)
                yield from self._send(row)
                continue
            # A later write is applied after this one, so it need not name them again.
            first, num_left = num_left, max(num_left, bisect_right(sends, self.waits.buffer_dependency[row]))
            yield from self._receive(row, applied, sends[first:num_left])
            applied = self._applied(row)

    def _in_order(self, rank: int, rows: list[int]) -> list[int]:
        """Within a step sends come first, for the writes of that step may wait for them."""
        return sorted(rows, key=lambda row: (self.waits.step[row], self.waits.src[row] != rank, row))

    def _applied(self, row: int) -> str:
        return f"c{row}" if self.calc_ns[row] else f"r{row}"

    def _send(self, row: int) -> Iterator[str]:
        yield f"s{row}: send {self.num_bytes[row]}b to {self.waits.dst[row]} tag {self.tag[row]}{self._on_nic(row)}\n"
        if self.waits.data_dependency[row] != NO_ROW:
            yield f"s{row} requires {self._applied(self.waits.data_dependency[row])}\n"
        if self.waits.before_on_channel[row] != NO_ROW:
            yield f"s{row} requires s{self.waits.before_on_channel[row]}\n"

    def _receive(self, row: int, previous: str, leaving: list[int]) -> Iterator[str]:
        yield f"r{row}: recv {self.num_bytes[row]}b from {self.waits.src[row]} tag {self.tag[row]}{self._on_nic(row)}\n"
        if self.calc_ns[row]:
            yield f"c{row}: calc {self.calc_ns[row]}\n"
            yield f"c{row} requires r{row}\n"
        if self.waits.before_at_dst[row] != NO_ROW:
            yield f"{self._applied(row)} requires {previous}\n"
        for send in leaving:
            yield f"{self._applied(row)} requires s{send}\n"

    def _on_nic(self, row: int) -> str:
        return f" nic {self.nic[row]}" if self.nic[row] else ""
