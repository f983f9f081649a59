"""The ring: every rank sends to its right neighbour and receives from its left one.

Reduce-scatter over n = 4 ranks, and which chunk each rank *sends* in each step (it goes to the next rank,
which adds its own share):

             rank 0    rank 1    rank 2    rank 3
    step 0   chunk 3   chunk 0   chunk 1   chunk 2
    step 1   chunk 2   chunk 3   chunk 0   chunk 1
    step 2   chunk 1   chunk 2   chunk 3   chunk 0
    holds    chunk 0   chunk 1   chunk 2   chunk 3     <- the sum over all four ranks

Follow chunk 0: rank 1 sends it in step 0, rank 2 adds its contribution and sends it in step 1, rank 3 in step 2,
and rank 0 adds the last share: after n - 1 steps rank r holds the finished chunk r. All-gather goes on
from there, every rank passing on what it received last, for another n - 1 steps. In each of the 2(n - 1)
steps each rank sends 1/n of the data: 2(n - 1)/n of it in all, whatever n is, which no algorithm can beat
(Patarasuk and Yuan 2009).

Several rings at once, in segments, and Gloo's are in `rings`; the ring cut open is `chain`. This is the only file
with ring arithmetic.
"""

from collections.abc import Sequence

import numpy as np

from ringsim.schedule import NEVER, Collective, Ints, Schedule, Step, Steps, constant, require_count, then


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
    return then(*halves, Collective.ALL_REDUCE, "ring", lookback=1)


def stride_orders(num_ranks: int, num_orders: int) -> list[Ints]:
    """Ways round all ranks in equal strides; no hop in two of them, as long as there are enough strides.

    A stride comes round to every rank if it has no divisor in common with their number. With more orders
    than such strides, the strides are used again.
    """
    ranks = np.arange(num_ranks, dtype=np.int64)
    strides = np.flatnonzero(np.gcd(ranks, num_ranks) == 1) if num_ranks > 1 else np.array([1])
    return [ranks * strides[i % len(strides)] % num_ranks for i in range(num_orders)]


def _half(collective: Collective, num_ranks: int, direction: int) -> Schedule:
    require_count("num_ranks", num_ranks)
    return Schedule(collective, "ring", num_ranks, num_ranks, RingSteps(collective, num_ranks, direction))


class RingSteps(Steps):
    """One half of a ring, each step computed when asked for.

    In step k a rank sends the chunk that lies `1 + k` places behind it (reduce-scatter) or `k` places
    behind it (all-gather), "behind" being against the direction of travel.
    """

    def __init__(self, collective: Collective, num_ranks: int, direction: int = 1) -> None:
        self._num_ranks = num_ranks
        self._direction = direction
        self._offset = 1 if collective is Collective.REDUCE_SCATTER else 0
        ranks = np.arange(num_ranks, dtype=np.int64)
        self._src = ranks
        self._dst = (ranks + direction) % num_ranks
        self._twice_round = np.concatenate([ranks, ranks])  # [k:k + n] is (rank + k) % n, without computing it
        self._reduce = np.broadcast_to(collective is Collective.REDUCE_SCATTER, num_ranks)
        self._never = constant(NEVER, num_ranks)
        self._channel = constant(0, num_ranks)

    def __len__(self) -> int:
        return self._num_ranks - 1

    @property
    def lookback(self) -> int:
        return 1 if len(self) > 1 else 0

    def step(self, index: int) -> Step:
        behind = -self._direction * (index + self._offset) % self._num_ranks
        chunk = self._twice_round[behind : behind + self._num_ranks]
        data_dependency = self._never if index == 0 else constant(index - 1, self._num_ranks)
        # A chunk that a ring overwrites was never sent before (all-gather) or is yet to be (reduce-scatter).
        return Step(self._src, self._dst, chunk, self._reduce, self._channel, data_dependency, self._never)

    @property
    def num_transfers(self) -> int:
        return len(self) * self._num_ranks

    @property
    def num_channels(self) -> int:
        return 1

    def patterns(self) -> Sequence[Step]:
        return self[:1]  # all steps go to the same neighbours

    def last_write(self, rank: Ints, chunk: Ints) -> Ints:
        # What a rank receives in a step is what its neighbour sends: one place further behind.
        return self._step_of(rank, chunk, self._offset + 1)

    def last_send(self, rank: Ints, chunk: Ints) -> Ints:
        if self._offset == 1:
            # A reduce-scatter's sends all carry a share of the finished chunk. Whoever writes the chunk
            # later has it from its owner, to whom all of them had arrived by then.
            return constant(NEVER, len(rank))
        return self._step_of(rank, chunk, self._offset)

    def _step_of(self, rank: Ints, chunk: Ints, offset: int) -> Ints:
        """Return the step in which the chunk lies `offset + step` places behind the rank."""
        step = (self._direction * (rank - chunk) - offset) % self._num_ranks
        return np.where(step < self._num_ranks - 1, step, NEVER)
