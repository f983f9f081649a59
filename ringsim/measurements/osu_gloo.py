"""Tables of the OSU micro-benchmarks and of Gloo's benchmark: a size and its times in each row."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ringsim.files import quoted
from ringsim.measurements.log_lines import LogRow, LogTable, Shape, whole
from ringsim.measurements.measurements import PT2PT_BANDWIDTH, PT2PT_LATENCY, TESTS
from ringsim.measurements.nccl_settings import GROUPS
from ringsim.units import decimal_number

OSU_TITLE = re.compile(r"#\s*OSU\s+(?:MPI|NCCL|SHMEM|UPC)?.*?\bTest\b", re.IGNORECASE)
_OSU_NAME = re.compile(r"OSU\s+(?:MPI|NCCL)(?:-\w+)?\s+(.*?)\s*\bTest\b", re.IGNORECASE)
# By the text between "OSU MPI" and "Test": the test, and the program. The columns of others, such as Non-blocking
# Allreduce, are other times.
_OSU_TESTS = {
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
_OSU_ROW = re.compile(r"^\d+\s+\d*\.\d[\deE+-]*(?:\s+[\d.eE+-]+)*(?:\s+Pass)?$")  # a time has a fraction
_OTHER_UNIT = re.compile(r"^#\s*Size\b.*?(\((?!us\)|MB/s\)|B\)|[Bb]ytes\))[^)]*\)|\b(?!MB/s)[kKMG]i?B(?:/s)?\b)")
_PAIRS = re.compile(r"\bpairs:\s*(\d+)|\b(\d+) pairs?\b")

GLOO_HEADER = re.compile(r"(?:size \(B\)\s+)?elements\s+min \(us\)\s+p50 \(us\)")
_GLOO_NAME = re.compile(
    r"(?:^|[^a-z])((?:[a-z]+_)*?(allreduce|reduce_scatter|allgather|broadcast|pairwise_exchange|reduce|alltoall|barrier)"
    r"(?:_\w+)?)\b"
)
_OTHER = re.compile(r"_local$|_one_to_all$")  # within a process, or every message by the root: without a formula
_NAMES_IT = re.compile(r"\balgorithm\b|\bbenchmark(?:_cuda)?\s", re.IGNORECASE)
_GLOO_TESTS = {"allreduce": "all_reduce", "allgather": "all_gather"}
_GLOO_ROW = re.compile(r"^\d+(?:\s+[\d.]+)+$")
_FLOAT32_BYTES = 4  # by default
_HALF = re.compile(r"--halfprecision|\bfp16\b|\bfloat16\b")


@dataclass(slots=True)
class _TableReader:
    """Reader of one benchmark's tables in one file."""

    file: str
    shape: Shape
    tables: list[LogTable] = field(default_factory=list)
    _test: str = ""
    _named_in: int = 0  # the line with the test
    _rows: list[LogRow] = field(default_factory=list)
    _left_out: list[str] = field(default_factory=list)

    def end_run(self) -> None:
        if self._rows or self._left_out:
            self._end_table()
        self._rows, self._left_out = [], []

    def _end_table(self) -> None:
        raise NotImplementedError

    def _add_table(
        self, benchmark: str, place: tuple[int | None, int | None, str, str], environment: Mapping[str, str]
    ) -> None:
        num_ranks, num_nodes, ranks_from, hosts_from = place
        parts = (num_ranks or 1) if self._test == "all_gather" else 1  # both print the bytes of one rank
        rows = tuple(replace(row, size_bytes=row.size_bytes * parts) for row in self._rows)
        read_from = f"line {self._named_in}", ranks_from, hosts_from
        self.tables.append(LogTable(self.file, benchmark, self._test, num_ranks, num_nodes, rows, read_from, (),
                                    environment, tuple(self._left_out)))  # fmt: skip

    def _is_left_out(self, number: int, line: str) -> bool:
        """Leave out a line that begins like a row, and return whether it does."""
        begins_like_row = bool(re.match(r"\d+\s+[\d.]+", line))
        if begins_like_row:
            self._left_out.append(
                f"{self.file}: line {number}: {quoted(line)} is no row of numbers alone, as many as in others (Fail "
                "marks wrong results): write them with a point and without units"
            )
        return begins_like_row


