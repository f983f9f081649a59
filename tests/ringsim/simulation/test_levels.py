"""Levels that are corrected while work comes and goes, held against `fair_rates` of all that is at work."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringsim import load_network, simulate
from ringsim.registry import algorithm
from ringsim.simulation.engines import rates
from ringsim.simulation.engines.rates import Levels, fair_rates
from tests.ringsim.plain_sharing import Work, columns_of

Change = tuple[set[int], set[int]]  # the slots whose work ends, and those in which work begins
ALWAYS_IN_ARRAYS, NEVER_IN_ARRAYS = -1, 10**6  # for FEW_CHANGES


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Work], list[float]]:
    """Links in chains and stars, so that a change is felt far away; few numbers, so that levels often coincide."""
    capacity = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 0.7, 1e9]), min_size=1, max_size=8))
    uses = st.dictionaries(st.integers(0, len(capacity) - 1), st.sampled_from([0.3, 1.0, 2.0]), max_size=3)
    most = st.sampled_from([0.5, 1.1, 1e30])
    return draw(st.lists(st.builds(Work, uses, most), min_size=1, max_size=14)), capacity


def changes(draw: st.DataObject, num_slots: int) -> Iterator[Change]:
    """Work that ends is at work; work begins where none is, or where it has just ended."""
    at_work: set[int] = set()
    for _ in range(draw.draw(st.integers(1, 8))):
        left = draw.draw(st.sets(st.sampled_from(sorted(at_work)))) if at_work else set()
        free = sorted(set(range(num_slots)) - at_work | left)
        joined = draw.draw(st.sets(st.sampled_from(free))) if free else set()
        at_work = (at_work - left) | joined
        yield left, joined


def updated(levels: Levels, left: set[int], joined: set[int]) -> dict[int, float]:
    """By slot, the rates that one update returns."""
    slot, rate = levels.update(np.array(sorted(left), dtype=np.int64), np.array(sorted(joined), dtype=np.int64))
    assert len(set(slot.tolist())) == len(slot), "one rate, since with each new one what was done is accounted for"
    return dict(zip(slot.tolist(), rate.tolist(), strict=True))


@pytest.mark.parametrize("few_changes", [rates.FEW_CHANGES, ALWAYS_IN_ARRAYS, NEVER_IN_ARRAYS])
@given(network=networks(), draw=st.data())
@settings(max_examples=150)
def test_kept_rates_are_those_of_all_that_is_at_work(
    few_changes: int, network: tuple[list[Work], list[float]], draw: st.DataObject
) -> None:
    """Whether levels are corrected or computed in arrays, after every change, also after a failure."""
    resource, use, most, capacity = columns_of(*network)
    fails_after = draw.draw(st.sampled_from([None, 2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rates, "FEW_CHANGES", few_changes)
        levels = Levels(resource, use, most, capacity.copy())
        now: dict[int, float] = {}
        for number, (left, joined) in enumerate(changes(draw, len(most))):
            if number == fails_after:
                levels.fail(np.array([0]))
                capacity[0] = 0.0
            news = updated(levels, left, joined)
            assert joined <= set(news)
            now = {slot: rate for slot, rate in now.items() if slot not in left} | news
            slot = np.array(sorted(now), dtype=np.int64)
            expected = fair_rates(resource[:, slot], use[:, slot], most[slot], capacity)
            np.testing.assert_allclose([now[number] for number in slot.tolist()], expected, rtol=1e-12)


def test_who_is_freed_by_two_resources_is_freed() -> None:
    """When the works beside it end, the level of neither resource may stay low because that of the other one is."""
    works = [Work({0: 1.0, 1: 1.0}, 1e30), Work({0: 1.0}, 1e30), Work({1: 1.0}, 1e30)]
    levels = Levels(*columns_of(works, [4.0, 4.0]))
    assert updated(levels, set(), {0, 1, 2}) == dict.fromkeys(range(3), 2.0)
    assert updated(levels, {1, 2}, set()) == {0: 4.0}


def test_small_uses_beside_large_ones_keep_their_digits() -> None:
    """Small uses share what the large ones leave, and their sum is not a difference of large sums."""
    levels = Levels(*columns_of([Work({0: 1.0}, 0.5), Work({0: 1e-9}, 1e30)], [1.0]))
    assert updated(levels, set(), {0, 1}) == {0: 0.5, 1: pytest.approx(0.5 / 1e-9, rel=1e-14)}


def test_a_change_is_computed_near_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double tree on shared NICs: nearly all that is at work is connected, but few updates compute all levels.

    When every update did, 525,000 rates were computed for these 6,048 transfers.
    """
    computed = []
    of_all = rates.fair_levels

    def counted(*columns: np.ndarray) -> np.ndarray:
        computed.append(len(columns[2]))
        return of_all(*columns)

    monkeypatch.setattr(rates, "fair_levels", counted)
    monkeypatch.setattr(rates, "FEW_CHANGES", 16)
    timeline = simulate(algorithm("double_binary_tree", 64), load_network("ib-400g"), 2**26)
    assert 0 < sum(computed) < 5 * len(timeline)
