"""Which algorithms are tried on a network, and how they are timed where it describes a collective library."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ringsim.network import AnyNetwork
from ringsim.registry import ALGORITHMS, NCCL_ALGORITHMS
from ringsim.schedule import Collective, Schedule
from ringsim.simulation import predict_time

LIBRARY = "nccl"  # not one algorithm, but what NCCL takes for the size and the number of ranks


class Taken(NamedTuple):
    """The choice of a library: its schedule, that and the protocol in words, and the time in seconds."""

    schedule: Schedule
    name: str
    time_s: float


class Timing(NamedTuple):
    """How schedules are timed: as the messages of `predict_time`, or as a library sends them.

    time_s: of a schedule on a network. take: what the library of a network takes, given the most transfers that it may
    have; raises ValueError where that is not known. name: by which the file of an unfinished sweep tells them apart.
    """

    time_s: Callable[[Schedule, AnyNetwork, int], float] = predict_time
    take: Callable[[AnyNetwork, Collective, int, int, float], Taken] | None = None
    name: str = "messages"


PLAIN = Timing()


def candidates(collective: Collective, networks: Iterable[AnyNetwork]) -> list[str]:
    """Return the built-in algorithms that at least one of the networks has: NCCL's only where it is described.

    >>> from ringsim import load_network
    >>> "nvls" in candidates(Collective.ALL_REDUCE, [load_network("dgx-a100")])
    False
    """
    networks = list(networks)
    return [
        name
        for owner, name in ALGORITHMS
        if owner is collective and (name not in NCCL_ALGORITHMS or any(has(network, name) for network in networks))
    ]


def has(network: AnyNetwork, algorithm: str) -> bool:
    """Return whether a network can have one of NCCL's algorithms; NVLS needs a switch that adds (Hopper or newer)."""
    if not network.spec.protocols:
        return False
    return algorithm != "nvls" or network.spec.library.switch_share is not None
