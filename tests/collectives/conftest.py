"""Fixtures: three ranks with a group that is another one than the default one."""

from collections.abc import Iterator

import pytest

from tests.ranks import RankPool


@pytest.fixture(scope="module")
def trio() -> Iterator[RankPool]:
    """Three ranks, all of which are in every case: it may make groups, and use the default one beside its own."""
    with RankPool(3) as pool:
        yield pool
