"""nccl-tests' tables, of all versions; doc/PERFORMANCE.md there says what its bandwidths are.

The test is not named in most versions. It follows from its columns and from busbw over algbw, which is a law of each
collective, unless the name of the program stands in the log. One file may hold several runs, such as one for each size:
what the bandwidths of one cannot tell, having too few digits, follows from the others.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ringsim.files import quoted
from ringsim.measurements.logs.lines import LogTable
from ringsim.measurements.logs.nccl_rows import (
    ELEMENT_BYTES,
    PrintedRow,
    busbw_factor,
    ranks_by_counts,
    ranks_by_rates,
    ratio_range,
)
from ringsim.measurements.logs.nccl_settings import GROUPS, SPLITS, LogEnvironment
from ringsim.measurements.logs.shape import GIVEN, RunShape, Shape
from ringsim.measurements.measurements import RING_TESTS, SENDRECV, TESTS
from ringsim.units import plural

_TESTS = "all_reduce|all_gather|reduce_scatter|broadcast|reduce|sendrecv|all_?to_?allv?|gather|scatter|hypercube"
_PROGRAM = re.compile(rf"\b({_TESTS})_perf|^# Collective test \w+: (\w+)_perf")
HEADER = re.compile(r"(?:#\s*)?(?:size|bytes)\s+(?:count|N)\s+type\b")
_ROW = re.compile(r"^\d+\s+\d+\s+[a-z_]\w*\s")
_WITHIN = re.compile(r"\bNCCL (?:INFO|WARN|TRACE)\b")
_TAG = re.compile(r"\[\d+(?:,\d+)?\](?:<std\w+>:?)?")  # of a launcher, in the middle of a line
_LIKE_A_ROW = re.compile(rf"\s(?:{'|'.join(ELEMENT_BYTES)})\s.*\d[.,]\d+\s.*\d[.,]\d+")
_FAILURE = re.compile(r"\bTest (?:NCCL|CUDA|MPI) failure\b")
_SPLIT = (
    "NCCL_TESTS_SPLIT splits the ranks into groups that share the NICs of a host, and no list of ranks names them: "
    "keep the list, with its column Group"
)
_WRONG = "its results were wrong, so the times are not valid: run the benchmark again"
_RANK_MISSING = (
    "is the line of a rank missing? Restore it, or also remove the others and give --nodes and --ranks-per-node"
)
# What a table may be by its columns alone: (reduces, has a root).
_BY_COLUMNS = {
    (True, False): ("all_reduce", "reduce_scatter", SENDRECV),
    (False, False): ("all_gather", "alltoall"),
    (True, True): ("reduce",),
    (False, True): ("broadcast", "scatter"),
}
_TOLD_BY_COLUMNS = {test for tests in _BY_COLUMNS.values() for test in tests} - {"alltoall"}  # left out, if in doubt
_NEVER_CHECKED_IN_PLACE = ("alltoall", SENDRECV)


@dataclass(frozen=True, slots=True)
class _PrintedRun:
    """The rows under one header, and what the log has told by their end.

    program: the test by the name of the program; "" if the log does not name it.
    """

    program: str
    program_line: int
    rows: tuple[PrintedRow, ...]
    left_out: tuple[str, ...]
    shape: RunShape
    environment: Mapping[str, str]

    @property
    def candidates(self) -> tuple[str, ...]:
        """The tests that have such columns."""
        tests = _BY_COLUMNS[self.rows[-1].reduces, self.rows[-1].has_root]
        checked = next((row.checks_in_place for row in self.rows if row.checks_in_place is not None), None)
        if checked is not None:
            tests = tuple(test for test in tests if (test in _NEVER_CHECKED_IN_PLACE) is not checked)
        if not self.rows[-1].op:
            tests = (*tests, "hypercube")
        # A size of all ranks beside the count of one rules the others out, however few digits the rates have.
        return ("reduce_scatter",) if "reduce_scatter" in tests and ranks_by_counts(self.rows) else tests

    def test(self) -> str:
        """Return the test by the program's name, the columns or the law of the bandwidths; "" if none tells."""
        num_ranks, *_ = self.shape.place()
        if self.program or len(self.candidates) == 1 or num_ranks == 1:
            return self.program or self.candidates[0]
        low, high = ratio_range(self.rows)
        if num_ranks is None:
            return "all_reduce" if "all_reduce" in self.candidates and 1 < low <= high else ""
        factors = {test: busbw_factor(test, num_ranks) for test in self.candidates}
        possible = [test for test in factors if low <= factors[test] <= high]
        if not possible:  # the ranks are wrong, which `_check_ranks` says, or a row is
            return min(factors, key=lambda test: abs(factors[test] - low))
        return possible[0] if len(possible) == 1 else ""


