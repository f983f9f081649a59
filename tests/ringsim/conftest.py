"""Fixtures of the simulator's tests."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest


def _draw_few() -> Iterator[None]:
    with patch("ringsim.calibration.from_probes._RESAMPLED", 3):
        yield


@pytest.fixture
def few_draws() -> Iterator[None]:
    """Let a bootstrap draw a few networks instead of hundreds; all else that is done with them is the same."""
    yield from _draw_few()


@pytest.fixture(scope="module")
def few_draws_in_module() -> Iterator[None]:
    """The same, before the other fixtures of a file that are made once."""
    yield from _draw_few()
