"""The lines and tables of logs, and the ranks and hosts of each run.

Ranks and hosts come from the user, nccl-tests' list of ranks, or the command. -N is the number of hosts for srun, and
the ranks per host for mpirun; options after the program belong to it: -n is then a number of iterations.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ringsim.files import quoted, read_bytes
from ringsim.measurements.measurements import TESTS
from ringsim.measurements.nccl_settings import GROUPS, path_settings
from ringsim.units import MAX_DIGITS, plural, whole_number

# The time of a line, which changes from line to line: Open MPI's --timestamp-output, and ISO 8601.
_TIME = re.compile(
    r"^\s*(?:\w{3} \w{3} +\d+ [\d:]+ \d{4}|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?)(?=[\s#<\[]|$)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MAX_LINE = 2**13  # characters: relevant lines are shorter, and patterns are slow on much longer ones
MAX_BYTES = 64 * 2**20  # a log with more is not one table of results


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line with its number, from 1.

    Raises ValueError for a file that cannot be a log, OSError for an unreadable one.
    """
    data = read_bytes(path, MAX_BYTES)
    if b"\0" in data[:4096]:
        raise ValueError(f"{path}: is not text: give the output of nccl-tests, OSU or Gloo's benchmark")
    for number, line in enumerate(data.decode("utf-8-sig", errors="replace").splitlines(), start=1):
        yield number, clean(line[:_MAX_LINE])


def whole(text: str) -> int:
    """Return the number of these digits. Raises ValueError for too many."""
    number = whole_number(text)
    if number is None:
        raise ValueError(f"{quoted(text)}: must be a whole number of at most {MAX_DIGITS} digits")
    return number


def clean(line: str) -> str:
    """Return the line without colours and timestamp."""
    return _TIME.sub("", _COLOUR.sub("", line)).strip()


class LogShape(NamedTuple):
    """The hosts of a log and the ranks of each, by the user; None: not given."""

    num_nodes: int | None = None
    ranks_per_node: int | None = None

    @property
    def num_ranks(self) -> int | None:
        return self.num_nodes * self.ranks_per_node if self.num_nodes and self.ranks_per_node else None


UNKNOWN_SHAPE = LogShape()


