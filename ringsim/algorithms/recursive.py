"""Recursive doubling and halving: exchanges with the ranks at distances 1, 2, 4, ... (`rank ^ distance`).

Recursive doubling exchanges the whole sum in each step. Recursive halving sends 1/2 of the data to the nearest rank,
then 1/4, ..., and scatters the sum; the same steps backwards gather it (Thakur et al. 2005).

If n is not a power of two, p is the largest power of two below it, and the first 2(n - p) ranks fold in pairs: the
second rank gives its data to the first, and receives its result at the end.
"""

from collections.abc import Iterable
from itertools import chain

import numpy as np
import numpy.typing as npt

from ringsim.limits import require_memory
from ringsim.schedule import BYTES_LISTED, Collective, Columns, Ints, Schedule, on_groups, then


def recursive_doubling_all_reduce(num_ranks: int) -> Schedule:
    """Exchange whole sums over distances 1, 2, 4 and so on: log2(n) steps of all the data; 2 more if folded."""
    fold = _Fold(num_ranks)
    rank = np.arange(fold.num_left)
    steps: list[Columns] = [(rank, rank ^ distance, 0, True) for distance in _powers_below(fold.num_left)]
    return fold.around(Collective.ALL_REDUCE, "recursive_doubling", 1, steps, 0, 0)


def halving_doubling_all_reduce(num_ranks: int) -> Schedule:
    """Recursive halving (reduce-scatter), then doubling: 2 log2(n) steps, 2(n - 1)/n of the data sent.

    If folded, 2 steps more; the first rank of each pair sends 1 + 2(p - 1)/p of the data.
    """
    fold = _Fold(num_ranks)
    bounds = np.arange(fold.num_left + 1)
    steps = chain(_halving(bounds), _doubling(bounds))
    chunk = np.arange(fold.num_left)
    return fold.around(Collective.ALL_REDUCE, "halving_doubling", fold.num_left, steps, chunk, chunk)


def halving_doubling_reduce_scatter(num_ranks: int) -> Schedule:
    """Recursive halving: log2(n) steps; rank r ends with chunk r of n.

    If folded, 2 steps more; in the first the second rank of each pair sends all the data.
    """
    fold = _Fold(num_ranks)
    everything, own = np.arange(num_ranks), fold.folded[:, None]
    steps = _halving(fold.bounds)
    return fold.around(Collective.REDUCE_SCATTER, "halving_doubling", num_ranks, steps, everything, own)


def halving_doubling_all_gather(num_ranks: int) -> Schedule:
    """Recursive doubling, the second half of halving_doubling's all_reduce."""
    return _doubling_all_gather(num_ranks, "halving_doubling")


def recursive_doubling_all_gather(num_ranks: int) -> Schedule:
    """Exchange all data so far over the distances 1, 2, 4 and so on: log2(n) steps.

    If folded, 2 steps more; in the last the first rank of each pair sends all the data.
    """
    return _doubling_all_gather(num_ranks, "recursive_doubling")


def _doubling_all_gather(num_ranks: int, algorithm: str) -> Schedule:
    fold = _Fold(num_ranks)
    own = fold.folded[:, None]
    require_memory(f"the other chunks of {len(own):,} folded ranks", 3 * 8 * len(own) * num_ranks)
    others = np.arange(num_ranks - 1)
    others = others + (others >= own)
    return fold.around(Collective.ALL_GATHER, algorithm, num_ranks, _doubling(fold.bounds), own, others)


def _halving(bounds: Ints) -> Iterable[Columns]:
    """Send each partner the chunks of its side; chunks `bounds[i]` to `bounds[i + 1]` belong to rank i.

    A rank is on the partner's side if it has its lowest bits, up to the bit in which the two differ.
    """
    rank = np.arange(len(bounds) - 1)
    for distance in _powers_below(len(rank)):
        yield _exchange(rank, rank ^ distance, bounds, rank ^ distance, distance, reduce=True)


def _doubling(bounds: Ints) -> Iterable[Columns]:
    """Send each partner the chunks of the sender's side: `_halving` backwards."""
    rank = np.arange(len(bounds) - 1)
    for distance in reversed(_powers_below(len(rank))):
        yield _exchange(rank, rank ^ distance, bounds, rank, distance, reduce=False)


def _exchange(src: Ints, dst: Ints, bounds: Ints, side: Ints, distance: int, *, reduce: bool) -> Columns:
    owner = side[:, None] % (2 * distance) + np.arange(0, len(src), 2 * distance)
    first, count = bounds[owner].ravel(), (bounds[owner + 1] - bounds[owner]).ravel()
    start_row = np.cumsum(count) - count
    chunk = np.arange(count.sum()) + np.repeat(first - start_row, count)
    messages = np.add.reduceat(count, np.arange(0, len(count), owner.shape[1]))
    return np.repeat(src, messages), np.repeat(dst, messages), chunk, reduce


def _powers_below(limit: int) -> list[int]:
    return [1 << bit for bit in range(limit.bit_length()) if 1 << bit < limit]


class _Fold:
    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.num_left = 1 << (num_ranks.bit_length() - 1)
        self.folded = 2 * np.arange(num_ranks - self.num_left) + 1  # each stood for by the rank before it
        self.left = np.delete(np.arange(num_ranks), self.folded)
        # If each rank has a chunk, the chunks of a remaining rank begin with its own.
        self.bounds = np.append(self.left, num_ranks)

    def around(
        self,
        collective: Collective,
        algorithm: str,
        num_chunks: int,
        steps: Iterable[Columns],
        chunk_in: npt.ArrayLike,
        chunk_out: npt.ArrayLike,
    ) -> Schedule:
        """Return `steps` of the remaining ranks (renumbered), between the exchanges with the folded ranks.

        chunk_in, chunk_out: the chunks that each folded rank gives and receives, (num_folded or 1, any number).
        """
        # Nearly every rank sends nearly every chunk. Check the memory here, since the steps take long to make.
        purpose = f"{algorithm} of {self.num_ranks:,} ranks in {num_chunks:,} chunks"
        require_memory(purpose, self.num_left * num_chunks * BYTES_LISTED)
        core = Schedule.from_columns(collective, algorithm, self.num_left, num_chunks, steps)
        if not len(self.folded):
            return core
        second = self.folded[:, None]
        shape = (collective, algorithm, self.num_ranks, num_chunks)
        inwards = Schedule.from_columns(*shape, [(second, second - 1, chunk_in, collective.reduces)])
        outwards = Schedule.from_columns(*shape, [(second - 1, second, chunk_out, False)])
        middle = on_groups(core, [self.left], self.num_ranks, num_chunks, collective)
        return then(then(inwards, middle, collective, algorithm), outwards, collective, algorithm)
