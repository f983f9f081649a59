"""`Collective`: the contract of a schedule, as contribution counts.

A set of contributors could not show a contribution that was added twice.
"""

from enum import Enum
from functools import cached_property
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ringsim.files import quoted
from ringsim.suggestions import suggestion

Counts = npt.NDArray[np.int32]


class Collective(Enum):
    """The collectives, named as in torch.distributed; the root is always rank 0."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"

    __hash__ = object.__hash__  # that of Enum is written in Python, and each call of a collective looks up several

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        names = [collective.value for collective in cls]
        meant = suggestion(value, names) if isinstance(value, str) else ""
        raise ValueError(f"collective {quoted(value)}: must be one of {', '.join(names)}{meant}")

    @cached_property
    def reduces(self) -> bool:
        return self in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)

    @cached_property
    def has_root(self) -> bool:
        return _ROOT in _PLACES[self]

    @cached_property
    def is_whole(self) -> bool:
        """Whether every rank holds all chunks, at the start or at the end.

        Otherwise an executor needs memory only for own and forwarded chunks.
        """
        return _EVERYWHERE in _PLACES[self]

    def num_shares(self, num_ranks: int) -> int:
        """Return the number of shares of the data (see `owners`); 1 if it is not cut."""
        if self is Collective.ALL_TO_ALL:
            return num_ranks**2
        return num_ranks if _OWNER in _PLACES[self] else 1

    def num_tensors(self, num_ranks: int) -> int:
        """Return the number of tensors that the chunks make up: one over all ranks, or one per rank."""
        return num_ranks if self is Collective.ALL_TO_ALL else 1


# The place of a chunk: every rank, the root, or the rank that owns its share. In an all_to_all every pair of ranks has
# a share, which is at the first or the second rank of the pair.
_EVERYWHERE, _ROOT, _OWNER, _SENDER, _RECEIVER = "everywhere", "root", "owner", "sender", "receiver"
_PLACES = {  # at the start, and at the end
    Collective.ALL_REDUCE: (_EVERYWHERE, _EVERYWHERE),
    Collective.REDUCE_SCATTER: (_EVERYWHERE, _OWNER),
    Collective.ALL_GATHER: (_OWNER, _EVERYWHERE),
    Collective.BROADCAST: (_ROOT, _EVERYWHERE),
    Collective.REDUCE: (_EVERYWHERE, _ROOT),
    Collective.GATHER: (_OWNER, _ROOT),
    Collective.SCATTER: (_ROOT, _OWNER),
    Collective.ALL_TO_ALL: (_SENDER, _RECEIVER),
}


def _held(place: str, num_ranks: int, num_chunks: int) -> npt.NDArray[np.bool_]:
    if place == _EVERYWHERE:
        return np.ones((num_ranks, num_chunks), dtype=np.bool_)
    if place == _ROOT:
        owner = np.zeros(num_chunks, np.int64)
    elif place == _OWNER:
        owner = owners(num_ranks, num_chunks)
    else:
        sender, receiver = np.divmod(owners(num_ranks**2, num_chunks), num_ranks)
        owner = sender if place == _SENDER else receiver
    return np.asarray(np.arange(num_ranks)[:, None] == owner)


def owners(num_shares: int, num_chunks: int) -> npt.NDArray[np.int64]:
    """Return the share to which each chunk belongs, (num_chunks,).

    Share r, the r-th run of `num_chunks / num_shares` chunks, belongs to rank r. In an all_to_all of n ranks, share `n
    * s + d` is the block of rank s for rank d.
    """
    return np.arange(num_chunks) * num_shares // num_chunks


def held_at_start(collective: Collective, num_ranks: int, num_chunks: int) -> npt.NDArray[np.bool_]:
    """Return which rank has its data in which chunk at the start, (rank, chunk)."""
    return _held(_PLACES[collective][0], num_ranks, num_chunks)


def held_at_end(collective: Collective, num_ranks: int, num_chunks: int) -> npt.NDArray[np.bool_]:
    """Return which rank must hold which chunk at the end, (rank, chunk)."""
    return _held(_PLACES[collective][1], num_ranks, num_chunks)


def initial_counts(collective: Collective, num_ranks: int, num_chunks: int) -> Counts:
    """Return the counts at the start, (rank, chunk, contributor); a rank without data has only zeros."""
    counts = np.zeros((num_ranks, num_chunks, num_ranks), dtype=np.int32)
    for rank, holds in enumerate(held_at_start(collective, num_ranks, num_chunks)):
        counts[rank, :, rank] = holds
    return counts


def required(collective: Collective, num_ranks: int, num_chunks: int) -> tuple[Counts, npt.NDArray[np.bool_]]:
    """Return the counts of finished chunks, (chunk, contributor), and which rank must hold which chunk, (rank, chunk).

    Other chunks may have any content.
    """
    counts = held_at_start(collective, num_ranks, num_chunks).T.astype(np.int32)
    return counts, held_at_end(collective, num_ranks, num_chunks)
