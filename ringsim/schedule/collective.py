"""`Collective`: the contract that a schedule must keep, as contribution counts.

What a rank holds of a chunk is described by one count per rank: how often that rank's original data is in
it. Counts, not sets: a set cannot see that a contribution was added twice.
"""

from enum import Enum
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ringsim.files import quoted
from ringsim.suggestions import suggestion

Counts = npt.NDArray[np.int32]


class Collective(Enum):
    """The operations, named as in torch.distributed; the root of a rooted one is rank 0."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    REDUCE = "reduce"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        names = [collective.value for collective in cls]
        meant = suggestion(value, names) if isinstance(value, str) else ""
        raise ValueError(f"collective {quoted(value)}: must be one of {', '.join(names)}{meant}")

    @property
    def reduces(self) -> bool:
        """Whether the result sums contributions of several ranks."""
        return self in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)


OWNED = (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)  # here each chunk belongs to one rank, see `owners`


def owners(num_ranks: int, num_chunks: int) -> npt.NDArray[np.int64]:
    """Return the rank that each chunk belongs to in reduce_scatter and all_gather, shape (num_chunks,).

    Rank r owns the r-th run of `num_chunks / num_ranks` neighbouring chunks, which is the r-th equal
    share of the elements (see `partition`).
    """
    return np.arange(num_chunks) * num_ranks // num_chunks


def held_at_start(collective: Collective, num_ranks: int, num_chunks: int) -> npt.NDArray[np.bool_]:
    """Return which rank has data of its own in which chunk before the first step, shape (rank, chunk)."""
    if collective.reduces:
        return np.ones((num_ranks, num_chunks), dtype=np.bool_)
    owner = owners(num_ranks, num_chunks) if collective is Collective.ALL_GATHER else np.zeros(num_chunks, np.int64)
    holds: npt.NDArray[np.bool_] = np.arange(num_ranks)[:, None] == owner
    return holds


def initial_counts(collective: Collective, num_ranks: int, num_chunks: int) -> Counts:
    """Return the counts that ranks begin with, shape (rank, chunk, contributor); all zero means that it has no data."""
    counts = np.zeros((num_ranks, num_chunks, num_ranks), dtype=np.int32)
    for rank, holds in enumerate(held_at_start(collective, num_ranks, num_chunks)):
        counts[rank, :, rank] = holds
    return counts


def required(collective: Collective, num_ranks: int, num_chunks: int) -> tuple[Counts, npt.NDArray[np.bool_]]:
    """Return what each rank must hold at the end.

    The counts of each finished chunk, shape (chunk, contributor), and which rank must hold which chunk, shape (rank,
    chunk); what the others hold is not looked at.
    """
    # All contributions of a chunk are in it at the end, and it is where its mirror image begins; else everywhere.
    mirrored = {Collective.REDUCE_SCATTER: Collective.ALL_GATHER, Collective.REDUCE: Collective.BROADCAST}
    counts = held_at_start(collective, num_ranks, num_chunks).T.astype(np.int32)
    return counts, held_at_start(mirrored.get(collective, Collective.ALL_REDUCE), num_ranks, num_chunks)
