"""The ring: every rank sends to its right neighbour and receives from its left one.

Reduce-scatter over n = 4 ranks: the chunk that each rank *sends* in each step (the next rank adds its own share):

             rank 0    rank 1    rank 2    rank 3
    step 0   chunk 3   chunk 0   chunk 1   chunk 2
    step 1   chunk 2   chunk 3   chunk 0   chunk 1
    step 2   chunk 1   chunk 2   chunk 3   chunk 0
    holds    chunk 0   chunk 1   chunk 2   chunk 3     <- the sum over all four ranks

In all-gather every rank forwards the chunk that it received last, for another n - 1 steps. In each step a rank sends
1/n of the data: 2(n - 1)/n in total, the minimum for any algorithm (Patarasuk and Yuan 2009).
"""

import numpy as np

from ringsim.schedule import Collective, Ints, Relay, Schedule, Steps, TransferTable, require_count, then


def ring_reduce_scatter(num_ranks: int, direction: int = 1) -> Schedule:
    """Ring reduce-scatter: n - 1 steps, (n - 1)/n of the data sent; rank r ends with the finished chunk r of n."""
    return _half(Collective.REDUCE_SCATTER, num_ranks, direction)


def ring_all_gather(num_ranks: int, direction: int = 1) -> Schedule:
    """Ring all-gather: n - 1 steps, (n - 1)/n of the data sent; rank r starts with chunk r, all end with all."""
    return _half(Collective.ALL_GATHER, num_ranks, direction)


def ring_all_reduce(num_ranks: int, direction: int = 1) -> Schedule:
    """Ring all-reduce: reduce-scatter, then all-gather; 2(n - 1) steps, 2(n - 1)/n of the data sent.

    direction: 1 sends to the right (rank + 1), -1 to the left.
    """
    halves = ring_reduce_scatter(num_ranks, direction), ring_all_gather(num_ranks, direction)
    return then(*halves, Collective.ALL_REDUCE, "ring")


def stride_orders(num_ranks: int, num_orders: int) -> list[Ints]:
    """Return orders of all ranks in equal strides; no two orders share a hop while there are enough strides."""
    ranks = np.arange(num_ranks, dtype=np.int64)
    strides = np.flatnonzero(np.gcd(ranks, num_ranks) == 1) if num_ranks > 1 else np.array([1])
    return [ranks * strides[i % len(strides)] % num_ranks for i in range(num_orders)]


def _half(collective: Collective, num_ranks: int, direction: int) -> Schedule:
    """Return one half of a ring.

    In step k a rank sends the chunk `1 + k` (reduce-scatter) or `k` (all-gather) places behind it.
    """
    require_count("num_ranks", num_ranks)
    ranks, zeros = np.arange(num_ranks), np.zeros(num_ranks, np.int64)
    behind, reduces = (ranks - direction) % num_ranks, collective.reduces
    relay = Relay(
        src=ranks,
        dst=(ranks + direction) % num_ranks,
        chunk=behind if reduces else ranks,
        channel=zeros,
        turn=zeros,
        after=behind,
        num_turns=1,
        reduces=(reduces,) * (num_ranks - 1),
    )
    steps = Steps.relayed(relay) if num_ranks > 1 else Steps.listed(0, TransferTable.of_steps([]))
    return Schedule(collective, "ring", num_ranks, num_ranks, steps)
