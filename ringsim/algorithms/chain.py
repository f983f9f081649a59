"""The chain, a ring cut open: broadcast, reduce, and the all-reduce that a beginner writes first."""

import numpy as np

from ringsim.schedule import Collective, Columns, Schedule, pipeline, then


def ring_broadcast(num_ranks: int, segments: int | None = None) -> Schedule:
    """Broadcast along a chain from rank 0, in k segments one behind another: n + k - 2 steps.

    Every rank but the last sends the data once. segments: by default 4 for each rank, with which a large
    broadcast takes up to 1.25 times what sending the data once does; more bring it closer and cost overhead.
    """
    whole = chain(Collective.BROADCAST, num_ranks)
    return pipeline(whole, 4 * num_ranks if segments is None else segments)


def ring_reduce(num_ranks: int, segments: int | None = None) -> Schedule:
    """Reduce along a chain that ends in rank 0: the ring broadcast backwards, n + k - 2 steps for k segments."""
    whole = chain(Collective.REDUCE, num_ranks)
    return pipeline(whole, 4 * num_ranks if segments is None else segments)


def naive_ring_all_reduce(num_ranks: int) -> Schedule:
    """Return the whole tensor from rank to rank, each adding its own, and the result back: 2(n - 1) steps.

    A rank sends the data at most twice, hardly more than in a ring, but all others wait meanwhile: n times
    as slow. Popular tutorials do something else that takes about half of that: in n - 1 steps all ranks at
    once pass on the whole tensor that came last, and add it to their sum. They relay originals, and so
    need a second buffer beside the sum, which the state of a chunk does not have.
    """
    halves = chain(Collective.REDUCE, num_ranks), chain(Collective.BROADCAST, num_ranks)
    return then(*halves, Collective.ALL_REDUCE, "naive_ring")


def chain(collective: Collective, num_ranks: int) -> Schedule:
    """Return the whole data from rank to rank, away from rank 0 or for a reduction towards it: n - 1 steps."""
    near = np.arange(num_ranks - 1)
    hops: list[Columns] = (
        [(rank + 1, rank, 0, True) for rank in near[::-1]]
        if collective.reduces
        else [(rank, rank + 1, 0, False) for rank in near]
    )
    return Schedule.from_columns(collective, "ring", num_ranks, 1, hops)
