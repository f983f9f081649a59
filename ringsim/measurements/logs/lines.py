"""The parts of all logs: their lines, the ranks and hosts that they tell of, and the tables that are made of them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ringsim.files import quoted, read_bytes
from ringsim.measurements.logs.nccl_settings import GROUPS, path_settings
from ringsim.measurements.measurements import TESTS
from ringsim.units import MAX_DIGITS, plural, whole_number

# The time of a line, which changes from line to line: Open MPI's --timestamp-output, and ISO 8601.
_TIME = re.compile(
    r"^\s*(?:\w{3} \w{3} +\d+ [\d:]+ \d{4}|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?)(?=[\s#<\[]|$)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MAX_LINE = 2**13  # characters: no line that tells something here has so many, and patterns take long for far more
MAX_BYTES = 64 * 2**20  # a log with more is not one table of results


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line with its number, from 1.

    Raises ValueError for a file that cannot be a log, OSError if it is unreadable.
    """
    data = read_bytes(path, MAX_BYTES)
    if b"\0" in data[:4096]:
        raise ValueError(f"{path}: is not text: give the output of nccl-tests, OSU or Gloo's benchmark")
    for number, line in enumerate(data.decode("utf-8-sig", errors="replace").splitlines(), start=1):
        yield number, clean(line[:_MAX_LINE])


def whole(text: str) -> int:
    """Return the number of these digits. Raises ValueError for more digits than a quantity here can have."""
    number = whole_number(text)
    if number is None:
        raise ValueError(f"{quoted(text)}: must be a whole number of at most {MAX_DIGITS} digits")
    return number


def unread(file: str, number: int, line: str) -> str:
    """Return why a line of a table is left out that begins like a row, but is none; "" for others."""
    if not re.match(r"\d+\s+[\d.]+", line):
        return ""
    return (
        f"{file}: line {number}: {quoted(line)} is no row of numbers alone, as many as in others (Fail marks wrong "
        "results): write them with a point and without units"
    )


def clean(line: str) -> str:
    """Return the line without colours and the time at which it was printed."""
    return _TIME.sub("", _COLOUR.sub("", line)).strip()


class LogShape(NamedTuple):
    """The hosts of a log, and the ranks of each, as the user says; None where the log tells."""

    num_nodes: int | None = None
    ranks_per_node: int | None = None

    @property
    def num_ranks(self) -> int | None:
        """All ranks; None unless both are said."""
        return self.num_nodes * self.ranks_per_node if self.num_nodes and self.ranks_per_node else None


NOT_SAID = LogShape()


@dataclass(frozen=True, slots=True)
class LogRow:
    """One size in a benchmark's table.

    size_bytes: of the whole tensor (for all_gather the output, for reduce_scatter the input); of a message, where
    there is no collective.
    times_s: out of place first, then in place, as far as they were timed.
    low_s, high_s: of the repetitions behind the time, if the benchmark tells; not what it calls a minimum over ranks.
    line: where it stands, from 1.
    """

    size_bytes: int
    times_s: tuple[float, ...]
    line: int
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True, slots=True)
class LogTable:
    """The rows of one run of a benchmark.

    test: "all_reduce" and so on, or a name of `operations`; whatever else a benchmark times keeps its own name.
    num_ranks, num_nodes: all ranks, and the hosts; None if neither the log nor the user tells.
    read_from: where test, ranks and hosts were read, such as "line 1"; ranks and hosts may be `GIVEN` by the user.
    devices: what the log says each rank runs on, without doubles.
    environment: what else the log tells: versions, commands, what was forced.
    left_out: a line for each row that is not among `rows`, with its place and the reason; of a table without rows, why.
    """

    file: str
    benchmark: str
    test: str
    num_ranks: int | None
    num_nodes: int | None
    rows: tuple[LogRow, ...]
    read_from: tuple[str, str, str] = ("", "", "")
    devices: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def reading(self) -> str:
        """The line that says as which collective the table was read, on which ranks and hosts, and from which lines."""
        test_from, ranks_from, hosts_from = self.read_from
        place = f"{self.file}: line {self.rows[0].line}: {self.test} ({test_from})"
        if self.test not in TESTS:
            return f"{place} is left out: there is no formula for it, only for {', '.join(TESTS)}"
        ranks = plural(self.num_ranks or 0, "rank") + ("" if ranks_from == hosts_from else f" ({ranks_from})")
        groups = self.environment.get(GROUPS, "1")
        at_once = f", {groups} groups at once share the NICs of a host" if groups != "1" else ""
        path = path_settings(self.environment)
        changed = f"; measured with {path}, which a network fitted to it includes" if path else ""
        return f"{place} on {ranks} of {plural(self.num_nodes or 0, 'host')} ({hosts_from}){at_once}{changed}"
