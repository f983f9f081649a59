"""Functions for `Schedule.partition`, which cut a tensor into chunks."""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

PartitionFunction = Callable[[int, int], npt.NDArray[np.int64]]  # the type of the functions and of `UnevenShares`


def partition(num_elements: int, num_chunks: int) -> npt.NDArray[np.int64]:
    """Return the bounds of the chunks: chunk `i` holds the elements `bounds[i]` to `bounds[i + 1]`; (num_chunks + 1,).

    Bound `i` is `i * num_elements // num_chunks`: sizes differ by at most one element, and further cuts keep every
    bound.

    Raises ValueError for a negative number of elements, less than one chunk, or more elements than 64 bits can count.

        >>> from ringsim import partition
        >>> partition(10, 4)
        array([ 0,  2,  5,  7, 10])
    """
    if num_elements < 0:
        raise ValueError(f"num_elements {num_elements}: must not be negative")
    if num_chunks < 1:
        raise ValueError(f"num_chunks {num_chunks}: must be at least 1")
    if num_elements * num_chunks >= 2**63:
        raise ValueError(f"num_elements {num_elements} in {num_chunks} chunks: too many for 64-bit arithmetic")
    return np.arange(num_chunks + 1, dtype=np.int64) * num_elements // num_chunks


def gloo_partition(num_elements: int, num_chunks: int) -> npt.NDArray[np.int64]:
    """Return the bounds of Gloo's all_reduce: every chunk has `num_elements / num_chunks` elements, rounded up.

    The last chunks are shorter or empty. The chunk of an element determines the last bits of its sum. Raises ValueError
    as `partition` does.
    """
    length = -(-num_elements // num_chunks) if num_chunks > 0 else 0
    return np.minimum(partition(num_chunks * length, num_chunks), num_elements)


@dataclass(frozen=True, slots=True)
class UnevenShares:
    """Cut a tensor into shares of given lengths, and each share into equally many chunks, as `partition` does.

    lengths: in elements; a tensor of another length has shares in the same proportions. Raises ValueError when it is
    called with a number of chunks that is no multiple of the shares.

        >>> from ringsim import UnevenShares
        >>> UnevenShares((3, 0, 5))(8, 6)
        array([0, 1, 3, 3, 3, 5, 8])
    """

    lengths: tuple[int, ...]

    def __call__(self, num_elements: int, num_chunks: int) -> npt.NDArray[np.int64]:
        if num_chunks % len(self.lengths):
            raise ValueError(
                f"num_chunks {num_chunks}: must be a multiple of {len(self.lengths)}, the number of shares"
            )
        ends = np.cumsum(self.lengths, dtype=np.int64)
        # In Python's integers, since elements times elements need more than 64 bits.
        total = max(int(ends[-1]), 1)
        bounds = [0, *(num_elements * end // total for end in ends.tolist())]
        if ends[-1] == 0:
            bounds[-1] = num_elements
        per_share = num_chunks // len(self.lengths)
        cuts = [first + partition(last - first, per_share)[:-1] for first, last in pairwise(bounds)]
        return np.append(np.concatenate(cuts), num_elements)
