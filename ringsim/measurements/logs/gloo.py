"""The tables of Gloo's own benchmark."""

import re
from dataclasses import dataclass, field

from ringsim.measurements.logs.lines import LogRow, LogTable, Shape, whole
from ringsim.units import decimal_number

HEADER = re.compile(r"(?:size \(B\)\s+)?elements\s+min \(us\)\s+p50 \(us\)")
_ALGORITHM = re.compile(r"\b(allreduce|reduce_scatter|allgather|broadcast|pairwise_exchange|reduce|alltoall)(_\w+)?\b")
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
    _half: bool = False
    _columns: list[str] = field(default_factory=list)
    _rows: list[LogRow] = field(default_factory=list)

    def look_at(self, number: int, line: str) -> None:
        """Read one line. Raises ValueError for a row that cannot be right."""
        if HEADER.match(line):
            self.finish()
            self._columns = re.split(r"\s{2,}", line)
        elif self._columns and _ROW.match(line):
            self._rows.append(self._row(number, line))
        else:
            if match := _ALGORITHM.search(line):
                self.finish()
                self._algorithm, self._test = match[0], _TESTS.get(match[1], match[1])
            self._half |= bool(_HALF.search(line))
            self.shape.look_at(line)

    def finish(self) -> None:
        """Make a table of the rows so far."""
        if self._rows:
            if not self._test:
                where = f"{self.file}: line {self._rows[0].line}"
                raise ValueError(
                    f"{where}: the log does not contain Gloo's algorithm: keep the command or the line Algorithm:"
                )
            ranks = self.shape.num_ranks()
            is_part = self._test == "all_gather"  # it prints what one rank gives
            rows = [row.of_all_ranks(ranks) if is_part else row for row in self._rows]
            told, nodes = self.shape.told_ranks(), self.shape.num_nodes()
            self.tables.append(LogTable(self.file, "gloo", self._test, told, nodes, tuple(rows),
                                        environment={"algorithm": self._algorithm}))  # fmt: skip
        self._rows, self._columns = [], []

    def _row(self, number: int, line: str) -> LogRow:
        texts = dict(zip(self._columns, line.split(), strict=False))
        values = {name: decimal_number(text) for name, text in texts.items()}
        if "p50 (us)" not in values:
            raise ValueError("the log is cut off; run the benchmark again")
        element_bytes = _ELEMENT_BYTES // 2 if self._half else _ELEMENT_BYTES
        size = whole(texts["size (B)"]) if "size (B)" in texts else whole(texts["elements"]) * element_bytes
        low, time, high = (values.get(name, values["p50 (us)"]) * 1e-6 for name in ("min (us)", "p50 (us)", "p99 (us)"))
        return LogRow(size, (time,), number, low, high)
