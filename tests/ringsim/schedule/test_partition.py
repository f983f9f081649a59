"""How a tensor is cut."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringsim.schedule import partition


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_chunks_cover_everything_and_differ_by_one(num_elements: int, num_chunks: int) -> None:
    """Chunks follow one another without a gap, and no two differ by more than one element."""
    bounds = partition(num_elements, num_chunks)
    sizes = np.diff(bounds)
    assert (bounds[0], bounds[-1], len(sizes)) == (0, num_elements, num_chunks)
    assert sizes.min() >= 0
    assert sizes.max() - sizes.min() <= 1


@given(st.integers(0, 10**6), st.integers(1, 50), st.integers(1, 8))
def test_cutting_finer_keeps_the_old_bounds(num_elements: int, num_chunks: int, segments: int) -> None:
    """Every chunk can be cut into k without moving the share of any rank."""
    coarse, fine = partition(num_elements, num_chunks), partition(num_elements, num_chunks * segments)
    assert (fine[::segments] == coarse).all()
