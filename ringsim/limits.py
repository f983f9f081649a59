"""The limits of this process (cores and memory), and how much work a command does without being asked for it.

Containers and Slurm limit cores and memory by control groups (Linux cgroup v2), which the kernel's numbers for the
whole machine do not show.

Work is bounded by its size, not by a clock: a command gives the same answer on every machine. A bound is a time on one
core times the rounded rate of a 2-core x86-64 machine.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ringsim.units import format_size

PROCESS, GROUPS, MACHINE = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"), Path("/proc/meminfo")
SMALL_BYTES = 2**20  # always free: asking the system would take a fifth of a short simulation's time
_PROBES = 128, 256  # large enough for n(n - 1) to be nearly n^2, small enough to be built in no time
RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")  # of memory.stat

# Work of one core per second.
_SIMULATED_PER_S = 2**18  # transfers, where messages share things
_UNSHARED_PER_S = 8 * _SIMULATED_PER_S  # transfers, where they share nothing
_TRIED_PER_S = 2**14  # transfers of small schedules, each of which is built and simulated anew
_COUNTED_PER_S = 10**8  # transfers that need not be listed
_COUNTS_PER_S = 2**22  # contributions (ranks x chunks x ranks) of a proof, or of steps in words
_PAIRS_PER_S = 2**17  # of ranks, of whose paths a bound is made
_FLOW_EDGES_PER_S = 8_000  # of a max-flow problem

COUNTED_TRANSFERS = _COUNTED_PER_S  # of any schedule that is built by its name
CHOSEN_TRANSFERS = 2 * _SIMULATED_PER_S  # of a schedule that the user has not asked for by its name
LOOKED_AT_TRANSFERS = 4 * _SIMULATED_PER_S  # of a table in which it is looked for a fast path
EXPLAINED_TRANSFERS = 8 * _SIMULATED_PER_S  # examined one by one; a ring of 1,024 ranks has not quite as many
QUEUED_TRANSFERS = 16 * _SIMULATED_PER_S  # of a call of a training step; above, the library's formula gives its time
ADVISED_TRANSFERS = _SIMULATED_PER_S  # of an alternative in `ringsim explain`
ADVISED_UNSHARED_TRANSFERS = _UNSHARED_PER_S  # likewise, if its messages share nothing
SWEPT_TRANSFERS = 10**7  # of a cell of a sweep, by default; listed, they take about 1 GB
PLACED_TRANSFERS = round(3.7 * _TRIED_PER_S)  # of all rank placements that are tried, together
TRIED_TRANSFERS = 2 * _TRIED_PER_S  # of a schedule that a search tries, or of all calls of a step drawn once
FORM_TRANSFERS = _TRIED_PER_S // 8  # of a schedule of which a search tries many forms
PROVED_COUNTS = _COUNTS_PER_S  # of a schedule from a file, before it is used; a ring of 161 ranks
WALKTHROUGH_COUNTS = 4 * _COUNTS_PER_S  # of a schedule whose steps are put into words
BOUND_PAIRS = 4 * _PAIRS_PER_S  # 724 ranks
BOUND_FLOW_EDGES = _FLOW_EDGES_PER_S  # of all flow problems of one kind together
SEARCH_SECONDS = 10.0  # of `ringsim synthesize`, by default
REPORT_FITS = 16  # of a directory with many files; each takes a second
REPORT_RANKS = 32  # with more a page would take minutes
REPORT_DRAWN_PAIRS = 4000  # of ranks, of all bootstrap networks on which a prediction is repeated
PROOF_BYTES = 4 * 2**30  # of one of the two arrays of a proof


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
    """Raise ValueError if `make(num_ranks)` would have more than `COUNTED_TRANSFERS` transfers."""
    estimate = estimated_transfers(make, num_ranks)
    if estimate > COUNTED_TRANSFERS:
        most = format_count(COUNTED_TRANSFERS)
        raise ValueError(f"{format_count(estimate)} transfers, above {most}: use fewer ranks")


def format_count(count: float) -> str:
    """Return a short text, such as 128 or 1.7e10."""
    if count < 10**5:
        return f"{count:g}"
    digits, _, power = f"{count:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"
