"""What a call does beside its schedule: copies within a rank, some of them into memory that is new to the process.

torch 2.13, ProcessGroupGloo: reduce_scatter_tensor works on a clone of its input and copies the share out of that;
all_gather_into_tensor receives into a new tensor and copies all of it to the output. Ours sum and gather where the
result belongs.
"""

from typing import NamedTuple

from ringsim.measurements import TORCH
from ringsim.network import AnyNetwork
from ringsim.schedule import Collective

# What is larger glibc asks the system for, and gives back, each time (M_MMAP_THRESHOLD_MAX, mallopt(3)): then every
# page is new and must be cleared first.
NEW_BEYOND_BYTES = 32 * 2**20


class LocalWork(NamedTuple):
    """Bytes that each rank copies, and that it copies into a new tensor."""

    copied: float
    cloned: float = 0.0


def local_work(collective: Collective, algorithm: str, num_ranks: int, size_bytes: int) -> LocalWork:
    """Of one call; size_bytes: of the whole tensor."""
    share = size_bytes / num_ranks
    if algorithm != TORCH:
        return LocalWork(0.0)
    if collective is Collective.REDUCE_SCATTER:
        return LocalWork(share, size_bytes)
    return LocalWork(size_bytes, size_bytes) if collective is Collective.ALL_GATHER else LocalWork(0.0)


def local_s(work: LocalWork, network: AnyNetwork, num_ranks: int) -> float:
    """Seconds that it takes. Copying is taken to be as fast as adding: both are bound by memory."""
    rank = network.spec.processor
    clone_rate = rank.first_touch_bytes_per_s if work.cloned > NEW_BEYOND_BYTES else rank.reduce_bytes_per_s
    return (work.copied / rank.reduce_bytes_per_s + work.cloned / clone_rate) * _waiting(network, num_ranks)


def _waiting(network: AnyNetwork, num_ranks: int) -> float:
    """How much longer it takes as all ranks do it at once, where a host has fewer cores than ranks."""
    cores = network.spec.host.cores
    return max(1.0, (network.spec.ranks_per_host or num_ranks) / cores) if cores else 1.0
