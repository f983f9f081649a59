"""The tables of Gloo's own benchmark."""

import re
from dataclasses import dataclass, field, replace

from ringsim.measurements.logs.lines import LogRow, LogTable, unread, whole
from ringsim.measurements.logs.shape import Shape
from ringsim.units import decimal_number

HEADER = re.compile(r"(?:size \(B\)\s+)?elements\s+min \(us\)\s+p50 \(us\)")
_ALGORITHM = re.compile(
    r"(?:^|[^a-z])((?:[a-z]+_)*?(allreduce|reduce_scatter|allgather|broadcast|pairwise_exchange|reduce|alltoall|barrier)"
    r"(?:_\w+)?)\b"
)
_OTHER = re.compile(r"_local$|_one_to_all$")  # within a process, or every message by the root: no formula is of these
_NAMES_IT = re.compile(r"\balgorithm\b|\bbenchmark(?:_cuda)?\s", re.IGNORECASE)
_TESTS = {"allreduce": "all_reduce", "allgather": "all_gather"}
_ROW = re.compile(r"^\d+(?:\s+[\d.]+)+$")
_ELEMENT_BYTES = 4  # float32 is what it runs by default
_HALF = re.compile(r"--halfprecision|\bfp16\b|\bfloat16\b")


@dataclass(slots=True)
class Gloo:
    """A reader of one file of Gloo's benchmark, which gathers tables from its lines in order."""

    file: str
    tables: list[LogTable] = field(default_factory=list)
    shape: Shape = field(default_factory=Shape)
    _algorithm: str = ""
    _test: str = ""
    _named_in: int = 0
    _half: bool = False
    _columns: list[str] = field(default_factory=list)
    _rows: list[LogRow] = field(default_factory=list)
    _left_out: list[str] = field(default_factory=list)

    def look_at(self, number: int, line: str) -> None:
        """Read one line. Raises ValueError for a row that cannot be right."""
        if HEADER.match(line):
            self.end_run()
            self._columns = re.findall(r"\w+(?: \([^)]*\))?", line)
        elif self._columns and _ROW.match(line) and len(line.split()) == len(self._columns):
            self._rows.append(self._row(number, line))
            self.shape.has_rows = True
        elif self._columns and (why := unread(self.file, number, line)):
            self._left_out.append(why)
        else:
            if _NAMES_IT.search(line) and (match := _ALGORITHM.search(line)):
                self.end_run()
                test = match[1] if _OTHER.search(match[1]) else match[2]
                self._algorithm, self._test = match[1], _TESTS.get(test, test)
                self._named_in = number
            self._half |= bool(_HALF.search(line))

    def end_run(self) -> None:
        """Make a table of the rows so far, which another header, algorithm or command ends."""
        if self._rows or self._left_out:
            if not self._test:
                where = f"{self.file}: line {self._rows[0].line if self._rows else 1}"
                raise ValueError(
                    f"{where}: the log does not contain Gloo's algorithm: keep the command or the line Algorithm:"
                )
            ranks, nodes, ranks_from, hosts_from = self.shape.run("benchmark|").place()
            parts = (ranks or 1) if self._test == "all_gather" else 1  # it prints what one rank gives
            rows = tuple(replace(row, size_bytes=row.size_bytes * parts) for row in self._rows)
            read_from = f"line {self._named_in}", ranks_from, hosts_from
            self.tables.append(LogTable(self.file, "gloo", self._test, ranks, nodes, rows, read_from, (),
                                        {"algorithm": self._algorithm}, tuple(self._left_out)))  # fmt: skip
            self._half = False  # of the command of this run
        self._rows, self._columns, self._left_out = [], [], []

    def _row(self, number: int, line: str) -> LogRow:
        texts = dict(zip(self._columns, line.split(), strict=True))
        values = {name: decimal_number(text) for name, text in texts.items()}
        element_bytes = _ELEMENT_BYTES // 2 if self._half else _ELEMENT_BYTES
        size = whole(texts["size (B)"]) if "size (B)" in texts else whole(texts["elements"]) * element_bytes
        low, time, high = (values.get(name, values["p50 (us)"]) * 1e-6 for name in ("min (us)", "p50 (us)", "p99 (us)"))
        return LogRow(size, (time,), number, low, high)
