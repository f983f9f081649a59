"""Fixtures: a process that has loaded torch and starts the command; and runs of a small task."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.launcher import Launcher
from tests.ranks import RankPool
from tests.trainers.points import Training


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Starts the command `trainers` in a fork of itself, one at a time."""
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture
def train(ranks: RankPool, tmp_path: Path) -> Training:
    """Trains a small task on two ranks of the pool, in `tmp_path / "run"`."""
    return Training(ranks, tmp_path)
