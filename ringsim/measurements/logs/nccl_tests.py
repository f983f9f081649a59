"""nccl-tests' tables, of all versions; doc/PERFORMANCE.md there says what its bandwidths are.

The test is not named in most versions. It follows from its columns and from busbw over algbw, which is a law of each
collective, unless the name of the program stands in the log.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ringsim.measurements.logs.lines import LogRow, LogTable, Shape, whole
from ringsim.measurements.measurements import SENDRECV
from ringsim.units import decimal_number

_PROGRAM = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|broadcast|reduce|sendrecv|alltoall|gather|scatter|"
                      r"hypercube)_perf")  # fmt: skip
_ELEMENT = {"int8": 1, "uint8": 1, "char": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1, "half": 2,
            "bfloat16": 2, "float16": 2, "int32": 4, "uint32": 4, "int": 4, "float": 4, "float32": 4, "int64": 8,
            "uint64": 8, "double": 8, "float64": 8}  # fmt: skip
_HEADER = re.compile(r"^#\s*(?:size|bytes)\s+(?:count|N)\s+type\b")
_ROW = re.compile(r"^\d+\s+\d+\s+[a-z_]\w*\s")
_SHARE = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n,
          "reduce_scatter": lambda n: (n - 1) / n, "alltoall": lambda n: (n - 1) / n,
          "gather": lambda n: (n - 1) / n, "scatter": lambda n: (n - 1) / n}  # fmt: skip
_PER_RANK = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")  # their count is one rank's
# What a table may be by its columns alone: (reduces, has a root).
_BY_COLUMNS = {
    (True, False): ("all_reduce", "reduce_scatter", SENDRECV),
    (False, False): ("all_gather",),  # alltoall prints the same, but was never printed without its name nearby
    (True, True): ("reduce",),
    (False, True): ("broadcast", "scatter"),
}


@dataclass(slots=True)
class NcclTests:
    """A reader of one file of nccl-tests, which gathers tables from its lines in order."""

    file: str
    tables: list[LogTable] = field(default_factory=list)
    shape: Shape = field(default_factory=Shape)
    _program: str = ""
    _columns: Sequence[str] = ()
    _rows: list["_Printed"] = field(default_factory=list)
    _environment: dict[str, str] = field(default_factory=dict)

    def look_at(self, number: int, line: str) -> None:
        """Read one line. Raises ValueError for a row that cannot be right."""
        if match := _PROGRAM.search(line):
            if line.startswith("# Collective test") and "starting" in line:
                self.finish()
            self._program = match[1]
        if "nThread" in line and "nGpus" in line:
            self.finish()
            self.shape.restart()
        elif _HEADER.match(line):
            self.finish()
            self._columns = line.lstrip("# ").split()
        elif self._columns and _ROW.match(line):
            self._rows.append(self._row(number, line))
        elif "Out of bounds" in line and "FAILED" in line:
            raise ValueError(f"{line.lstrip('# ')}: its results were wrong, so its times "
                             "say nothing; run the benchmark again")  # fmt: skip
        elif not self.shape.look_at(line):
            _note(self._environment, line)

    def finish(self) -> None:
        """Make a table of the rows so far."""
        if self._rows:
            self.tables.append(self._table())
        self._rows = []

    def _row(self, number: int, line: str) -> "_Printed":
        values = line.split()
        per_side = self._columns.index("busbw") - self._columns.index("time") + 2
        start = self._columns.index("time")
        if len(values) < start + 3:
            raise ValueError(f"{len(values)} values under {len(self._columns)} columns: "
                             "the log is cut off; run the benchmark again")  # fmt: skip
        named = dict(zip(self._columns[:start], values[:start], strict=False))
        sides = [values[at : at + per_side] for at in range(start, len(values), per_side)]
        wrong_column = self._columns[start + 3] if len(self._columns) > start + 3 else ""
        return _Printed.read(number, named, [side for side in sides if len(side) >= 3], wrong_column)

    def _table(self) -> LogTable:
        num_ranks = self.shape.num_ranks()
        test = self._program or self._guess(num_ranks)
        if test == "all_reduce" and num_ranks:
            self._check_ranks(num_ranks)
        rows = [row.as_row(self.file, test, num_ranks) for row in self._rows if row.size > 0]
        return LogTable(self.file, "nccl-tests", test, num_ranks, self.shape.num_nodes(), tuple(rows),
                     tuple(self.shape.devices), dict(self._environment))  # fmt: skip

    def _check_ranks(self, num_ranks: int) -> None:
        """Raise ValueError if busbw / algbw, which is 2(n - 1)/n, is not that of this number of ranks."""
        last, factor = self._rows[-1], _factor("all_reduce", num_ranks)
        for _, algbw, busbw in last.sides:
            rounding = 0.006 * (1 + factor)  # both are printed with two digits
            if abs(busbw - factor * algbw) > rounding + 0.001 * busbw:
                raise ValueError(
                    f"{self.file}: line {last.line}: busbw {busbw:g} is not algbw {algbw:g} times {factor:.3f}, "
                    f"which is 2(n - 1)/n for the n = {num_ranks} ranks that the log names: is a line of a rank "
                    "missing? Restore it, or remove the others too and give --nodes and --ranks-per-node"
                )

    def _guess(self, num_ranks: int | None) -> str:
        """Return the test whose law the bandwidths keep, of those that have such columns."""
        first = self._rows[-1]
        candidates = _BY_COLUMNS[first.reduces, first.has_root]
        if len(candidates) == 1:
            return candidates[0]
        ratio = first.busbw_over_algbw()
        if num_ranks is None or ratio is None:
            raise ValueError(
                f"{self.file}: line {first.line}: cannot tell which of {', '.join(candidates)} this is: keep the line "
                "with the program's name, such as all_reduce_perf, in the log, and the lines with the ranks"
            )
        return min(candidates, key=lambda test: abs(_factor(test, num_ranks) - ratio))


@dataclass(frozen=True, slots=True)
class _Printed:
    """A row as it is printed: microseconds (milliseconds in version 1) and GB/s."""

    line: int
    size: int
    count: int
    element: int
    reduces: bool
    has_root: bool
    sides: tuple[tuple[float, float, float], ...]

    @classmethod
    def read(cls, line: int, named: dict[str, str], sides: list[list[str]], wrong_column: str) -> "_Printed":
        for side in sides:
            wrong = side[3] if len(side) > 3 else "N/A"
            if "wrong" in wrong_column and wrong not in ("N/A", "NA") and decimal_number(wrong) > 0:
                raise ValueError(f"#wrong {wrong}: its results were wrong, so its times say nothing; "
                                 "run the benchmark again")  # fmt: skip
        op, kind = named.get("redop", named.get("op", "none")), named["type"]
        size = whole(named.get("size", named.get("bytes", "0")))
        count = whole(named.get("count", named.get("N", "0")))
        element = _ELEMENT.get(kind) or (size // count if count else 1)
        timed = tuple(
            (decimal_number(a), decimal_number(b), decimal_number(c)) for a, b, c, *_ in sides if a not in ("N/A", "NA")
        )
        return cls(
            line,
            size,
            count,
            element,
            op != "none",
            named.get("root", "-1") != "-1" and whole(named["root"]) >= 0,
            timed,
        )

    def busbw_over_algbw(self) -> float | None:
        """Return the ratio of the side that tells it best; None if no side has a rate."""
        known = [(algbw, busbw) for _, algbw, busbw in self.sides if algbw > 0]
        return max(known)[1] / max(known)[0] if known else None

    def as_row(self, file: str, test: str, num_ranks: int | None) -> LogRow:
        size = self.size
        if test in _PER_RANK and num_ranks and self.count * self.element == size and self._bytes_by_rate(size) > 1.5:
            size *= num_ranks  # printed for one rank, though the rate is of all
        seconds = 1e-3 if self._bytes_by_rate(size) < 0.01 else 1e-6  # version 1 has milliseconds
        times = tuple(time * seconds for time, _, _ in self.sides)
        self._check(file, size, seconds)
        return LogRow(size, times, self.line)

    def _bytes_by_rate(self, size: int) -> float:
        """Bytes that the rate stands for, over `size`; 1 where the rate is too small to tell."""
        time, algbw, _ = self.sides[0]
        return algbw * 1e9 * time * 1e-6 / size if algbw >= 0.1 else 1.0

    def _check(self, file: str, size: int, seconds: float) -> None:
        for time, algbw, _ in self.sides:
            if time <= 0:
                raise ValueError(f"{file}: line {self.line}: time {time:g}: must be greater than 0")
            rate = size / (time * seconds) / 1e9
            if abs(rate - algbw) > 0.006 + 0.02 * rate:
                raise ValueError(
                    f"{file}: line {self.line}: {size} bytes in {time * seconds:.6g} s are {rate:.3g} GB/s, but the "
                    f"row says {algbw:g}: it contradicts itself"
                )


def _factor(test: str, num_ranks: int) -> float:
    share: Callable[[int], float] = _SHARE.get(test, lambda _: 1.0)
    return share(num_ranks)


def _note(environment: dict[str, str], line: str) -> None:
    """Lines such as `# NCCL version: 2.18`, and what NCCL itself says of its version and of what was forced."""
    if match := re.match(r"#\s*([A-Za-z][\w ]{1,30}):\s+(.+)", line):
        environment.setdefault(match[1].strip().lower(), match[2].strip())
    elif match := re.search(r"NCCL version ([\d.]+)", line):
        environment.setdefault("nccl version", match[1])
    elif match := re.search(r"\bNCCL_(ALGO|PROTO)[ =]+(?:set by environment to )?(\w+)", line):
        environment.setdefault(f"nccl_{match[1].lower()}", match[2])
