"""OSU micro-benchmarks' tables: latency, bandwidth, and the collectives."""

import re
from dataclasses import dataclass, field

from ringsim.measurements.logs.lines import LogRow, LogTable, unread, whole
from ringsim.measurements.logs.nccl_settings import GROUPS
from ringsim.measurements.logs.shape import Shape
from ringsim.measurements.measurements import PT2PT_BANDWIDTH, PT2PT_LATENCY, TESTS
from ringsim.units import decimal_number

TITLE = re.compile(r"#\s*OSU\s+(?:MPI|NCCL|SHMEM|UPC)?.*?\bTest\b", re.IGNORECASE)
_NAME = re.compile(r"OSU\s+(?:MPI|NCCL)(?:-\w+)?\s+(.*?)\s*\bTest\b", re.IGNORECASE)
# What is between "OSU MPI" and "Test", and the program. Of others, such as Non-blocking Allreduce, the columns are
# other times.
_TESTS = {
    "latency": (PT2PT_LATENCY, "latency"),
    "multi latency": (PT2PT_LATENCY, "multi_lat"),
    "bandwidth": (PT2PT_BANDWIDTH, "bw"),
    "multiple bandwidth / message rate": (PT2PT_BANDWIDTH, "mbw_mr"),
    "allreduce latency": ("all_reduce", "allreduce"),
    "reduce_scatter latency": ("reduce_scatter", "reduce_scatter"),
    "allgather latency": ("all_gather", "allgather"),
    "broadcast latency": ("broadcast", "bcast"),
    "reduce latency": ("reduce", "reduce"),
}
_ROW = re.compile(r"^\d+\s+\d*\.\d[\deE+-]*(?:\s+[\d.eE+-]+)*(?:\s+Pass)?$")  # a time has a fraction
_OTHER_UNIT = re.compile(r"^#\s*Size\b.*?(\((?!us\)|MB/s\)|B\)|[Bb]ytes\))[^)]*\)|\b(?!MB/s)[kKMG]i?B(?:/s)?\b)")
_PAIRS = re.compile(r"\bpairs:\s*(\d+)|\b(\d+) pairs?\b")


@dataclass(slots=True)
class Osu:
    """A reader of one file of the OSU micro-benchmarks, which gathers tables from its lines in order."""

    file: str
    tables: list[LogTable] = field(default_factory=list)
    shape: Shape = field(default_factory=Shape)
    _test: str = ""
    _program: str = ""
    _num_values: int = 0  # of a row
    _title_line: int = 0
    _pairs: int = 0
    _rows: list[tuple[int, float, int]] = field(default_factory=list)  # size, seconds or bytes a second, line
    _left_out: list[str] = field(default_factory=list)

    def look_at(self, number: int, line: str) -> None:
        """Read one line. Raises ValueError for a row that cannot be right."""
        if TITLE.match(line):
            self.end_run()
            name = " ".join((match[1] if (match := _NAME.search(line)) else line.lstrip("# ")).split())
            self._test, self._program = _TESTS.get(name.lower(), (name, r"\w+"))
            self._title_line, self._num_values = number, 0
        elif "pair" in line and (match := _PAIRS.search(line)):
            self._pairs = whole(match[1] or match[2])
        elif self._test in TESTS and (match := _OTHER_UNIT.match(line)):
            raise ValueError(f"{match[1]} is no unit of OSU: convert the column to us or MB/s, and the sizes to bytes")
        elif self._test and _ROW.match(line) and self._num_values in (0, len(line.split())):
            self._add(number, line)
        elif self._test and (why := unread(self.file, number, line)):
            self._left_out.append(why)

    def end_run(self) -> None:
        """Make a table of the rows so far, which another title or command ends."""
        if self._rows or self._left_out:
            run = self.shape.run(f"osu_(?:[nx]ccl_)?{self._program}|")
            told = run.own.num_ranks or run.started.num_ranks or run.of_all.num_ranks or 0
            pairs = int(self._test.startswith("pt2pt"))
            if self._program in ("multi_lat", "mbw_mr"):
                pairs = self._pairs or told // 2
            ranks, nodes, ranks_from, hosts_from = run.place(pairs=pairs)
            # osu_allgather prints what one rank gives, the others the whole.
            parts = (ranks or 1) if self._test == "all_gather" else 1
            rows = tuple(
                LogRow(size * parts, (size * pairs / value if self._test == PT2PT_BANDWIDTH else value,), number)
                for size, value, number in self._rows
            )
            read_from = f"line {self._title_line}", ranks_from, hosts_from
            self.tables.append(LogTable(self.file, "osu", self._test, ranks, nodes, rows, read_from, (),
                                        {GROUPS: str(pairs or 1)}, tuple(self._left_out)))  # fmt: skip
            self._rows, self._left_out, self._pairs = [], [], 0

    def _add(self, number: int, line: str) -> None:
        self.shape.has_rows = True
        size_text, value_text, *others = line.split()
        size, value, self._num_values = whole(size_text), decimal_number(value_text), 2 + len(others)
        if not value > 0:
            raise ValueError(f"{value_text}: a latency or rate must be greater than 0")
        if size > 0:  # no bytes: what it costs to do nothing is in the smallest message too
            # Microseconds, or MB/s of all pairs together.
            self._rows.append((size, value * (1e6 if self._test == PT2PT_BANDWIDTH else 1e-6), number))
