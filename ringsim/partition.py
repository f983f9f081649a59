"""How a tensor is cut into chunks: the one place where sizes meet a schedule."""

import numpy as np
import numpy.typing as npt


def partition(num_elements: int, num_chunks: int) -> npt.NDArray[np.int64]:
    """Bounds of the chunks: chunk `i` holds the elements `bounds[i]` to `bounds[i + 1]`.

    Shape (num_chunks + 1,). Chunk sizes differ by at most one element; with fewer elements than chunks
    some chunks are empty. Bound `i` is `i * num_elements // num_chunks`, so cutting each chunk into k more
    keeps every old bound: the share of a rank does not move when a schedule is pipelined.

    Raises ValueError for a negative number of elements, less than one chunk, or more than 64 bits can count.
    """
    if num_elements < 0:
        raise ValueError(f"num_elements {num_elements}: must not be negative")
    if num_chunks < 1:
        raise ValueError(f"num_chunks {num_chunks}: must be at least 1")
    if num_elements * num_chunks >= 2**63:
        raise ValueError(f"num_elements {num_elements} in {num_chunks} chunks: too many for 64-bit arithmetic")
    return np.arange(num_chunks + 1, dtype=np.int64) * num_elements // num_chunks
