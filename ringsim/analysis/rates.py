"""algbw and busbw, as nccl-tests defines them (its doc/PERFORMANCE.md)."""

import math

from ringsim.schedule import Collective


def algbw_bytes_per_s(size_bytes: int, time_s: float) -> float | None:
    """Bytes of the whole tensor per second; None where no time passes (one rank), or it never ends."""
    return size_bytes / time_s if 0 < time_s < math.inf else None


def busbw_factor(collective: Collective, num_ranks: int) -> float:
    """Return what algbw is multiplied by to be comparable with the bandwidth of a link, whatever the ranks."""
    share = (num_ranks - 1) / num_ranks
    factors = {Collective.ALL_REDUCE: 2 * share, Collective.REDUCE_SCATTER: share, Collective.ALL_GATHER: share}
    return factors.get(collective, 1.0)


def busbw_bytes_per_s(collective: Collective, num_ranks: int, size_bytes: int, time_s: float) -> float | None:
    """Algbw times `busbw_factor`; None where algbw is."""
    algbw = algbw_bytes_per_s(size_bytes, time_s)
    return None if algbw is None else algbw * busbw_factor(collective, num_ranks)
