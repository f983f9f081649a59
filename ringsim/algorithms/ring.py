"""The ring: every rank sends to its right neighbour and receives from its left one.

Reduce-scatter over n = 4 ranks, and which chunk each rank *sends* in each step (it goes to the next rank,
which adds its own share):

             rank 0    rank 1    rank 2    rank 3
    step 0   chunk 3   chunk 0   chunk 1   chunk 2
    step 1   chunk 2   chunk 3   chunk 0   chunk 1
    step 2   chunk 1   chunk 2   chunk 3   chunk 0
    holds    chunk 0   chunk 1   chunk 2   chunk 3     <- the sum over all four ranks

Follow chunk 0: rank 1 sends it in step 0, rank 2 adds its share and sends it in step 1, rank 3 in step 2,
and rank 0 adds the last share: after n - 1 steps rank r holds the finished chunk r. All-gather goes on
from there, every rank passing on what it received last, for another n - 1 steps. In each of the 2(n - 1)
steps each rank sends 1/n of the data: 2(n - 1)/n of it in all, whatever n is, which no algorithm can beat
(Patarasuk and Yuan 2009).

This is the only file with ring arithmetic.
"""

import numpy as np

from ringsim.collective import Collective
from ringsim.combinators import then
from ringsim.schedule import NEVER, Ints, Schedule, Step, Steps, constant


def ring_reduce_scatter(num_ranks: int) -> Schedule:
    """Ring reduce-scatter: n - 1 steps; rank r ends with the finished chunk r of n."""
    return _ring(Collective.REDUCE_SCATTER, "ring", num_ranks)


def ring_all_gather(num_ranks: int) -> Schedule:
    """Ring all-gather: n - 1 steps; rank r starts with chunk r of n, every rank ends with all."""
    return _ring(Collective.ALL_GATHER, "ring", num_ranks)


def ring_all_reduce(num_ranks: int) -> Schedule:
    """Ring all-reduce: reduce-scatter, then all-gather, 2(n - 1) steps."""
    return _reduce_scatter_then_all_gather("ring", num_ranks)


def gloo_ring_all_reduce(num_ranks: int, segments_per_rank: int = 2) -> Schedule:
    """Gloo's own all_reduce: a ring that runs to the left, each chunk in `segments_per_rank` segments.

    Gloo cuts into the larger of 2 segments a rank and 1 MiB segments (gloo/allreduce.cc); the default is
    the former, right for up to 2 MiB a rank. Its limit of two segments in flight is not modelled.
    """
    return _reduce_scatter_then_all_gather("gloo_ring", num_ranks, direction=-1, pieces=segments_per_rank)


def gloo_ring_all_gather(num_ranks: int) -> Schedule:
    """Gloo's own all_gather: one chunk a rank, running to the right, in two segments (gloo/allgather.cc)."""
    return _ring(Collective.ALL_GATHER, "gloo_ring", num_ranks, pieces=2)


def _reduce_scatter_then_all_gather(algorithm: str, num_ranks: int, direction: int = 1, pieces: int = 1) -> Schedule:
    halves = [
        _ring(collective, algorithm, num_ranks, direction, pieces)
        for collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    ]
    return then(halves[0], halves[1], Collective.ALL_REDUCE, algorithm, lookback=pieces)


def _ring(collective: Collective, algorithm: str, num_ranks: int, direction: int = 1, pieces: int = 1) -> Schedule:
    if num_ranks < 1:
        raise ValueError(f"num_ranks {num_ranks}: must be at least 1")
    if pieces < 1:
        raise ValueError(f"pieces {pieces}: must be at least 1")
    steps = RingSteps(collective, num_ranks, direction, pieces)
    return Schedule(collective, algorithm, num_ranks, num_ranks * pieces, steps)


class RingSteps(Steps):
    """One half of a ring, each step computed when asked for.

    In round k a rank sends the chunk that lies `1 + k` places behind it (reduce-scatter) or `k` places
    behind it (all-gather), "behind" being against the direction of travel. With `pieces` > 1 a chunk is
    that many neighbouring chunks, sent in as many steps, so that they follow one another like a train.
    """

    def __init__(self, collective: Collective, num_ranks: int, direction: int = 1, pieces: int = 1) -> None:
        self._num_ranks = num_ranks
        self._direction = direction
        self._pieces = pieces
        self._offset = 1 if collective is Collective.REDUCE_SCATTER else 0
        ranks = np.arange(num_ranks, dtype=np.int64)
        self._src = ranks
        self._dst = (ranks + direction) % num_ranks
        self._twice_round = np.concatenate([ranks, ranks])  # [k:k + n] is (rank + k) % n, without computing it
        self._reduce = np.broadcast_to(collective is Collective.REDUCE_SCATTER, num_ranks)
        self._never = constant(NEVER, num_ranks)

    def __len__(self) -> int:
        return (self._num_ranks - 1) * self._pieces

    @property
    def lookback(self) -> int:
        return self._pieces

    def step(self, index: int) -> Step:
        round_, piece = divmod(index, self._pieces)
        behind = -self._direction * (round_ + self._offset) % self._num_ranks
        chunk = self._twice_round[behind : behind + self._num_ranks]
        if self._pieces > 1:
            chunk = chunk * self._pieces + piece
        ready_after = self._never if round_ == 0 else constant(index - self._pieces, self._num_ranks)
        # A chunk that a ring overwrites was never sent before (all-gather) or is yet to be (reduce-scatter).
        return Step(self._src, self._dst, chunk, self._reduce, ready_after, self._never)

    def last_write(self, rank: Ints, chunk: Ints) -> Ints:
        # What a rank receives in round k is what its neighbour sends: one place further behind.
        return self._step_of_round(rank, chunk, self._offset + 1)

    def last_send(self, rank: Ints, chunk: Ints) -> Ints:
        if self._offset == 1:
            # A reduce-scatter's sends all carry a share of the finished chunk. Whoever writes the chunk
            # later has it from its owner, to whom all of them had arrived by then.
            return constant(NEVER, len(rank))
        return self._step_of_round(rank, chunk, self._offset)

    def _step_of_round(self, rank: Ints, chunk: Ints, offset: int) -> Ints:
        """The step of the round in which the chunk lies `offset + round` places behind the rank."""
        owner, piece = chunk // self._pieces, chunk % self._pieces
        round_ = (self._direction * (rank - owner) - offset) % self._num_ranks
        return np.where(round_ < self._num_ranks - 1, round_ * self._pieces + piece, NEVER)
