"""Limits of the system on this process: the time of cores, and memory, within its control groups (Linux cgroup v2).

Containers and Slurm set the limits of control groups, and the kernel's numbers of the whole machine do not show them.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROCESS, GROUPS, MACHINE = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"), Path("/proc/meminfo")
RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")  # of memory.stat


def available_cores() -> float:
    """Return the cores' worth of time that this process can have: no more than its control groups are given."""
    return min(_usable_cores(), *_quotas())


def free_bytes() -> float:
    """Return the memory that this process can still have; infinite where the system does not say."""
    return min(_free_bytes_of_machine(), *_free_bytes_of_groups())


def installed_bytes() -> float:
    """Return the machine's physical memory; infinite where the system does not say."""
    return _pages_bytes("SC_PHYS_PAGES")


def _usable_cores() -> int:
    """Return how many cores this process may run on; where the system does not say, how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _groups() -> Iterator[Path]:
    """Yield the folders of the process's control group and of those that it is in, whose limits hold as well."""
    with suppress(OSError):
        for line in PROCESS.read_text(errors="surrogateescape").splitlines():
            if line.startswith("0::/"):
                own = GROUPS / line.removeprefix("0::/")
                # A container may see its own group as the outermost one, and yet be told of the path outside.
                yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(GROUPS))


def _quotas() -> Iterator[float]:
    """Yield an infinite one, and those of the groups: "200000 100000" is two cores, "max 100000" no limit."""
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
    """Return what a group uses and the kernel gives away when memory is needed: most of that is kept of files."""
    with suppress(OSError, ValueError):
        return sum(_number_of(folder / "memory.stat", name) for name in RECLAIMABLE)
    return 0


def _free_bytes_of_machine() -> float:
    with suppress(OSError, ValueError):
        # Linux counts what it keeps of files apart.
        return _number_of(MACHINE, "MemAvailable:") * 1024
    return _pages_bytes("SC_AVPHYS_PAGES")


def _number_of(file: Path, name: str) -> int:
    """Return the number after a name with which a line begins. Raises ValueError where there is none."""
    numbers = dict(line.split()[:2] for line in file.read_text().splitlines() if len(line.split()) > 1)
    if name not in numbers:
        raise ValueError(f"{file}: has no line {name}")
    return int(numbers[name])


def _pages_bytes(name: str) -> float:
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return float("inf")
