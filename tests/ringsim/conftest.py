"""Fixtures of the simulator's tests."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest


@pytest.fixture(scope="module", autouse=True)
def _few_draws() -> Iterator[None]:
    """Let a bootstrap draw 20 networks instead of 200; all else that is done with them is the same."""
    with patch("ringsim.calibration.from_probes._RESAMPLED", 20):
        yield
