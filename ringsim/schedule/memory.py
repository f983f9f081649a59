"""Refusing what there is no memory for, before it begins rather than when the machine is full."""

from ringsim.limits import free_bytes, installed_bytes
from ringsim.units import format_size

SMALL_BYTES = 2**20  # which a process always has: to ask the system would take a fifth of a short simulation's time


def require_memory(purpose: str, num_bytes: float) -> None:
    """Raise ValueError if `purpose`, which takes `num_bytes`, does not fit into the memory that is free here.

    At most `SMALL_BYTES` always fit.
    """
    if num_bytes <= SMALL_BYTES:
        return
    free = free_bytes()
    if num_bytes > free:
        raise ValueError(
            f"{purpose}: would take {format_size(num_bytes)} of memory; {format_size(free)} is free: use fewer ranks"
        )


def require_installed_memory(purpose: str, num_bytes: float) -> None:
    """Raise ValueError if `purpose` does not fit even into an empty machine: all processes get the same answer."""
    installed = installed_bytes()
    if num_bytes > installed:
        raise ValueError(f"{purpose}: would take {format_size(num_bytes)} of memory; there is {format_size(installed)}")
