"""Tests of `ringsim.measurements.collective_times`."""

import pytest

from ringsim.measurements.collective_times import p10_p90, p95


def test_p10_p90() -> None:
    """Of 0..10 a tenth lies up to 1 and a tenth from 9; a single time is both."""
    assert p10_p90([float(value) for value in range(11)]) == (1.0, 9.0)
    assert p10_p90([5.0]) == (5.0, 5.0)
    with pytest.raises(ValueError, match="at least one"):
        p10_p90([])


def test_p95_is_one_of_the_errors() -> None:
    """The smallest that 95 of 100 do not exceed; of few errors the largest."""
    assert p95(range(1, 101)) == 95
    assert p95([0.1, 0.3, 0.2]) == 0.3
    with pytest.raises(ValueError, match="at least one"):
        p95([])
