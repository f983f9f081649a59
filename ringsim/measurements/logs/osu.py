"""OSU micro-benchmarks' tables: latency, bandwidth, and the collectives."""

import re
from dataclasses import dataclass, field

from ringsim.measurements.logs.lines import LogRow, LogTable, Shape, whole
from ringsim.measurements.measurements import PT2PT_BANDWIDTH, PT2PT_LATENCY
from ringsim.units import decimal_number

TITLE = re.compile(r"#\s*OSU\s+(?:MPI|NCCL|SHMEM|UPC)?.*?\bTest\b", re.IGNORECASE)
_TESTS = {
    "allreduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce scatter": "reduce_scatter",
    "allgather": "all_gather",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "alltoall": "alltoall",
    "all-to-all": "alltoall",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "reduce": "reduce",
}
_MESSAGES = (
    (re.compile(r"(?:mpi|nccl)\S*\s+(?:multi\s+)?latency test", re.IGNORECASE), PT2PT_LATENCY),
    (re.compile(r"(?:mpi|nccl)\S*\s+(?:multiple\s+)?bandwidth\b.*test", re.IGNORECASE), PT2PT_BANDWIDTH),
)
_ROW = re.compile(r"^\d+(?:\s+[\d.eE+-]+)+$")
_PAIRS = re.compile(r"pairs:\s*(\d+)")


@dataclass(slots=True)
class Osu:
    """A reader of one file of the OSU micro-benchmarks, which gathers tables from its lines in order."""

    file: str
    tables: list[LogTable] = field(default_factory=list)
    shape: Shape = field(default_factory=Shape)
    _test: str = ""
    _pairs: int = 1
    _rows: list[LogRow] = field(default_factory=list)

    def look_at(self, number: int, line: str) -> None:
        """Read one line. Raises ValueError for a row that cannot be right."""
        if TITLE.match(line):
            self.finish()
            self._test = _test(line)
        elif match := _PAIRS.search(line):
            self._pairs = whole(match[1])
        elif self._test and _ROW.match(line):
            self._add(number, line)
        else:
            self.shape.look_at(line)

    def finish(self) -> None:
        """Make a table of the rows so far."""
        if self._rows:
            point_to_point = self._test.startswith("pt2pt")
            ranks = 2 * self._pairs if point_to_point else self.shape.num_ranks()
            nodes = self.shape.num_nodes() or (2 if point_to_point else None)
            # osu_allgather and osu_alltoall print what one rank gives, the others the whole.
            is_part = self._test in ("all_gather", "alltoall")
            rows = [row.of_all_ranks(ranks) if is_part else row for row in self._rows]
            told = ranks if point_to_point else self.shape.told_ranks()
            self.tables.append(LogTable(self.file, "osu", self._test, told, nodes, tuple(rows)))
        self._rows, self._pairs = [], 1

    def _add(self, number: int, line: str) -> None:
        size_text, value_text, *_ = line.split()
        size, value = whole(size_text), decimal_number(value_text)
        if not value > 0:
            raise ValueError(f"{value_text}: a latency or rate must be greater than 0")
        if size == 0:
            return  # no bytes: what it costs to do nothing is in the smallest message too
        bandwidth = self._test == PT2PT_BANDWIDTH  # MB/s, of all pairs together
        time_s = size * self._pairs / (value * 1e6) if bandwidth else value * 1e-6
        self._rows.append(LogRow(size, (time_s,), number))


def _test(title: str) -> str:
    """Return the name of the test; where it is not known here, its title."""
    for pattern, test in _MESSAGES:
        if pattern.search(title):
            return test
    return next((test for word, test in _TESTS.items() if word in title.lower()), title.lstrip("# "))
