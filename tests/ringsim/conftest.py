"""Fixtures of the simulator's tests."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest


@pytest.fixture(scope="module")
def few_draws() -> Iterator[None]:
    """Let a bootstrap draw a few networks instead of hundreds; all else that is done with them is the same."""
    with patch("ringsim.calibration.from_probes._RESAMPLED", 3):
        yield
