"""nccl-tests' tables, of all versions; doc/PERFORMANCE.md there says what its bandwidths are.

The test is not named in most versions. It follows from its columns and from busbw over algbw, which is a law of each
collective, unless the name of the program stands in the log. One file may hold several runs, such as one for each size:
what the bandwidths of one cannot tell, having too few digits, follows from the others.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ringsim.files import quoted
from ringsim.measurements.logs.lines import LogTable, Shape
from ringsim.measurements.logs.nccl_rows import (
    ELEMENT_BYTES,
    PER_RANK,
    PrintedRow,
    busbw_factor,
    ranks_by_counts,
    ranks_by_rates,
    ratio_range,
)
from ringsim.measurements.logs.nccl_settings import LogEnvironment
from ringsim.measurements.measurements import SENDRECV

_PROGRAM = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|broadcast|reduce|sendrecv|alltoall|gather|scatter|"
                      r"hypercube)_perf")  # fmt: skip
HEADER = re.compile(r"(?:#\s*)?(?:size|bytes)\s+(?:count|N)\s+type\b")
_ROW = re.compile(r"^\d+\s+\d+\s+[a-z_]\w*\s")
_WITHIN = re.compile(r"\bNCCL (?:INFO|WARN|TRACE)\b")
_LIKE_A_ROW = re.compile(rf"\s(?:{'|'.join(ELEMENT_BYTES)})\s.*\d\.\d+\s.*\d\.\d+")
_RANK_MISSING = (
    "is the line of a rank missing? Restore it, or also remove the others and give --nodes and --ranks-per-node"
)
# What a table may be by its columns alone: (reduces, has a root).
_BY_COLUMNS = {
    (True, False): ("all_reduce", "reduce_scatter", SENDRECV),
    (False, False): ("all_gather",),  # alltoall prints the same, but was never printed without its name nearby
    (True, True): ("reduce",),
    (False, True): ("broadcast", "scatter"),
}


@dataclass(frozen=True, slots=True)
class _PrintedRun:
    """The rows under one header, and what the log has told by their end.

    program: the test by the name of the program; "" if the log does not name it.
    num_ranks: as the log tells, without looking at bandwidths. given: as the user says, for a log that does not tell.
    """

    program: str
    rows: tuple[PrintedRow, ...]
    left_out: tuple[str, ...]
    num_ranks: int | None
    given: int | None
    num_nodes: int | None
    devices: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def candidates(self) -> tuple[str, ...]:
        """The tests that have such columns."""
        tests = _BY_COLUMNS[self.rows[-1].reduces, self.rows[-1].has_root]
        # A size of all ranks beside the count of one rules the others out, however few digits the rates have.
        return ("reduce_scatter",) if "reduce_scatter" in tests and ranks_by_counts(self.rows) else tests

    def test(self) -> str:
        """Return the test by the program's name, the columns or the law of the bandwidths; "" if none tells."""
        if self.program or len(self.candidates) == 1:
            return self.program or self.candidates[0]
        num_ranks = self.num_ranks or self.given
        low, high = ratio_range(self.rows)
        if num_ranks is None:
            return "all_reduce" if "all_reduce" in self.candidates and 1 < low <= high else ""
        factors = {test: busbw_factor(test, num_ranks) for test in self.candidates}
        possible = [test for test in factors if low <= factors[test] <= high]
        if not possible:  # the ranks are wrong, which `_check_ranks` says, or a row is
            return min(factors, key=lambda test: abs(factors[test] - low))
        # On two ranks all_reduce and sendrecv have one law, and the first of them is the common one.
        return possible[0] if len({factors[test] for test in possible}) == 1 else ""


