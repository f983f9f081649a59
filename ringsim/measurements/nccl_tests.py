"""nccl-tests' tables, of all versions; its doc/PERFORMANCE.md defines the bandwidths.

Most versions do not name the test. It follows from the program's name in the log, or from the columns and from busbw
over algbw (`busbw_factor`), which also gives the number of ranks. If the bandwidths of one run have too few digits, the
file's other runs tell.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ringsim.files import quoted
from ringsim.measurements.log_lines import GIVEN, LogRow, LogTable, RunShape, Shape, whole
from ringsim.measurements.measurements import RING_TESTS, SENDRECV, TESTS
from ringsim.measurements.nccl_settings import GROUPS, SPLITS, LogEnvironment
from ringsim.units import decimal_number, plural

ELEMENT_BYTES = {"int8": 1, "uint8": 1, "char": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1, "half": 2,
                 "bfloat16": 2, "float16": 2, "int32": 4, "uint32": 4, "int": 4, "float": 4, "float32": 4, "int64": 8,
                 "uint64": 8, "double": 8, "float64": 8}  # fmt: skip
# busbw over algbw on many ranks; on n ranks (n - 1) / n of it. Of other tests they are the same.
_BUSBW_LIMITS = {
    "all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "gather": 1.0, "scatter": 1.0,
    "alltoall": 1.0, "all_to_all": 1.0,
}  # fmt: skip
PER_RANK = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")  # their count is one rank's
_TELLS = 0.1  # GB/s: from here on, two digits tell enough
_ROUNDING = 0.005  # GB/s, as bandwidths are printed with two digits
_NONE = ("N/A", "NA")


def busbw_factor(test: str, num_ranks: int) -> float:
    """Return busbw over algbw: the least share of the tensor that the busiest rank sends.

    busbw is therefore comparable with a link's bandwidth (doc/PERFORMANCE.md of nccl-tests).

    >>> busbw_factor("all_reduce", 4)
    1.5
    """
    return _BUSBW_LIMITS[test] * (num_ranks - 1) / num_ranks if test in _BUSBW_LIMITS else 1.0


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """A row as printed.

    op: "" if blank, as for hypercube.
    sides: time (us; in version 1 ms), algbw and busbw (GB/s), out of place and in place.
    rounding: half a last digit of each time, as a share of it, and of each algbw (GB/s).
    wrong: number of wrong elements; "" if none, or unchecked.
    checks_in_place: impossible for alltoall and sendrecv; None if unknown.
    """

    line: int
    size: int
    count: int
    element: int
    op: str
    has_root: bool
    sides: tuple[tuple[float, float, float], ...]
    rounding: tuple[tuple[float, float], ...]
    wrong: str
    checks_in_place: bool | None

    @classmethod
    def read(cls, line: int, named: dict[str, str], sides: list[list[str]], wrong_column: str) -> "PrintedRow":
        """Read a row. Raises ValueError for other values than numbers."""
        checks = [side[3] for side in sides if len(side) > 3]
        counted = checks if "wrong" in wrong_column else []
        wrong = next((text for text in counted if text not in _NONE and not decimal_number(text) <= 0), "")  # or NaN
        size = whole(named.get("size", named.get("bytes", "0")))
        count = whole(named.get("count", named.get("N", "0")))
        element = ELEMENT_BYTES.get(named.get("type", "")) or max(size // (count or size or 1), 1)
        op = named.get("redop", named.get("op"))
        timed = [side[:3] for side in sides if side[0] not in _NONE]
        in_place = checks[1] not in _NONE if len(checks) > 1 and checks[0] not in _NONE else None
        if in_place is None and op is None and wrong_column == "error":
            in_place = True  # an old table: alltoall and sendrecv had a column of the operation
        has_root = named.get("root", "-1") != "-1" and whole(named["root"]) >= 0
        times = tuple((decimal_number(a), decimal_number(b), decimal_number(c)) for a, b, c in timed)
        rounding = tuple((_last_digit(a) / (decimal_number(a) or 1), _last_digit(b)) for a, b, _ in timed)
        op = "none" if op is None else op
        return cls(line, size, count, element, op, has_root, times, rounding, wrong, in_place)

    @property
    def reduces(self) -> bool:
        return self.op not in ("", "none")

    def as_row(self, file: str, test: str, num_ranks: int | None) -> LogRow:
        """Return its size and times. Raises ValueError if they contradict its rates.

        Before June 2020 algbw of all_gather and reduce_scatter was busbw.
        """
        size = self.size
        is_part = test in PER_RANK and num_ranks and self.count * self.element == size
        is_sent = test in PER_RANK and num_ranks and self.sides[0][1] == self.sides[0][2] >= _TELLS
        if is_part and (is_sent or self._bytes_by_rate(size) > 1.5):
            size *= num_ranks or 1  # printed for one rank, though the rate is of all
        share = busbw_factor(test, num_ranks) if is_sent and num_ranks else 1.0
        seconds = 1e-3 if self._bytes_by_rate(size) < 0.01 else 1e-6  # version 1 has milliseconds
        times = tuple(time * seconds for time, _, _ in self.sides)
        if test in TESTS and num_ranks != 1:  # nothing is sent on one
            self._check(file, size, seconds, share)
        return LogRow(size, times, self.line)

    def _bytes_by_rate(self, size: int) -> float:
        """Bytes by the rate over `size`; 1 if the rate is too small to tell."""
        time, algbw, _ = self.sides[0]
        return algbw * 1e9 * time * 1e-6 / size if algbw >= _TELLS else 1.0

    def _check(self, file: str, size: int, seconds: float, share: float) -> None:
        for (time, algbw, _), (of_time, of_rate) in zip(self.sides, self.rounding, strict=True):
            if not time > 0:
                raise ValueError(f"{file}: line {self.line}: time {time:g}: must be greater than 0")
            rate = share * size / (time * seconds) / 1e9
            if not abs(rate - algbw) <= 1.2 * of_rate + (0.02 + of_time) * rate:  # nor is it NaN
                raise ValueError(
                    f"{file}: line {self.line}: {size} bytes in {time * seconds:.6g} s are {rate:.3g} GB/s, but the "
                    f"row says {algbw:g}: it contradicts itself"
                )


def _last_digit(text: str) -> float:
    """Return half a unit of the last digit, such as 0.05 for 1.5."""
    digits, _, exponent = text.lower().partition("e")
    return 0.5 * 10.0 ** min(int(exponent or 0) - len(digits.partition(".")[2]), 300)


def ratio_range(rows: Iterable[PrintedRow]) -> tuple[float, float]:
    """Return the range of busbw over algbw that the digits of all rows allow; low > high: they contradict each other.

    If all rates are too small, it is 0 to infinity.
    """
    low, high = 0.0, math.inf
    for _, algbw, busbw in (side for row in rows for side in row.sides):
        if algbw > 2 * _ROUNDING:
            low = max(low, (busbw - _ROUNDING) / (algbw + _ROUNDING))
            high = min(high, (busbw + _ROUNDING) / (algbw - _ROUNDING))
    return low, high


def ranks_by_counts(rows: Iterable[PrintedRow]) -> int | None:
    """Return the size, of all ranks since version 2.1, over the count, of one; None if equal, or rows differ."""
    ratios = {divmod(row.size, row.count * row.element) if row.count else (1, 0) for row in rows}
    ratio, rest = ratios.pop()
    return ratio if not ratios and not rest and ratio > 1 else None


def ranks_by_rates(test: str, rows: Iterable[PrintedRow]) -> int | None:
    """Return the ranks by busbw over algbw; None unless exactly one number is possible."""
    low, high = ratio_range(rows)
    limit = _BUSBW_LIMITS.get(test, 0.0)
    if not low <= high < limit:
        return None
    fewest, largest = (limit / (limit - ratio) for ratio in (low, high))
    possible = range(math.ceil(fewest), math.floor(largest) + 1)
    return possible[0] if len(possible) == 1 and possible[0] > 1 else None


_TESTS = "all_reduce|all_gather|reduce_scatter|broadcast|reduce|sendrecv|all_?to_?allv?|gather|scatter|hypercube"
_PROGRAM = re.compile(rf"\b({_TESTS})_perf|^# Collective test \w+: (\w+)_perf")
NCCL_HEADER = re.compile(r"(?:#\s*)?(?:size|bytes)\s+(?:count|N)\s+type\b")
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
    """The rows under one header, and the facts of the log up to their end; program: the test by its name."""

    program: str
    program_line: int
    rows: tuple[PrintedRow, ...]
    left_out: tuple[str, ...]
    shape: RunShape
    environment: Mapping[str, str]

    @property
    def candidates(self) -> tuple[str, ...]:
        tests = _BY_COLUMNS[self.rows[-1].reduces, self.rows[-1].has_root]
        checked = next((row.checks_in_place for row in self.rows if row.checks_in_place is not None), None)
        if checked is not None:
            tests = tuple(test for test in tests if (test in _NEVER_CHECKED_IN_PLACE) is not checked)
        if not self.rows[-1].op:
            tests = (*tests, "hypercube")
        # A size of all ranks with one rank's count excludes the other tests, whatever the digits of the rates.
        return ("reduce_scatter",) if "reduce_scatter" in tests and ranks_by_counts(self.rows) else tests

    def test(self) -> str:
        """Return the test by the program, the columns or the bandwidths; "" if unknown."""
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
    """Reader of the runs in one file of nccl-tests."""

    file: str
    shape: Shape = field(default_factory=Shape)
    _runs: list[_PrintedRun] = field(default_factory=list)
    _without_run: list[str] = field(default_factory=list)  # lines left out of runs without other rows
    _program: str = ""
    _program_line: int = 0
    _columns: Sequence[str] = ()
    _rows: list[PrintedRow] = field(default_factory=list)
    _left_out: list[str] = field(default_factory=list)
    _has_wrong: bool = False
    _is_noted: bool = False  # that rows have no header
    _environment: LogEnvironment = field(default_factory=LogEnvironment)

    def look_at(self, number: int, line: str) -> None:
        """Read one line. Raises ValueError for wrong results."""
        if "_perf" in line and (match := _PROGRAM.search(line)):
            if "test starting" in line:
                self.end_run()
            if "test concluded" not in line or (self._rows and not self._program):
                self._program, self._program_line = match[1] or match[2], number
        if NCCL_HEADER.match(line):
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
        """End the run; rows count again after the next header."""
        self._end_process()
        self._columns = ()

    def _end_process(self) -> None:
        self.finish()
        self._environment.end_process()

    def finish(self) -> None:
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
        """The tables of all runs, after one with the lines left out of runs without rows.

        Raises ValueError for an unknown test or a contradiction.
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
        """Return the table of a run; tests: of runs with the same columns."""
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
        """Return the one test of runs with these columns. Raises ValueError for several or none."""
        if len(tests) == 1:
            return next(iter(tests))
        raise ValueError(
            f"{self.file}: line {run.rows[-1].line}: cannot tell which of {', '.join(run.candidates)} this is: keep "
            "the line with the program's name, such as all_reduce_perf, in the log, and the lines with the ranks"
        )

    def _check_ranks(self, run: _PrintedRun, test: str, num_ranks: int, ranks_from: str) -> None:
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
        if ranks_from == GIVEN:
            return "that were given: give those that ran"
        if run.shape.listed.num_ranks:
            return f"that the log names: {_RANK_MISSING}"
        return f"of {ranks_from}: write {self.file}:nodes=2,ranks-per-node=4 with the hosts and ranks that ran"
