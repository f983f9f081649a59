"""`Batches`: the samples of each batch, shuffled anew in each epoch, and each rank's share of them; loads no torch."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringsim.schedule import partition

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The samples of a batch for which one rank computes a loss; never empty.

    weight: factor of their mean loss.
    """

    indices: Indices
    weight: float

    def split(self, parts: int) -> "list[Share]":
        """Split into at most `parts` shares with the same total weighted loss. Raises ValueError below 1."""
        if parts < 1:
            raise ValueError(f"parts {parts}: must be at least 1")
        count = len(self.indices)
        pieces = np.split(self.indices, partition(count, min(parts, count))[1:-1])
        return [Share(piece, self.weight * len(piece) / count) for piece in pieces]


class Batches:
    """The batches of a training run, and one rank's share of each.

    A batch depends only on seed and step, so that a run can resume with another number of ranks. An epoch has each
    sample once; its last batch may be smaller. Raises ValueError for fewer samples than ranks, in all or in a batch.
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
        """Return this rank's share of the batch of `step`, counted from 0 through all epochs.

        The mean over all ranks of weight * (mean loss over own samples) is the batch's mean loss. A rank without
        samples gets one of weight 0, so that all ranks call the same collectives.
        """
        batch = self._batch(step)
        bounds = partition(len(batch), self._num_ranks)
        own = batch[bounds[self._rank] : bounds[self._rank + 1]]
        if len(own) == 0:
            return Share(batch[:1], 0.0)
        return Share(own, len(own) * self._num_ranks / len(batch))

    def num_samples(self, step: int) -> int:
        """Return the samples of all ranks in the batch of `step`."""
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
    """Return the printed size of a batch: "batch 8 per rank, 32 in all"."""
    least, rest = divmod(global_batch_size, num_ranks)
    return f"batch {least}{f' or {least + 1}' if rest else ''} per rank, {global_batch_size} in all"
