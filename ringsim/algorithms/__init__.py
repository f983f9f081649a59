"""The algorithms: pure functions from a number of ranks to a `Schedule`."""

from collections.abc import Callable

from ringsim.algorithms.ring import (
    gloo_ring_all_gather,
    gloo_ring_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from ringsim.collective import Collective
from ringsim.schedule import Schedule

Algorithm = Callable[[int], Schedule]

ALGORITHMS: dict[tuple[Collective, str], Algorithm] = {
    (Collective.ALL_REDUCE, "ring"): ring_all_reduce,
    (Collective.REDUCE_SCATTER, "ring"): ring_reduce_scatter,
    (Collective.ALL_GATHER, "ring"): ring_all_gather,
    (Collective.ALL_REDUCE, "gloo_ring"): gloo_ring_all_reduce,
    (Collective.ALL_GATHER, "gloo_ring"): gloo_ring_all_gather,
}


def build(collective: Collective, algorithm: str, num_ranks: int) -> Schedule:
    """The schedule of a built-in algorithm.

    Raises ValueError for a name that the collective does not have, and for less than one rank.
    """
    try:
        make = ALGORITHMS[collective, algorithm]
    except KeyError:
        known = ", ".join(name for of, name in ALGORITHMS if of is collective)
        raise ValueError(f"algorithm {algorithm!r}: {collective.value} has {known or 'none yet'}") from None
    return make(num_ranks)


__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "build",
    "gloo_ring_all_gather",
    "gloo_ring_all_reduce",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
]