@dataclass(slots=True)
class Osu(_TableReader):
    """Reader of the tables of the OSU micro-benchmarks."""

    _program: str = ""
    _num_values: int = 0  # of a row
    _pairs: int = 0

    def look_at(self, number: int, line: str) -> None:
        """Read one line. Raises ValueError for an impossible row."""
        if OSU_TITLE.match(line):
            self.end_run()
            name = " ".join((match[1] if (match := _OSU_NAME.search(line)) else line.lstrip("# ")).split())
            self._test, self._program = _OSU_TESTS.get(name.lower(), (name, r"\w+"))
            self._named_in, self._num_values = number, 0
        elif "pair" in line and (match := _PAIRS.search(line)):
            self._pairs = whole(match[1] or match[2])
        elif self._test in TESTS and (match := _OTHER_UNIT.match(line)):
            raise ValueError(f"{match[1]} is no unit of OSU: convert the column to us or MB/s, and the sizes to bytes")
        elif self._test and _OSU_ROW.match(line) and self._num_values in (0, len(line.split())):
            self._add_row(number, line)
        elif self._test:
            self._is_left_out(number, line)

    def _add_row(self, number: int, line: str) -> None:
        """Add a row; for a bandwidth it has bytes per second of all pairs in place of seconds."""
        self.shape.has_rows = True
        size_text, value_text, *others = line.split()
        size, value, self._num_values = whole(size_text), decimal_number(value_text), 2 + len(others)
        if not value > 0:
            raise ValueError(f"{value_text}: a latency or rate must be greater than 0")
        if size > 0:  # the time of 0 bytes is part of the smallest message
            unit = 1e6 if self._test == PT2PT_BANDWIDTH else 1e-6  # MB/s or microseconds
            self._rows.append(LogRow(size, (value * unit,), number))

    def _end_table(self) -> None:
        run = self.shape.run(f"osu_(?:[nx]ccl_)?{self._program}|")
        num_stated = run.own.num_ranks or run.started.num_ranks or run.of_all.num_ranks or 0
        pairs = int(self._test.startswith("pt2pt"))
        if self._program in ("multi_lat", "mbw_mr"):
            pairs = self._pairs or num_stated // 2
        if self._test == PT2PT_BANDWIDTH:
            self._rows = [replace(row, times_s=(row.size_bytes * pairs / row.times_s[0],)) for row in self._rows]
        self._add_table("osu", run.place(pairs=pairs), {GROUPS: str(pairs or 1)})
        self._pairs = 0


@dataclass(slots=True)
class Gloo(_TableReader):
    """Reader of the tables of Gloo's benchmark."""

    _algorithm: str = ""
    _is_half: bool = False
    _columns: list[str] = field(default_factory=list)

    def look_at(self, number: int, line: str) -> None:
        """Read one line. Raises ValueError for an impossible row."""
        if GLOO_HEADER.match(line):
            self.end_run()
            self._columns = re.findall(r"\w+(?: \([^)]*\))?", line)
        elif self._columns and _GLOO_ROW.match(line) and len(line.split()) == len(self._columns):
            self._rows.append(self._row(number, line))
            self.shape.has_rows = True
        elif not (self._columns and self._is_left_out(number, line)):
            if _NAMES_IT.search(line) and (match := _GLOO_NAME.search(line)):
                self.end_run()
                test = match[1] if _OTHER.search(match[1]) else match[2]
                self._algorithm, self._test = match[1], _GLOO_TESTS.get(test, test)
                self._named_in = number
            self._is_half |= bool(_HALF.search(line))

    def end_run(self) -> None:
        _TableReader.end_run(self)
        self._columns = []

    def _end_table(self) -> None:
        if not self._test:
            where = f"{self.file}: line {self._rows[0].line if self._rows else 1}"
            raise ValueError(
                f"{where}: the log does not contain Gloo's algorithm: keep the command or the line Algorithm:"
            )
        self._add_table("gloo", self.shape.run("benchmark|").place(), {"algorithm": self._algorithm})
        self._is_half = False  # of the command of this run

    def _row(self, number: int, line: str) -> LogRow:
        texts = dict(zip(self._columns, line.split(), strict=True))
        values = {name: decimal_number(text) for name, text in texts.items()}
        element_bytes = _FLOAT32_BYTES // 2 if self._is_half else _FLOAT32_BYTES
        size = whole(texts["size (B)"]) if "size (B)" in texts else whole(texts["elements"]) * element_bytes
        low, time, high = (values.get(name, values["p50 (us)"]) * 1e-6 for name in ("min (us)", "p50 (us)", "p99 (us)"))
        return LogRow(size, (time,), number, low, high)
