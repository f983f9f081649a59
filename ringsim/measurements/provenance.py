"""The provenance of a figure: machine, versions, date, command, and the hosts of the ranks."""

import datetime
import os
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np

from ringsim.files import parsed, refusal, values
from ringsim.measurements.measurements import Measurements

FROM_PYTHON = "from Python"


def provenance() -> dict[str, Any]:
    """Return the facts needed to judge a figure, for JSON."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "machine": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ringsim": version("ringsim"),
    }


def _command() -> str:
    """Return the command line, from the script's name or `-m package`; FROM_PYTHON without a script."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    if program in ("", "-", "-c") or program.startswith("ipykernel"):
        return FROM_PYTHON
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and program == "__main__.py":
        program = f"-m {spec.name.removesuffix('.__main__')}"
    return " ".join([program, *sys.argv[1:]])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


@dataclass(frozen=True, slots=True)
class RankHosts:
    """The hosts of the ranks, (num_ranks,) each, numbered from 0 in order of appearance.

    hosts: computers, network namespaces or containers with their own interfaces.
    physical_hosts: computers whose cores and clock ranks share; the key in files is "machines".
    """

    physical_hosts: tuple[int, ...]
    hosts: tuple[int, ...]

    @classmethod
    def from_measurements(cls, measurements: Measurements) -> Self | None:
        """Return the recorded hosts; None without them. Raises ValueError for invalid ones."""
        noted = {name: measurements.provenance.get(name) for name in ("machines", "hosts")}
        if None in noted.values():
            return None
        return cls(*(_numbers(f"provenance.{name}", value, measurements.num_ranks) for name, value in noted.items()))

    def as_dict(self) -> dict[str, list[int]]:
        return {"machines": list(self.physical_hosts), "hosts": list(self.hosts)}

    @property
    def num_hosts(self) -> int:
        return max(self.hosts) + 1

    @property
    def one_clock(self) -> bool:
        return not any(self.physical_hosts)

    @property
    def ranks_per_host(self) -> int:
        """The ranks of each host except perhaps the last. Raises ValueError unless hosts are filled in order."""
        num_ranks = self.hosts.count(0)
        if list(self.hosts) != [rank // num_ranks for rank in range(len(self.hosts))]:
            raise ValueError(f"hosts of the ranks: {list(self.hosts)}: only hosts with as many ranks each, in order")
        return num_ranks

    def right_of(self, rank: int) -> int:
        return (rank + 1) % len(self.hosts)


def _numbers(name: str, value: object, num_ranks: int) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or len(value) != num_ranks:
        raise refusal(name, value, f"must be a list of {num_ranks} numbers, one for each rank")
    known = 0
    for rank, number in enumerate(value):
        known = max(known, 1 + parsed(Annotated[int, values.whole(0, known)], number, f"{name}[{rank}]"))
    return tuple(value)
