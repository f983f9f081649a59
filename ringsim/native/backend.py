"""`Backend`: how a process group carries out what DDP asks of it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from ringsim.algorithms import gloo_ring_all_reduce, gloo_segments_per_rank
from ringsim.registry import build
from ringsim.schedule import Collective, Schedule


@dataclass(frozen=True, slots=True)
class Backend:
    """The names are those of `ringsim algorithms`.

    num_workers: how many collectives a rank works on at once.
    torchs: whether calls are torch.distributed's own, rather than those of `collectives`.
    """

    num_workers: int
    all_reduce: str
    broadcast: str
    torchs: bool = True


# Gloo has two threads (ProcessGroupGloo.hpp: `threads = 2`) and broadcasts along a binomial tree (gloo/broadcast.cc);
# a process group of NCCL has one stream, one after another; our own backend has one lane, see `collectives`.
BACKENDS = {
    "gloo": Backend(2, "gloo_ring", "binomial_tree"),
    "nccl": Backend(1, "ring", "ring"),
    "ring": Backend(1, "ring", "binomial_tree", torchs=False),
}


def all_reduce_of(algorithm: str, num_ranks: int) -> Callable[[int], Schedule]:
    """The schedule for a number of bytes; Gloo's own depends on it, others do not.

    Raises ValueError for an algorithm that there is not.
    """
    if algorithm == "gloo_ring":
        of_segments = cache(lambda segments: gloo_ring_all_reduce(num_ranks, segments))
        return lambda size_bytes: of_segments(gloo_segments_per_rank(num_ranks, size_bytes))
    schedule = build(Collective.ALL_REDUCE, algorithm, num_ranks)
    return lambda _: schedule
