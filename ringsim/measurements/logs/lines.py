"""The parts of all logs: their lines, the ranks and hosts that they tell of, and the tables that are made of them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

from ringsim.files import quoted, read_bytes
from ringsim.units import MAX_DIGITS, whole_number

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
        raise ValueError(f"{quoted(text)}: must be a whole number of at most {MAX_DIGITS} digits 0 to 9")
    return number


def clean(line: str) -> str:
    """Return the line without colours and the time at which it was printed."""
    return _TIME.sub("", _COLOUR.sub("", line)).strip()


_RANK = re.compile(r"\bRank\s+(\d+)\b.*?\bon\s+(\S+)\s+device\s+\d+\s*(?:\[[^\]]*\])?\s*(.*)$")
_WHERE = re.compile(r"(\d+)\s+process(?:es)?\b.{0,20}?\bon\s+(\d+)\s+(?:nodes?|hosts?|machines?)\b", re.IGNORECASE)
_PROCESSES = re.compile(r"\bprocesses=(\d+)|(?:^|\s)(?:-np|-n|--ntasks|--size)[ =](\d+)\b|(\d+)\s+process(?:es)?\b")
_PER_NODE = re.compile(r"(?:^|\s)(?:-N|-ppn|--ppn|--npernode|--ntasks-per-node)[ =](\d+)\b|npernode[ =](\d+)|ppr:(\d+)")
_NODES = re.compile(r"\b(?:between|on)\s+(\d+)\s+(?:nodes?|hosts?|machines?)\b|\b(\d+)\s+(?:machines|hosts)\b")
_LAUNCHER = re.compile(r"\b(?:mpirun|mpiexec|aprun|srun|benchmark|benchmark_cuda)\b")


@dataclass(slots=True)
class Shape:
    """The numbers of ranks and hosts, which are read from one line after another.

    given: the number of ranks by the user's word, where the log does not tell.
    hosts: of each rank, by the benchmark's own list of ranks, which is believed before anything else.
    """

    given: int | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    devices: dict[str, None] = field(default_factory=dict)
    _processes: int | None = None
    _nodes: int | None = None
    _per_node: int | None = None

    def look_at(self, line: str) -> bool:
        """Read one line, and returns whether it was one of the list of ranks."""
        if match := _RANK.search(line):
            self.hosts[whole(match[1])] = match[2]
            if match[3]:
                self.devices[match[3].strip()] = None
            return True
        if match := _WHERE.search(line):
            self._processes, self._nodes = whole(match[1]), whole(match[2])
        elif _LAUNCHER.search(line) or "processes" in line:
            self._processes = _first(_PROCESSES, line) or self._processes
            if _LAUNCHER.search(line):
                self._per_node = _first(_PER_NODE, line) or self._per_node
        if line.startswith(("#", "Options")):
            self._nodes = _first(_NODES, line) or self._nodes
        return False

    def restart(self) -> None:
        """Forget the list of ranks, since a new run with its own begins."""
        self.hosts, self.devices = {}, {}

    def num_ranks(self) -> int | None:
        """Return what the log tells, or else what was given. Raises as `told_ranks` does."""
        return self.told_ranks() or self.given

    def told_ranks(self) -> int | None:
        """Return None if the log does not tell. Raises ValueError if the list of ranks has a gap."""
        missing = set(range(len(self.hosts))) - set(self.hosts)
        if missing:
            raise ValueError(
                f"the list of ranks has no line of rank {min(missing)}, but one of rank {max(self.hosts)}: restore it, "
                "or remove the others too and give --nodes and --ranks-per-node"
            )
        return len(self.hosts) or self._processes

    def num_nodes(self) -> int | None:
        """Return None if the log does not tell."""
        if self.hosts:
            return len(set(self.hosts.values()))
        if self._nodes is None and self._processes and self._per_node:
            return -(-self._processes // self._per_node)
        return self._nodes


def _first(pattern: re.Pattern[str], line: str) -> int | None:
    match = pattern.search(line)
    return whole(next(group for group in match.groups() if group)) if match else None


class LogShape(NamedTuple):
    """The hosts of a log, and the ranks of each, as the user says; None where the log tells."""

    num_nodes: int | None = None
    ranks_per_node: int | None = None

    @property
    def num_ranks(self) -> int | None:
        """All ranks; None unless both are said."""
        return self.num_nodes * self.ranks_per_node if self.num_nodes and self.ranks_per_node else None


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

    def of_all_ranks(self, num_ranks: int | None) -> Self:
        """Return the row of the whole tensor where one rank's part was printed; as it is if the ranks are unknown."""
        return replace(self, size_bytes=self.size_bytes * (num_ranks or 1))


@dataclass(frozen=True, slots=True)
class LogTable:
    """The rows of one run of a benchmark.

    test: "all_reduce" and so on, or a name of `operations`; whatever else a benchmark times keeps its own name.
    num_ranks, num_nodes: all ranks, and the hosts; None if the log does not tell.
    devices: what the log says each rank runs on, without doubles.
    environment: what else the log tells: versions, commands, what was forced.
    left_out: a line for each row that is not among `rows`, with its place and the reason.
    """

    file: str
    benchmark: str
    test: str
    num_ranks: int | None
    num_nodes: int | None
    rows: tuple[LogRow, ...]
    devices: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
