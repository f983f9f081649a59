"""Fixtures: three ranks with a group that is another one than the default one; a program to be recorded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ranks import RankPool


@pytest.fixture(scope="module")
def trio() -> Iterator[RankPool]:
    """Three ranks, all of which are in every case: it may make groups, and use the default one beside its own."""
    with RankPool(3) as pool:
        yield pool


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script that torchrun could start: the `PROGRAM` of the test's module."""
    path = tmp_path_factory.mktemp("program") / "train.py"
    path.write_text(request.module.PROGRAM)
    return path