@dataclass(frozen=True, slots=True)
class LogRow:
    """One size in a benchmark's table; line: from 1.

    size_bytes: of the whole tensor (all_gather's output, reduce_scatter's input), or of a message.
    times_s: out of place, then in place, as far as timed.
    low_s, high_s: range of the repetitions, not over ranks, if printed.
    """

    size_bytes: int
    times_s: tuple[float, ...]
    line: int
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True, slots=True)
class LogTable:
    """The rows of one run of a benchmark.

    test: one of `TESTS`, or the benchmark's own name. num_ranks, num_nodes: None if not known.
    read_from: sources of test, ranks and hosts, such as "line 1" or `GIVEN`.
    environment: versions, commands and settings of the log.
    left_out: place and reason of each row that is left out, or of the whole table.
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
        """A line with test, ranks and hosts, and their sources."""
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


GIVEN = "given"
_SLURM = {"nodes": "-N|--nodes", "ranks": "-n|--ntasks", "per_node": "--n?tasks-per-node"}
_MPI = {"ranks": "--?np?", "per_node": "-N|--?ppn|--?npernode|--?perhost"}
_JSRUN = {"ranks": "-p|--np", "sets": "-n|--nrs", "per_set": "-a|--tasks_per_rs", "sets_per_host": "-r|--rs_per_host"}
_TORCHRUN = {"nodes": "--nnodes", "per_node": "--nproc[-_]per[-_]node"}
_ALLOCATING = ("#SBATCH", "sbatch", "salloc")  # their options hold for the commands of the job
_LAUNCHERS = {
    **dict.fromkeys((*_ALLOCATING, "srun", "flux"), _SLURM),
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "mpirun_rsh", "orterun", "prun", "prterun", "aprun"), _MPI),
    "jsrun": _JSRUN,
    "torchrun": _TORCHRUN,
}
_WRAPPERS = "numactl|taskset|nice|ionice|env|bash|sh|python3?|singularity|apptainer|docker|podman"  # of a program
_PROGRAMS = {"_perf": {"gpus": "-g|--ngpus", "threads": "-t|--nthreads"}, "benchmark": {"ranks": "--size"}}
_NAMES = "|".join([*map(re.escape, _LAUNCHERS), _WRAPPERS, r"\w+_perf(?:_\w+)?", r"osu_\w+", "benchmark"])
_NAME = re.compile(rf"(?:^|(?<=[\s/\"'`(]))({_NAMES})(?=[\s\"'`)]|$)")
_PER_RESOURCE = re.compile(r"\bppr:(\d+):node\b|(?:^| )--?pernode\b")
_PROMPT = re.compile(r"(?:(?:\S*[$#>%+:]|\w+=\S*|time|env)\s+)*\S*")  # and the folder of the program
_ON_HOSTS = re.compile(r"\b(?:between|on)\s+(\d+)\s+(?:nodes?|hosts?|machines?)\b|\b(\d+)\s+(?:machines|hosts)\b")
_PROCESSES = re.compile(r"\bprocesses=(\d+)|(\d+)\s+process(?:es)?\b(?!\s+(?:per|on each)\b)")
_PER_HOST = re.compile(r"(\d+)\s+process(?:es)?\s+(?:per|on each)\s+(?:node|host)\b")
_RANK = re.compile(r"\bRank\s+(\d+)\b(?:\s+Group\s+(\d+)\b)?(?:\s+Pid\s+(\d+)\b)?.*?\bon\s+(\S+)\s+device\s+(\d+"
                   r"\s*(?:\[[^\]]*\])?)\s*(.*)$")  # fmt: skip
_CUT_RANK = re.compile(r"^#\s+Rank\b")
_PROCESS = re.compile(r"\bnThread\s+(\d+)\s+nGpus\s+(\d+)\b")
_WITHOUT_MPI = "were nccl-tests built without MPI=1? Then each process runs alone: build them with MPI=1, and run again"


class StatedShape(NamedTuple):
    """The ranks and hosts by one source, and its lines."""

    num_ranks: int | None = None
    num_nodes: int | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class RunShape:
    """The ranks and hosts of one run, by source.

    own, of_all: by the user for this log, and for logs that do not tell. listed: by the list of ranks, which only `own`
    overrides. started: by the command.
    groups: communicators that share the NICs of a host; 0 if no list of ranks names several.
    doubt: why the run cannot have these ranks; or "".
    """

    own: LogShape
    of_all: LogShape
    listed: StatedShape
    started: StatedShape
    devices: tuple[str, ...]
    groups: int
    doubt: str

    def place(self, by_law: int | None = None, pairs: int = 0) -> tuple[int | None, int | None, str, str]:
        """Return the ranks and the hosts, None if unknown, and the source of each.

        by_law: ranks by the rates or counts of the table. pairs: in a test between pairs of ranks.
        """
        own, listed, started = self.own, self.listed, self.started
        given = LogShape(own.num_nodes or self.of_all.num_nodes, own.ranks_per_node or self.of_all.ranks_per_node)
        ranks, ranks_from = _first(
            (2 * pairs, "by its pairs"), (own.num_ranks, GIVEN),
            (listed.num_ranks, listed.place), (given.num_ranks, GIVEN), (started.num_ranks, started.place),
            (by_law, "by its rates"),
        )  # fmt: skip
        of_all = min(given.num_nodes or 0, 2 * pairs or math.inf)
        nodes, nodes_from = _first(
            (own.num_nodes, GIVEN), (_hosts(ranks, own.ranks_per_node), GIVEN), (listed.num_nodes, listed.place),
            (of_all, GIVEN), (_hosts(ranks, given.ranks_per_node), GIVEN),
            (min(started.num_nodes or 0, ranks or math.inf), started.place),
            (2 if pairs else None, "assumed: write LOG:nodes=1 for one host"),
        )  # fmt: skip
        if ranks is None and nodes and given.ranks_per_node:
            return nodes * given.ranks_per_node, nodes, GIVEN, nodes_from
        return ranks, nodes, ranks_from, nodes_from


def _first(*stated: tuple[float | None, str]) -> tuple[int | None, str]:
    return next(((int(number), place) for number, place in stated if number), (None, ""))


def _hosts(num_ranks: int | None, ranks_per_node: int | None) -> int | None:
    return -(-num_ranks // ranks_per_node) if num_ranks and ranks_per_node else None


@dataclass(slots=True)
class Shape:
    """The ranks and hosts in the lines of one file, in order."""

    own: LogShape = UNKNOWN_SHAPE
    of_all: LogShape = UNKNOWN_SHAPE
    _job: dict[str, int] = field(default_factory=dict)
    _commands: list[tuple[str, dict[str, int]]] = field(default_factory=list)  # programs and counts, since a table
    _used: list[tuple[str, dict[str, int]]] = field(default_factory=list)  # commands of the table before
    _places: dict[int, None] = field(default_factory=dict)  # lines of both
    _said: dict[int, dict[str, int]] = field(default_factory=dict)  # in words, by line
    _said_later: dict[int, dict[str, int]] = field(default_factory=dict)  # behind rows: of the next table
    _ranks: dict[tuple[int, int], tuple[str, str, str]] = field(default_factory=dict)  # group, rank: host, process, GPU
    _lines: list[int] = field(default_factory=list)
    _devices: dict[str, None] = field(default_factory=dict)
    _per_process: int = 0  # ranks, as the process announces; 0: it does not
    _announced: str = ""  # by a process, since the last command
    is_used: bool = False  # by a table, which has ended
    has_rows: bool = False  # of a table that has not ended
    _doubt: str = ""
    _continued: str = ""

    def look_at(self, number: int, line: str, end_runs: Callable[[], None]) -> None:
        """Read one line; call `end_runs` before it changes the ranks of earlier rows."""
        if match := _RANK.search(line):
            end_runs()
            self._list(number, match)
        elif match := _PROCESS.search(line):
            end_runs()
            is_another = line == self._announced and not self.is_used
            self._restart()
            self._per_process, self._announced = whole(match[1]) * whole(match[2]), line
            if is_another:
                self._doubt = f"several processes announce themselves before one table: {_WITHOUT_MPI}"
        elif self._ranks and _CUT_RANK.match(line):
            self._doubt = f"line {number} of the list of ranks cannot be read: restore it"
        else:
            whole_line, self._continued = f"{self._continued}{line}", ""
            if line.endswith("\\"):
                self._continued = f"{whole_line[:-1]} "
            else:
                self._read(number, whole_line, end_runs)

    def _list(self, number: int, match: re.Match[str]) -> None:
        if self.is_used:
            self._restart()
        rank, process = (whole(match[2] or "0"), whole(match[1])), (match[4], match[3] or "", match[5].strip())
        if self._ranks.setdefault(rank, process) != process:
            self._doubt = f"rank {rank[1]} is listed twice: {_WITHOUT_MPI}"
        self._lines.append(number)
        if match[6]:
            self._devices[match[6].strip()] = None

    def _restart(self) -> None:
        self._ranks, self._lines, self._devices, self.is_used, self._doubt = {}, [], {}, False, ""

    def _read(self, number: int, line: str, end_runs: Callable[[], None]) -> None:
        launcher, program, counts = _command(line)
        if launcher is not None:
            end_runs()
            self._read_command(launcher, program, counts)
            self._places[number] = None
        elif counts := _statement(line):
            if self.is_used and not self.has_rows:
                self._said = {}
                self._restart()
            (self._said_later if self.has_rows else self._said)[number] = counts

    def _read_command(self, launcher: str, program: str, counts: dict[str, int]) -> None:
        is_next_job = self.is_used or self._commands or self._used
        self._said = {} if self.is_used else self._said
        self._places = {} if self.is_used or self._used else self._places
        self._restart()
        if launcher in _ALLOCATING:
            self._job, self._commands, self._used = counts if is_next_job else self._job | counts, [], []
        else:
            self._announced, self._per_process = "", 0
            self._commands.append((program, _within_job(self._job, counts, launcher)))

    def run(self, programs: str, *, has_list: bool = False) -> RunShape:
        """Return the shape of the run that ends here, of a program that matches a pattern.

        has_list: whether the benchmark lists its ranks.
        """
        self.is_used, self.has_rows = True, False
        self._used, self._commands = self._commands or self._used, []
        started = self._of_command(programs)
        said = {kind: count for counts in self._said.values() for kind, count in counts.items()}
        counts = {**(said if said.get("ranks") in (None, started.get("ranks", said.get("ranks"))) else {}), **started}
        per_host, ranks = counts.get("per_node"), counts.get("ranks")
        nodes = started.get("nodes") or _hosts(ranks, per_host) or counts.get("nodes")
        processes = ranks or (nodes * per_host if nodes and per_host else None)
        lines = sorted({*self._places, *self._said})
        place = f"line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}"
        per_process = (self._per_process or counts.get("gpus", 1) * counts.get("threads", 1)) if has_list else 1
        stated = StatedShape(processes and processes * per_process, nodes, place)
        listed, groups, doubt = StatedShape(), 0, self._doubt
        if has_list and self._ranks:
            listed, groups, doubt = self._listed(processes or 1, per_process)
        shape = RunShape(self.own, self.of_all, listed, stated, tuple(self._devices), groups, doubt)
        if self._said_later:
            self._said, self._said_later = self._said_later, {}
            self._restart()
        return shape

    def _of_command(self, programs: str) -> dict[str, int]:
        """Return the counts of the program's last command; none if other commands contradict it."""
        own = [(program, counts) for program, counts in self._used if re.fullmatch(programs, program)]
        last = own[-1][1] if own else {} if self._used else self._job
        others = [counts for program, counts in own if program]
        return {} if any(last[kind] != some[kind] for some in others for kind in last.keys() & some) else last

    def _listed(self, processes: int, per_process: int) -> tuple[StatedShape, int, str]:
        """Return ranks and hosts of one listed group, the groups per host, and a doubt."""
        ranks, groups = {rank for _, rank in self._ranks}, [group for group, _ in self._ranks]
        num_listed = len(ranks) if self._doubt else -(-len(ranks) // per_process) * per_process  # of whole processes
        if missing := set(range(num_listed)) - ranks:
            raise ValueError(
                f"the list of ranks has no line of rank {min(missing)}, but one of rank {max(ranks)}: restore it, "
                "or remove the others too and give --nodes and --ranks-per-node"
            )
        placed = {(group, host) for (group, _), (host, *_) in self._ranks.items()}
        sizes, hosts = Counter(groups), Counter(group for group, _ in placed)
        shapes = {(sizes[group], hosts[group]) for group in groups}
        doubt = self._doubt
        if len(shapes) > 1:
            doubt = doubt or "its groups of ranks differ in their ranks or hosts: split into groups of one size"
        if processes > 1 and len(ranks) == per_process:
            doubt = doubt or f"{processes} processes were started, but {len(ranks)} ranks are listed: {_WITHOUT_MPI}"
        num_ranks, num_nodes = max(shapes)
        (host, gpu), times = Counter((host, gpu) for host, _, gpu in self._ranks.values()).most_common(1)[0]
        stated = StatedShape(
            num_ranks, num_nodes if times == 1 else None, f"lines {self._lines[0]} to {self._lines[-1]}"
        )
        if times > 1 and not (self.own.num_nodes or self.of_all.num_nodes):
            doubt = doubt or f"device {gpu} of {host} is listed {times} times: give the number of hosts, as LOG:nodes=2"
        return stated, max(Counter(host for _, host in placed).values()) if len(sizes) > 1 else 0, doubt


def _command(line: str) -> tuple[str | None, str, dict[str, int]]:
    """Return the launcher ("" if none), program and counts of a command; None for other lines."""
    before, *parts = _NAME.split(line)
    launcher, program, counts = "", "", dict[str, int]()
    for name, rest in zip(parts[::2], parts[1::2], strict=True):
        is_launcher = name in _LAUNCHERS
        options = _LAUNCHERS.get(name) or next((own for end, own in _PROGRAMS.items() if end in name), {})
        if not program:
            counts |= {kind: whole(value[1]) for kind in options if (value := _value(options[kind], rest))}
            launcher = name if is_launcher else launcher
            program = "" if is_launcher or re.fullmatch(_WRAPPERS, name) else name
    is_typed = _PROMPT.fullmatch(before) and (counts or before.endswith("/"))
    if not ((program and (launcher or is_typed or "ranks" in counts)) or (launcher and counts)):
        return None, "", {}
    if match := _PER_RESOURCE.search(line):
        counts["per_node"] = int(match[1] or 1)
    per_set = counts.pop("per_set", 1)
    for part, total in (("sets", "ranks"), ("sets_per_host", "per_node")):
        if part in counts:
            counts.setdefault(total, counts.pop(part) * per_set)
    if launcher and " : " in line:  # several programs, each with its own number
        counts.pop("ranks", None)
    return launcher, program, counts


def _value(options: str, words: str) -> re.Match[str] | None:
    return re.search(rf"(?:^|\s)(?:{options})(?:=|\s*)(\d+)(?=[\s\"'`)]|$)", words)


def _within_job(job: Mapping[str, int], own: dict[str, int], launcher: str) -> dict[str, int]:
    """Return the counts of a command, with those of its Slurm job that certainly hold for it."""
    if not own.keys() & {"nodes", "ranks", "per_node"}:
        return {**job, **own} if launcher else own
    tasks = job.get("nodes", 0) * job.get("per_node", 0)
    if launcher in ("srun", "flux"):
        is_other = "ranks" not in own and own.get("nodes") not in (None, job.get("nodes"))
        return own if is_other else {**{kind: job[kind] for kind in job if kind != "ranks"}, **own}
    fills_job = own.get("ranks") in (None, tasks) and not {"ranks", "per_node"} <= own.keys()
    return {"nodes": job["nodes"], **own} if fills_job and "nodes" in job else own


def _statement(line: str) -> dict[str, int]:
    """Return counts in words, such as "16 processes on 2 nodes"."""
    words = {"per_node": _PER_HOST, "ranks": _PROCESSES}
    said = {kind: pattern.search(line) for kind, pattern in words.items() if "process" in line}
    said["nodes"] = _ON_HOSTS.search(line) if line.startswith(("#", "Options")) or said.get("ranks") else None
    return {kind: whole(next(filter(None, match.groups()))) for kind, match in said.items() if match}
