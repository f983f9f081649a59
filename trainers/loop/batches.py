"""`Batches`: which training samples each rank sees in each step, whatever the number of ranks."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringsim.schedule import partition

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The samples of a batch that one rank computes a loss on.

    indices: never empty. weight: by which their mean loss is multiplied before the backward pass.
    """

    indices: Indices
    weight: float

    def split(self, parts: int) -> "list[Share]":
        """At most `parts` shares whose weighted losses add up to this one's, for accumulating gradients.

        Raises ValueError for less than one part.
        """
        if parts < 1:
            raise ValueError(f"parts {parts}: must be at least 1")
        count = len(self.indices)
        pieces = np.split(self.indices, partition(count, min(parts, count))[1:-1])
        return [Share(piece, self.weight * len(piece) / count) for piece in pieces]


class Batches:
    """The batches of a training run, and one rank's share of each.

    A batch follows from (seed, step) alone: n ranks together see the very batch that one process sees, so a run can
    go on with another number of ranks. Every epoch holds each sample exactly once, in its own order; its last
    batch is smaller if the batch size does not divide the number of samples.

    global_batch_size: samples of all ranks together.

    Raises ValueError for fewer samples than ranks, or a batch with fewer samples than ranks.
    """

    def __init__(self, num_samples: int, global_batch_size: int, seed: int, rank: int, num_ranks: int) -> None:
        if num_samples < num_ranks:
            raise ValueError(f"{num_samples} training samples: must be at least {num_ranks}, one for each rank")
        if global_batch_size < num_ranks:
            raise ValueError(
                f"a batch of {global_batch_size} samples in all: must be at least {num_ranks}, one for each rank; "
                f"give `batch_size`, which is per rank"
            )
        self.batches_per_epoch = -(-num_samples // global_batch_size)
        self.global_batch_size, self._num_samples, self._seed = global_batch_size, num_samples, seed
        self._rank, self._num_ranks = rank, num_ranks
        self._epoch = -1
        self._order: Indices = np.empty(0, dtype=np.int64)

    def share(self, step: int) -> Share:
        """Return the share of this rank in the batch of `step`, which counts from 0 through all epochs.

        The mean over all ranks of weight * (mean loss over own samples) is the mean loss of the batch. A rank for which
        the last batch of an epoch has no sample left gets one with weight 0: so all ranks call the same collectives,
        and no sample counts twice.
        """
        batch = self._batch(step)
        bounds = partition(len(batch), self._num_ranks)
        own = batch[bounds[self._rank] : bounds[self._rank + 1]]
        if len(own) == 0:
            return Share(batch[:1], 0.0)
        return Share(own, len(own) * self._num_ranks / len(batch))

    def num_samples(self, step: int) -> int:
        """Sample in the batch of `step`, of all ranks together."""
        before = step % self.batches_per_epoch * self.global_batch_size
        return min(self.global_batch_size, self._num_samples - before)

    def __str__(self) -> str:
        return describe_batch(self.global_batch_size, self._num_ranks)

    def _batch(self, step: int) -> Indices:
        epoch, place = divmod(step, self.batches_per_epoch)
        if epoch != self._epoch:
            # A spawn key: the seed by itself is the stream from which tasks draw their data.
            rng = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(epoch,)))
            self._order = rng.permutation(self._num_samples)
            self._epoch = epoch
        return self._order[place * self.global_batch_size : (place + 1) * self.global_batch_size]


def describe_batch(global_batch_size: int, num_ranks: int) -> str:
    """Return the size of a batch as it is printed: "batch 8 per rank, 32 in all".

    >>> describe_batch(32, 3)
    'batch 10 or 11 per rank, 32 in all'
    """
    least, rest = divmod(global_batch_size, num_ranks)
    return f"batch {least}{f' or {least + 1}' if rest else ''} per rank, {global_batch_size} in all"
