"""Fixtures: a process that has loaded torch and starts the command."""

from collections.abc import Iterator

import pytest

from tests.fuzz.launcher import Launcher


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Starts the command `trainers` in a fork of itself, one at a time."""
    launcher = Launcher()
    yield launcher
    launcher.close()
