"""The limits of this process: cores, memory, and transfers simulated per second.

Containers and Slurm limit cores and memory by control groups (Linux cgroup v2), which the kernel's numbers for the
whole machine do not show.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ringsim.units import format_size

PROCESS, GROUPS, MACHINE = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"), Path("/proc/meminfo")
TRANSFERS_PER_S = 2**18  # that are simulated where messages share things; several times as many where they do not
SMALL_BYTES = 2**20  # always free: asking the system would take a fifth of a short simulation's time
MAX_COUNTED = 10**8  # in a second or so, if they need not be listed
_PROBES = 128, 256  # large enough for n(n - 1) to be nearly n^2, small enough to be built in no time
RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")  # of memory.stat


def available_cores() -> float:
    """Return the cores that this process may use, within the quotas of its control groups."""
    return min(_usable_cores(), *_quotas())


def free_bytes() -> float:
    """Return the memory that this process can still allocate; infinite if the system does not tell."""
    return min(_free_bytes_of_machine(), *_free_bytes_of_groups())


def installed_bytes() -> float:
    """Return the machine's physical memory; infinite if the system does not tell."""
    return _pages_bytes("SC_PHYS_PAGES")


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _groups() -> Iterator[Path]:
    """Yield the folders of the process's control group and its parents, whose limits also hold."""
    with suppress(OSError):
        for line in PROCESS.read_text(errors="surrogateescape").splitlines():
            if line.startswith("0::/"):
                own = GROUPS / line.removeprefix("0::/")
                # A container may see its own group as the outermost one, and yet be told of the path outside.
                yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(GROUPS))


def _quotas() -> Iterator[float]:
    """Yield infinity and the groups' quotas: "200000 100000" is two cores, "max 100000" no limit."""
    yield float("inf")
    for folder in _groups():
        with suppress(OSError, ValueError, ZeroDivisionError):
            most, period = (folder / "cpu.max").read_text().split()
            yield int(most) / int(period)


def _free_bytes_of_groups() -> Iterator[float]:
    yield float("inf")
    for folder in _groups():
        with suppress(OSError, ValueError):
            most, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
            yield max(most - used + _reclaimable_bytes(folder), 0)


def _reclaimable_bytes(folder: Path) -> int:
    """Return a group's memory that the kernel frees when needed, mostly cached files."""
    with suppress(OSError, ValueError):
        return sum(_number_of(folder / "memory.stat", name) for name in RECLAIMABLE)
    return 0


def _free_bytes_of_machine() -> float:
    with suppress(OSError, ValueError):
        # Linux counts cached files separately.
        return _number_of(MACHINE, "MemAvailable:") * 1024
    return _pages_bytes("SC_AVPHYS_PAGES")


def _number_of(file: Path, name: str) -> int:
    numbers = dict(line.split()[:2] for line in file.read_text().splitlines() if len(line.split()) > 1)
    if name not in numbers:
        raise ValueError(f"{file}: has no line {name}")
    return int(numbers[name])


def _pages_bytes(name: str) -> float:
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return float("inf")


def transfers_in(seconds: float) -> int:
    """Return approximately how many transfers are simulated in that time."""
    return round(seconds * TRANSFERS_PER_S)


class HasTransfers(Protocol):
    """A schedule, for counting."""

    @property
    def num_transfers(self) -> int:
        """Return the number of transfers."""


def require_memory(purpose: str, num_bytes: float) -> None:
    """Raise ValueError if `purpose` needs more than the free memory; `SMALL_BYTES` are always allowed."""
    if num_bytes <= SMALL_BYTES:
        return
    free = free_bytes()
    if num_bytes > free:
        raise ValueError(
            f"{purpose}: would take {format_size(num_bytes)} of memory; {format_size(free)} is free: use fewer ranks"
        )


def require_installed_memory(purpose: str, num_bytes: float) -> None:
    """Raise ValueError if `purpose` needs more than the installed memory, the same on all processes of a machine."""
    installed = installed_bytes()
    if num_bytes > installed:
        raise ValueError(f"{purpose}: would take {format_size(num_bytes)} of memory; there is {format_size(installed)}")


def estimated_transfers(make: Callable[[int], HasTransfers], num_ranks: int) -> int:
    """Estimate the transfers of `make(num_ranks)` by a power law through two small schedules.

    The error is a few percent for n, n log n or n^2 transfers. 0 for few ranks, or if the small schedules cannot be
    built.
    """
    if num_ranks <= max(_PROBES):
        return 0
    try:
        few, many = (make(probe).num_transfers for probe in _PROBES)
    except ValueError:  # a user's own algorithm need not work for every number of ranks
        return 0
    doublings = math.log2(num_ranks / max(_PROBES))
    return round(many * (many / few) ** doublings) if few else many


def require_few_transfers(make: Callable[[int], HasTransfers], num_ranks: int) -> None:
    """Raise ValueError if `make(num_ranks)` would have more than `MAX_COUNTED` transfers."""
    estimate = estimated_transfers(make, num_ranks)
    if estimate > MAX_COUNTED:
        raise ValueError(f"{format_count(estimate)} transfers, above {format_count(MAX_COUNTED)}: use fewer ranks")


def format_count(count: float) -> str:
    """Return a short text, such as 128 or 1.7e10."""
    if count < 10**5:
        return f"{count:g}"
    digits, _, power = f"{count:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"