@dataclass(slots=True)
class NcclTests:
    """A reader of one file of nccl-tests, which gathers runs from its lines in order."""

    file: str
    shape: Shape = field(default_factory=Shape)
    _runs: list[_PrintedRun] = field(default_factory=list)
    _without_run: list[str] = field(default_factory=list)  # what was left out of runs of which nothing else remains
    _program: str = ""
    _program_line: int = 0
    _columns: Sequence[str] = ()
    _rows: list[PrintedRow] = field(default_factory=list)
    _left_out: list[str] = field(default_factory=list)
    _has_wrong: bool = False
    _is_noted: bool = False  # that rows have no header
    _environment: LogEnvironment = field(default_factory=LogEnvironment)

    def look_at(self, number: int, line: str) -> None:
        """Read one line. Raises ValueError for results that were wrong."""
        if "_perf" in line and (match := _PROGRAM.search(line)):
            if "test starting" in line:
                self.end_run()
            if "test concluded" not in line or (self._rows and not self._program):
                self._program, self._program_line = match[1] or match[2], number
        if HEADER.match(line):
            self._begin_table(number, line.lstrip("# ").split())
        elif _ROW.match(line):
            self._read_row(number, line)
        elif self._columns and _LIKE_A_ROW.search(line):
            begin = next((word for word in line.split()[:2] if not word.isdigit()), line.split(maxsplit=1)[0])
            remedy = "write it without separators" if "," in begin else "remove that"
            self._leave_out(number, f"looks like a row, but begins with {quoted(begin)}: {remedy}")
        elif _FAILURE.search(line):
            self._leave_out(number, f"{quoted(line)}: the run failed")
            self.end_run()
        elif "Out of bounds" in line and "FAILED" in line and not self._has_wrong:
            raise ValueError(f"{line.lstrip('# ')}: {_WRONG}")
        else:
            self._environment.look_at(line)
            if "Avg bus bandwidth" in line:
                self._end_process()

    def _begin_table(self, number: int, columns: Sequence[str]) -> None:
        self.finish()
        self._environment.begin_table()
        self._columns, self._is_noted = columns, False
        if not {"time", "algbw", "busbw"} <= set(columns):
            cpu = ": its times are those of the CPU: run it without -C" if "cputime" in columns else ""
            self._leave_out(number, f"the table is left out, as it has not time, algbw and busbw{cpu}")
            self._columns, self._is_noted = (), True

    def _leave_out(self, number: int, why: str) -> None:
        self.shape.is_used = True  # also by a table of which no row is read
        self._left_out.append(f"{self.file}: line {number}: {why}")

    def _read_row(self, number: int, line: str) -> None:
        if not self._columns:
            if _LIKE_A_ROW.search(line) and not self._is_noted:
                self._leave_out(number, "a row without a header: keep the line that begins with # size count type")
                self._is_noted = True
        elif match := _WITHIN.search(line):
            self._leave_out(number, f"{quoted(match[0])} is in the row: write NCCL's log to another file")
        else:
            try:
                self._add(self._row(number, _TAG.sub(" ", line).split()))
            except ValueError as error:
                self._leave_out(number, str(error))

    def _add(self, row: PrintedRow) -> None:
        self._environment.note_row()
        self.shape.has_rows = True
        if row.wrong:
            self._leave_out(row.line, f"#wrong {row.wrong}: {_WRONG}")
            self._has_wrong = True
        elif row.size > 0 and row.sides:
            self._rows.append(row)

    def end_run(self) -> None:
        """End the run, and wait for the next header: what comes until then is no row."""
        self._end_process()
        self._columns = ()

    def _end_process(self) -> None:
        """End the run: what is said from here on is of the next one, also what its process is told."""
        self.finish()
        self._environment.end_process()

    def finish(self) -> None:
        """End the run of the rows so far."""
        if self._columns:
            shape = self.shape.run(r"\w+_perf\w*|", has_list=True)
            environment = {**self._environment.as_dict(), GROUPS: str(shape.groups or 1)}
            is_split = not shape.groups and any(environment.get(name, "").strip("0x") for name in SPLITS)
            if self._rows and (doubt := shape.doubt or (is_split and _SPLIT)):
                self._leave_out(self._rows[0].line, f"the table is left out: {doubt}")
            elif self._rows:
                run = _PrintedRun("", self._program_line, tuple(self._rows), tuple(self._left_out), shape, environment)
                is_new = not self._runs or self._program_line > self._runs[-1].rows[-1].line
                is_other = is_new and self._program not in _TOLD_BY_COLUMNS
                known = self._program if is_other or self._program in run.candidates else ""
                self._runs.append(replace(run, program=known))
                self._left_out = []
        self._without_run += self._left_out
        self._rows, self._left_out, self._has_wrong = [], [], False

    @property
    def tables(self) -> list[LogTable]:
        """The tables of all runs; the first one, without rows, has what was left out of runs of which nothing remains.

        Raises ValueError for a table that cannot be told, or that contradicts itself.
        """
        tests: dict[tuple[str, ...], set[str]] = {}
        for run in self._runs:
            tests.setdefault(run.candidates, set()).add(run.test())
        left_out = LogTable(self.file, "nccl-tests", "", None, None, (), left_out=tuple(self._without_run))
        return [left_out, *(self._table(run, tests[run.candidates] - {""}) for run in self._runs)]

    def _row(self, number: int, values: list[str]) -> PrintedRow:
        columns, start = self._columns, self._columns.index("time")
        at = next((columns.index(name) for name in ("redop", "op") if name in columns), len(values))
        if at < len(values) and values[at].lstrip("-").isdigit():
            values.insert(at, "")  # it is blank
        if not start + 3 <= len(values) <= len(columns):
            why = "another process printed into it" if len(values) > len(columns) else "the log is cut off"
            raise ValueError(f"{len(values)} values under {len(columns)} columns: {why}; run the benchmark again")
        named = dict(zip(columns[:start], values[:start], strict=False))
        begins = [index for index, column in enumerate(columns) if column == "time"]
        sides = [values[begin:end] for begin, end in zip(begins, [*begins[1:], len(columns)], strict=True)]
        wrong_column = columns[start + 3] if len(columns) > start + 3 else ""
        return PrintedRow.read(number, named, [side for side in sides if len(side) >= 3], wrong_column)

    def _table(self, run: _PrintedRun, tests: Collection[str]) -> LogTable:
        """Return the table of a run. tests: those that runs with such columns tell."""
        test = run.test() or self._only(tests, run)
        counted = ranks_by_counts(run.rows) if test in RING_TESTS[1:] else None
        num_ranks, num_nodes, ranks_from, hosts_from = run.shape.place(counted or ranks_by_rates(test, run.rows))
        listed, own = run.shape.listed.num_ranks, run.shape.own
        if own.num_ranks and listed not in (None, num_ranks):
            raise ValueError(f"{self.file}: {listed} ranks in the log, but {plural(own.num_nodes or 0, 'host')} of "
                             f"{own.ranks_per_node} were given for it: leave that out")  # fmt: skip
        if counted and counted != num_ranks:
            raise ValueError(
                f"{self.file}: line {run.rows[-1].line}: {run.rows[-1].size} bytes are {counted} times the count, one "
                f"for each rank, and not the {num_ranks} ranks {self._told(ranks_from, run)}"
            )
        if num_ranks and test in TESTS:
            self._check_ranks(run, test, num_ranks, ranks_from)
        named = f"line {run.program_line}" if run.program else "by its columns and rates"
        rows = [row.as_row(self.file, test, num_ranks) for row in run.rows]
        return LogTable(self.file, "nccl-tests", test, num_ranks, num_nodes, tuple(rows),
                        (named, ranks_from, hosts_from), run.shape.devices, run.environment, run.left_out)  # fmt: skip

    def _only(self, tests: Collection[str], run: _PrintedRun) -> str:
        """Return the test that other runs tell. Raises ValueError if that is not one."""
        if len(tests) == 1:
            return next(iter(tests))
        raise ValueError(
            f"{self.file}: line {run.rows[-1].line}: cannot tell which of {', '.join(run.candidates)} this is: keep "
            "the line with the program's name, such as all_reduce_perf, in the log, and the lines with the ranks"
        )

    def _check_ranks(self, run: _PrintedRun, test: str, num_ranks: int, ranks_from: str) -> None:
        """Raise ValueError if busbw / algbw, which is 2(n - 1)/n for all_reduce, is not that of these ranks."""
        last, factor = run.rows[-1], busbw_factor(test, num_ranks)
        for _, algbw, busbw in last.sides if test in RING_TESTS else ():
            rounding = 0.006 * (1 + factor)  # both are printed with two digits
            is_sent = test != "all_reduce" and algbw == busbw  # as before June 2020
            if abs(busbw - factor * algbw) > rounding + 0.001 * busbw and not is_sent:
                law = "2(n - 1)/n" if test == "all_reduce" else "(n - 1)/n"
                raise ValueError(
                    f"{self.file}: line {last.line}: busbw {busbw:g} is not algbw {algbw:g} times {factor:.3f}, "
                    f"which is {law} for the n = {num_ranks} ranks {self._told(ranks_from, run)}"
                )

    def _told(self, ranks_from: str, run: _PrintedRun) -> str:
        """Return what tells a number of ranks that the rates contradict, and what to do."""
        if ranks_from == GIVEN:
            return "that were given: give those that ran"
        if run.shape.listed.num_ranks:
            return f"that the log names: {_RANK_MISSING}"
        return f"of {ranks_from}: write {self.file}:nodes=2,ranks-per-node=4 with the hosts and ranks that ran"