@dataclass(slots=True)
class NcclTests:
    """A reader of one file of nccl-tests, which gathers runs from its lines in order."""

    file: str
    shape: Shape = field(default_factory=Shape)
    _runs: list[_PrintedRun] = field(default_factory=list)
    _without_run: list[str] = field(default_factory=list)  # what was left out of runs of which nothing else remains
    _program: str = ""
    _columns: Sequence[str] = ()
    _rows: list[PrintedRow] = field(default_factory=list)
    _left_out: list[str] = field(default_factory=list)
    _has_wrong: bool = False
    _environment: LogEnvironment = field(default_factory=LogEnvironment)

    def look_at(self, number: int, line: str) -> None:
        """Read one line. Raises ValueError for a row that cannot be right."""
        if match := _PROGRAM.search(line):
            if line.startswith("# Collective test") and "starting" in line:
                self._end_table()
            self._program = match[1]
        if "nThread" in line and "nGpus" in line:
            self._end_table()
            self.shape.restart()
        elif HEADER.match(line):
            self.finish()
            self._environment.begin_table()
            self._columns = line.lstrip("# ").split()
        elif self._columns and _ROW.match(line) and (match := _WITHIN.search(line)):
            place = f"{self.file}: line {number}"
            self._left_out.append(f"{place}: {quoted(match[0])} is in the row: write NCCL's log to another file")
        elif self._columns and _ROW.match(line):
            self._add(self._row(number, line))
        elif self._columns and _LIKE_A_ROW.search(line):
            begin = quoted(line.split(maxsplit=1)[0])
            self._left_out.append(f"{self.file}: line {number}: looks like a row, but begins with {begin}: remove that")
        elif "Out of bounds" in line and "FAILED" in line and not self._has_wrong:
            raise ValueError(f"{line.lstrip('# ')}: its results were wrong, so the times "
                             "are not valid: run the benchmark again")  # fmt: skip
        elif not self.shape.look_at(line):
            self._environment.look_at(line)
            if "Avg bus bandwidth" in line:
                self._end_process()

    def _add(self, row: PrintedRow) -> None:
        self._environment.note_row()
        if row.wrong:
            place = f"{self.file}: line {row.line}: #wrong {row.wrong}"
            self._left_out.append(
                f"{place}: its results were wrong, so the times are not valid: run the benchmark again"
            )
            self._has_wrong = True
        elif row.size > 0 and row.sides:
            self._rows.append(row)

    def _end_table(self) -> None:
        """End the run, and wait for the next header: what comes until then is no row."""
        self._end_process()
        self._columns = ()

    def _end_process(self) -> None:
        """End the run: what is said from here on is of the next one, also what its process is told."""
        self.finish()
        self._environment.end_process()

    def finish(self) -> None:
        """End the run of the rows so far."""
        if self._rows:
            self._runs.append(
                _PrintedRun(
                    self._program,
                    tuple(self._rows),
                    tuple(self._left_out),
                    self.shape.told_ranks(),
                    self.shape.given,
                    self.shape.num_nodes(),
                    tuple(self.shape.devices),
                    self._environment.as_dict(),
                )
            )
        else:
            self._without_run += self._left_out
        self._rows, self._left_out, self._has_wrong = [], [], False

    @property
    def tables(self) -> list[LogTable]:
        """The tables of all runs.

        Raises ValueError for one that cannot be told, or that contradicts itself, and if all rows are left out.
        """
        if self._without_run and not self._runs:
            raise ValueError(self._without_run[0])
        tests: dict[tuple[str, ...], set[str]] = {}
        for run in self._runs:
            tests.setdefault(run.candidates, set()).add(run.test())
        tables = [self._table(run, tests[run.candidates] - {""}) for run in self._runs]
        if tables:
            tables[0] = replace(tables[0], left_out=(*self._without_run, *tables[0].left_out))
        return tables

    def _row(self, number: int, line: str) -> PrintedRow:
        values = line.split()
        per_side = self._columns.index("busbw") - self._columns.index("time") + 2
        start = self._columns.index("time")
        if len(values) < start + 3:
            raise ValueError(f"{len(values)} values under {len(self._columns)} columns: "
                             "the log is cut off; run the benchmark again")  # fmt: skip
        named = dict(zip(self._columns[:start], values[:start], strict=False))
        sides = [values[at : at + per_side] for at in range(start, len(values), per_side)]
        wrong_column = self._columns[start + 3] if len(self._columns) > start + 3 else ""
        return PrintedRow.read(number, named, [side for side in sides if len(side) >= 3], wrong_column)

    def _table(self, run: _PrintedRun, tests: Collection[str]) -> LogTable:
        """Return the table of a run. tests: those that runs with such columns tell."""
        test = run.test() or self._only(tests, run)
        counted = ranks_by_counts(run.rows) if test in PER_RANK else None
        told = run.num_ranks or counted or ranks_by_rates(test, run.rows)
        num_ranks = told or run.given
        if counted and counted != num_ranks:
            raise ValueError(
                f"{self.file}: line {run.rows[-1].line}: {run.rows[-1].size} bytes are {counted} times the count, one "
                f"for each rank, but the log names {num_ranks} ranks: {_RANK_MISSING}"
            )
        if test == "all_reduce" and num_ranks:
            self._check_ranks(run, num_ranks)
        rows = [row.as_row(self.file, test, num_ranks) for row in run.rows]
        return LogTable(self.file, "nccl-tests", test, told, run.num_nodes, tuple(rows), run.devices,
                        run.environment, run.left_out)  # fmt: skip

    def _only(self, tests: Collection[str], run: _PrintedRun) -> str:
        """Return the test that other runs tell. Raises ValueError if that is not one."""
        if len(tests) == 1:
            return next(iter(tests))
        raise ValueError(
            f"{self.file}: line {run.rows[-1].line}: cannot tell which of {', '.join(run.candidates)} this is: keep "
            "the line with the program's name, such as all_reduce_perf, in the log, and the lines with the ranks"
        )

    def _check_ranks(self, run: _PrintedRun, num_ranks: int) -> None:
        """Raise ValueError if busbw / algbw, which is 2(n - 1)/n, is not that of this number of ranks."""
        last, factor = run.rows[-1], busbw_factor("all_reduce", num_ranks)
        for _, algbw, busbw in last.sides:
            rounding = 0.006 * (1 + factor)  # both are printed with two digits
            if abs(busbw - factor * algbw) > rounding + 0.001 * busbw:
                raise ValueError(
                    f"{self.file}: line {last.line}: busbw {busbw:g} is not algbw {algbw:g} times {factor:.3f}, "
                    f"which is 2(n - 1)/n for the n = {num_ranks} ranks that the log names: {_RANK_MISSING}"
                )
