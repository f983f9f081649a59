"""Fixtures of the simulator's tests."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from ringsim.calibration.log_parameters import LogParameters


def _draw_few(number: int = 3) -> Iterator[None]:
    with patch("ringsim.calibration.from_probes._RESAMPLED", number):
        yield


@pytest.fixture
def few_draws() -> Iterator[None]:
    """Let a bootstrap draw a few networks instead of hundreds; all else that is done with them is the same."""
    yield from _draw_few()


@pytest.fixture
def twenty_draws() -> Iterator[None]:
    """The same where the draws tell how far they lie apart."""
    yield from _draw_few(20)


@pytest.fixture(scope="module")
def few_draws_in_module() -> Iterator[None]:
    """The same, before the other fixtures of a file that are made once."""
    yield from _draw_few()


@pytest.fixture(scope="module")
def one_start() -> Iterator[None]:
    """Let fits to logs look for the likeliest parameters near the prior only, which takes a third of the time."""
    with patch.object(LogParameters, "starts", lambda _, prior: [prior]):
        yield
