"""Refusing what there is no memory for, before it begins rather than when the machine is full."""

import os
from contextlib import suppress
from pathlib import Path

from ringsim.units import format_size


def require_memory(purpose: str, num_bytes: float) -> None:
    """Raise ValueError if `purpose`, which takes `num_bytes`, does not fit into this machine's free memory."""
    free = free_bytes()
    if num_bytes > free:
        raise ValueError(
            f"{purpose}: would take {format_size(num_bytes)} of memory; {format_size(free)} is free: use fewer ranks"
        )


def require_installed_memory(purpose: str, num_bytes: float) -> None:
    """Raise ValueError if `purpose` does not fit even into an empty machine: all processes get the same answer."""
    installed = _pages_bytes("SC_PHYS_PAGES")
    if num_bytes > installed:
        raise ValueError(f"{purpose}: would take {format_size(num_bytes)} of memory; there is {format_size(installed)}")


def free_bytes() -> float:
    """Return the physical memory that is not in use; infinite where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        # Linux counts what it keeps of files apart; it gives that away when asked for more.
        return int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) * 1024
    return _pages_bytes("SC_AVPHYS_PAGES")


def _pages_bytes(name: str) -> float:
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return float("inf")
