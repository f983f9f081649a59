"""Refusing what there is no memory or time for, before it begins rather than when the machine is full."""

import math
from collections.abc import Callable
from typing import Protocol

from ringsim.limits import free_bytes, installed_bytes
from ringsim.units import format_size

SMALL_BYTES = 2**20  # which a process always has: to ask the system would take a fifth of a short simulation's time
MAX_COUNTED = 10**8  # in a second or so, if they need not be listed
_PROBES = 128, 256  # large enough for n(n - 1) to be nearly n^2, small enough to be built in no time


class HasTransfers(Protocol):
    """A schedule, as far as it is counted here."""

    @property
    def num_transfers(self) -> int:
        """Return the number of its transfers."""


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


def estimated_transfers(make: Callable[[int], HasTransfers], num_ranks: int) -> int:
    """Estimate the transfers of `make(num_ranks)`: a power of the number of ranks through two small schedules.

    Within a few percent for what grows as n, n log n or n^2. 0 where nothing need be estimated, for no more ranks
    than the probes have, or nothing can be, as the probes cannot be built.
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
    """Raise ValueError if `make(num_ranks)` would have more transfers than one wants to wait for."""
    estimate = estimated_transfers(make, num_ranks)
    if estimate > MAX_COUNTED:
        raise ValueError(f"{format_count(estimate)} transfers, above {format_count(MAX_COUNTED)}: use fewer ranks")


def format_count(count: float) -> str:
    """Return a short text, such as 128 or 1.7e10."""
    if count < 10**5:
        return f"{count:g}"
    digits, _, power = f"{count:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"
