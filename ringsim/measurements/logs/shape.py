"""`Shape`: how many ranks on how many hosts, as far as the text of a log tells."""

import re
from dataclasses import dataclass, field

from ringsim.measurements.logs.lines import whole

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
        """Reads one line, and returns whether it was one of the list of ranks."""
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
        """Forgets the list of ranks, since a new run with its own begins."""
        self.hosts, self.devices = {}, {}

    def num_ranks(self) -> int | None:
        """None if the log does not tell. Raises ValueError if the list of ranks has a gap."""
        missing = set(range(len(self.hosts))) - set(self.hosts)
        if missing:
            raise ValueError(
                f"the list of ranks has no line of rank {min(missing)}, but one of rank {max(self.hosts)}: restore it, "
                "or remove the others too and give --nodes and --ranks-per-node"
            )
        return len(self.hosts) or self._processes or self.given

    def num_nodes(self) -> int | None:
        """None if the log does not tell."""
        if self.hosts:
            return len(set(self.hosts.values()))
        if self._nodes is None and self._processes and self._per_node:
            return -(-self._processes // self._per_node)
        return self._nodes


def _first(pattern: re.Pattern[str], line: str) -> int | None:
    match = pattern.search(line)
    return whole(next(group for group in match.groups() if group)) if match else None
