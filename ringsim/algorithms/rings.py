"""Rings made of rings (Gloo's own, both directions, several orders), and chains, which are rings cut open."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ringsim.algorithms.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter, stride_orders
from ringsim.schedule import Collective, Columns, Schedule, gloo_partition, merge, permute_ranks, pipeline, split, then

GLOO_SEGMENT_BYTES = 2**20
Ring = Callable[[int, int], Schedule]  # of a number of ranks and a direction


def gloo_ring_all_reduce(num_ranks: int, segments_per_rank: int = 2) -> Schedule:
    """Ring all-reduce as in Gloo: to the left, each chunk in `segments_per_rank` segments.

    2(n - 1) steps a segment. The default is valid up to 2 MiB a rank; for more see `gloo_segments_per_rank`. Gloo's
    limit of two segments in flight is not modelled (gloo/allreduce.cc).
    """
    ring = split(ring_all_reduce(num_ranks, direction=-1), segments_per_rank)
    return replace(ring, algorithm="gloo_ring", partition=gloo_partition)


def gloo_segments_per_rank(num_ranks: int, size_bytes: int) -> int:
    """Return the number of segments of each rank's share in Gloo's all_reduce: at least 2, each of at most 1 MiB."""
    segments = max(-(-size_bytes // GLOO_SEGMENT_BYTES), 2 * num_ranks)
    return -(-segments // num_ranks)


def gloo_ring_all_gather(num_ranks: int) -> Schedule:
    """Ring all-gather as in Gloo: to the right, each chunk in two segments (gloo/allgather.cc)."""
    return replace(split(ring_all_gather(num_ranks), 2), algorithm="gloo_ring")


def bidirectional_ring_all_reduce(num_ranks: int) -> Schedule:
    """Two ring all-reduces of half the data each, one to the right, one to the left: 2(n - 1) steps each."""
    return _both_ways(ring_all_reduce, num_ranks)


def bidirectional_ring_reduce_scatter(num_ranks: int) -> Schedule:
    """Two ring reduce-scatters of half the data each, right and left: n - 1 steps each way."""
    return _both_ways(ring_reduce_scatter, num_ranks)


def bidirectional_ring_all_gather(num_ranks: int) -> Schedule:
    """Two ring all-gathers of half the data each, right and left: n - 1 steps each way."""
    return _both_ways(ring_all_gather, num_ranks)


def multi_ring_all_reduce(num_ranks: int, num_rings: int = 2) -> Schedule:
    """Several ring all-reduces at once, each with its share of the data and its own order of ranks, as NCCL's channels.

    2(n - 1) steps each; see `stride_orders`. Raises ValueError for less than one ring.
    """
    # Build both halves separately: relabelling permutes chunks with their owners.
    halves = multi_ring_reduce_scatter(num_ranks, num_rings), multi_ring_all_gather(num_ranks, num_rings)
    return then(*halves, Collective.ALL_REDUCE, "multi_ring")


def multi_ring_reduce_scatter(num_ranks: int, num_rings: int = 2) -> Schedule:
    """Several ring reduce-scatters at once, as in multi_ring's all_reduce: n - 1 steps a ring."""
    return _in_orders(ring_reduce_scatter(num_ranks), num_rings)


def multi_ring_all_gather(num_ranks: int, num_rings: int = 2) -> Schedule:
    """Several ring all-gathers at once, as in multi_ring's all_reduce: n - 1 steps a ring."""
    return _in_orders(ring_all_gather(num_ranks), num_rings)


def ring_broadcast(num_ranks: int, segments: int | None = None) -> Schedule:
    """Pass the data along a chain that starts at rank 0, in k segments: n + k - 2 steps.

    segments: by default 4 per rank; a large broadcast then takes up to 1.25 times as long as sending the data once.
    """
    return pipeline(chain(Collective.BROADCAST, num_ranks), 4 * num_ranks if segments is None else segments)


def ring_reduce(num_ranks: int, segments: int | None = None) -> Schedule:
    """Add up the data along a chain that ends at rank 0, in k segments: n + k - 2 steps."""
    return pipeline(chain(Collective.REDUCE, num_ranks), 4 * num_ranks if segments is None else segments)


def naive_ring_all_reduce(num_ranks: int) -> Schedule:
    """Pass the whole tensor from rank to rank, each adding its own, then the sum back: 2(n - 1) steps."""
    halves = chain(Collective.REDUCE, num_ranks), chain(Collective.BROADCAST, num_ranks)
    return then(*halves, Collective.ALL_REDUCE, "naive_ring")


def chain(collective: Collective, num_ranks: int) -> Schedule:
    """Pass the whole data from rank to rank, from rank 0 or, for a reduction, to rank 0: n - 1 steps."""
    near = np.arange(num_ranks - 1)
    hops: list[Columns] = (
        [(rank + 1, rank, 0, True) for rank in near[::-1]]
        if collective.reduces
        else [(rank, rank + 1, 0, False) for rank in near]
    )
    return Schedule.from_columns(collective, "ring", num_ranks, 1, hops)


def _both_ways(ring: Ring, num_ranks: int) -> Schedule:
    return merge(ring(num_ranks, 1), ring(num_ranks, -1), algorithm="bidirectional_ring")


def _in_orders(ring: Schedule, num_rings: int) -> Schedule:
    if num_rings < 1:
        raise ValueError(f"num_rings {num_rings}: must be at least 1")
    rings = [permute_ranks(ring, order) for order in stride_orders(ring.num_ranks, num_rings)]
    return merge(*rings, algorithm="multi_ring")
