"""The libraries by name, the one that a network describes, and the algorithms that only one of them has."""

from ringsim.algorithms import NCCL_ALGORITHMS
from ringsim.libraries.library import GLOO, MESSAGES, OURS, Library
from ringsim.libraries.nccl import NCCL
from ringsim.network import Network

LIBRARIES = {"gloo": GLOO, "nccl": NCCL, "ring": OURS}  # by the names of torch's backends
GLOO_RING = "gloo_ring"  # no other library has it
LIBRARY = "nccl"  # not one algorithm, but what NCCL takes for the size and the number of ranks
LIBRARY_ALGORITHMS = NCCL_ALGORITHMS  # that only the library has which networks describe; the first is its ring


def library_of(network: Network) -> Library:
    """Return the library that a network describes; MESSAGES if it describes none."""
    return NCCL if network.spec.protocols else MESSAGES


def why_not(network: Network, algorithm: str) -> str:
    """Return why ranks on a network do not use an algorithm: it is another library's; empty where they may.

    NVLS also needs a switch that adds (Hopper or newer).
    """
    describes_nccl = bool(network.spec.protocols)
    if algorithm == GLOO_RING:
        return "describes NCCL, not Gloo" if describes_nccl else ""
    if algorithm not in (*NCCL_ALGORITHMS, LIBRARY):
        return ""
    if not describes_nccl:
        return "does not describe NCCL"
    return "has no switch that adds" if algorithm == "nvls" and network.spec.library.switch_share is None else ""
