"""Tests of `ringsim.schedule.size`."""

from functools import partial

import pytest

from ringsim.registry.algorithms import ALGORITHMS, build
from ringsim.schedule.collective import Collective
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.size import estimated_transfers, format_count

ALL_REDUCE = [name for collective, name in ALGORITHMS if collective is Collective.ALL_REDUCE]


@pytest.mark.parametrize("algorithm", ALL_REDUCE)
def test_the_estimate_is_near(algorithm: str) -> None:
    """Within a tenth of what the built schedule has."""
    make = partial(build, Collective.ALL_REDUCE, algorithm)
    assert estimated_transfers(make, 512) == pytest.approx(make(512).num_transfers, rel=0.1)


def test_few_ranks_need_no_estimate() -> None:
    """Nothing is built to find out whether little may be built."""
    assert estimated_transfers(lambda _: pytest.fail("built"), 256) == 0


def test_what_cannot_be_probed_is_not_estimated() -> None:
    """An algorithm for one number of ranks only is left to be built."""

    def only_for_1000(num_ranks: int) -> Schedule:
        raise ValueError(f"num_ranks {num_ranks}: only for 1000")

    assert estimated_transfers(only_for_1000, 1000) == 0


@pytest.mark.parametrize(("count", "text"), [(128, "128"), (99_999, "99999"), (10**7, "1e7"), (16_773_120, "1.7e7")])
def test_counts_are_short(count: int, text: str) -> None:
    """Two digits are enough of a large count."""
    assert format_count(count) == text
