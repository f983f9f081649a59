"""`executed_schedule`: what `collectives` runs for an algorithm's name and a size, so that it can be simulated too."""

from ringsim.algorithms import gloo_ring_all_reduce, gloo_segments_per_rank
from ringsim.registry import build
from ringsim.schedule import Collective, Cut, Schedule, gloo_partition, partition


def gloo_pieces(collective: Collective, algorithm: str, num_ranks: int, size_bytes: int) -> int:
    """All that the size matters to the schedule: into how many pieces Gloo's own ring cuts each chunk; 0 for others."""
    as_gloo = (collective, algorithm) == (Collective.ALL_REDUCE, "gloo_ring")
    return gloo_segments_per_rank(num_ranks, size_bytes) if as_gloo else 0


def executed_schedule(collective: Collective, algorithm: str, num_ranks: int, size_bytes: int) -> tuple[Schedule, Cut]:
    """The schedule, and how the tensor is cut for it: Gloo's own ring depends on the size, all others do not.

    Raises what `build` raises.
    """
    if pieces := gloo_pieces(collective, algorithm, num_ranks, size_bytes):
        return gloo_ring_all_reduce(num_ranks, pieces), gloo_partition
    return build(collective, algorithm, num_ranks), partition
