"""The native side of torch.distributed: the algorithms of its backends, and the copies that its calls make.

Sources: torch 2.13, ProcessGroupGloo.hpp (two threads, `threads = 2`), ProcessGroupGloo.cpp and the
allreduce.cc, allgather.cc and broadcast.cc of Gloo.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from ringsim.measurements import TORCH
from ringsim.network import AnyNetwork
from ringsim.registry import build
from ringsim.schedule import Collective, Schedule
from ringsim.simulation import GLOO, NCCL, OURS, Runtime


@dataclass(frozen=True, slots=True)
class Backend:
    """How a process group carries out what DDP asks of it; the names are those of `ringsim algorithms`.

    chooses: whether its library has several algorithms and protocols, and takes by size what is over first; all_reduce
    is what stands for them on a network that does not describe the library.
    """

    runtime: Runtime
    all_reduce: str
    broadcast: str
    chooses: bool = False


DIRECT = (Collective.GATHER, Collective.SCATTER, Collective.ALL_TO_ALL)
BACKENDS = {
    "gloo": Backend(GLOO, "gloo_ring", "binomial_tree"),
    "nccl": Backend(NCCL, "ring", "ring", chooses=True),
    "ring": Backend(OURS, "ring", "binomial_tree"),
}


def native_algorithm(backend: Backend, collective: Collective) -> tuple[Collective, str]:
    """Return what a process group of the backend does for a collective: the collective and algorithm to build.

    On Gloo reduce_scatter_tensor copies its input and does a whole all_reduce; all_gather is a ring in the other
    direction. NCCL's ring stands for what its library chooses. All backends send what goes between two ranks only
    (DIRECT) straight.
    """
    if collective in DIRECT:
        return collective, "direct"
    is_gloo = backend.all_reduce == "gloo_ring"
    if collective is Collective.ALL_REDUCE or (is_gloo and collective is Collective.REDUCE_SCATTER):
        return Collective.ALL_REDUCE, backend.all_reduce
    if collective is Collective.BROADCAST:
        return collective, backend.broadcast
    return collective, "gloo_ring" if is_gloo and collective is Collective.ALL_GATHER else "ring"


def native_schedule(collective: Collective, num_ranks: int, size_bytes: int) -> Schedule:
    """Return what torch.distributed on Gloo does for a tensor of `size_bytes`.

    Raises ValueError for a collective that is not known here.
    """
    if collective not in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
        raise ValueError(f"what torch.distributed does for {collective.value} is not known here")
    return build(*native_algorithm(BACKENDS["gloo"], collective), num_ranks, size_bytes)


# What is larger glibc asks the system for, and gives back, each time (M_MMAP_THRESHOLD_MAX, mallopt(3)): then every
# page is new and must be cleared first.
NEW_BEYOND_BYTES = 32 * 2**20


class LocalWork(NamedTuple):
    """Bytes that each rank copies, and that it copies into a new tensor."""

    copied: float
    cloned: float = 0.0


def local_work(collective: Collective, algorithm: str, num_ranks: int, size_bytes: int) -> LocalWork:
    """Return the copies of one call. size_bytes: of the whole tensor."""
    share = size_bytes / num_ranks
    if algorithm != TORCH:
        return LocalWork(0.0)
    if collective is Collective.REDUCE_SCATTER:
        return LocalWork(share, size_bytes)
    return LocalWork(size_bytes, size_bytes) if collective is Collective.ALL_GATHER else LocalWork(0.0)


def local_s(work: LocalWork, network: AnyNetwork, num_ranks: int) -> float:
    """Return the seconds of the work. Copying is taken to be as fast as adding: both are bound by memory."""
    rank = network.spec.processor
    clone_rate = rank.first_touch_bytes_per_s if work.cloned > NEW_BEYOND_BYTES else rank.reduce_bytes_per_s
    # All ranks do it at once, and a host may have fewer cores than ranks.
    waiting = max(1.0, (network.spec.ranks_per_host or num_ranks) / (network.spec.host.cores or math.inf))
    return (work.copied / rank.reduce_bytes_per_s + work.cloned / clone_rate) * waiting
