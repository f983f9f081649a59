"""Rates that are kept while work comes and goes, held against `fair_rates` of all that is at work."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringsim import load_network, simulate
from ringsim.registry import algorithm
from ringsim.simulation.engines import current_rates, local_rates
from ringsim.simulation.engines.current_rates import CurrentRates
from ringsim.simulation.engines.fair_share import fair_rates
from ringsim.simulation.engines.refilling import added
from ringsim.simulation.engines.shared_work import SharedWork
from tests.ringsim.plain_sharing import Work, columns_of

Change = tuple[set[int], set[int]]  # the slots whose work ends, and those in which work begins
WHOLLY_IN_ARRAYS = {"FEW_SLOTS": -1}
NEVER_IN_ARRAYS = {"FEW_SLOTS": 10**6, "FEW_RESOURCES": 10**6, "VISITS_AT_LEAST": 10**6}
GIVES_UP = {"FEW_SLOTS": 10**6, "VISITS_AT_LEAST": -8}


def shared(works: list[Work], capacity: list[float]) -> SharedWork:
    """Before any of this work has begun."""
    return SharedWork.none(*columns_of(works, capacity))


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


def told(rates: CurrentRates, left: set[int], joined: set[int]) -> dict[int, float]:
    """By slot, what one update says."""
    rates.leave(np.array(sorted(left), dtype=np.int64))
    rates.join(np.array(sorted(joined), dtype=np.int64))
    news: dict[int, float] = {}
    for new in rates.update():
        pairs = new.items() if isinstance(new, dict) else zip(new[0].tolist(), new[1].tolist(), strict=True)
        for slot, rate in pairs:
            assert news.get(slot, rate) == rate, "one rate, since with each new one what was done is accounted for"
            news[slot] = rate
    return news


@pytest.mark.parametrize("way", [{}, WHOLLY_IN_ARRAYS, NEVER_IN_ARRAYS, GIVES_UP], ids=["both", "all", "few", "vain"])
@given(network=networks(), draw=st.data())
@settings(max_examples=150)
def test_kept_rates_are_those_of_all_that_is_at_work(
    way: dict[str, int], network: tuple[list[Work], list[float]], draw: st.DataObject
) -> None:
    """To the last bit, computed slot by slot or in arrays, after every change, also after a failure."""
    work = shared(*network)
    fails_after = draw.draw(st.sampled_from([None, 2]))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in way.items():
            patch.setattr(local_rates, name, value)
        capacity = work.capacity.copy()
        rates = CurrentRates(work.resource, work.use, work.most, work.capacity)
        now: dict[int, float] = {}
        for number, (left, joined) in enumerate(changes(draw, len(work.most))):
            if number == fails_after:
                rates.fail(np.array([0]))
                capacity[0] = 0.0
            news = told(rates, left, joined)
            assert joined <= set(news)
            now = {slot: rate for slot, rate in now.items() if slot not in left} | news
            slot = np.array(sorted(now), dtype=np.int64)
            expected = fair_rates(work.resource[:, slot], work.use[:, slot], work.most[slot], capacity)
            assert dict(zip(slot.tolist(), expected.tolist(), strict=True)) == now


@pytest.mark.parametrize("few_slots", [local_rates.FEW_SLOTS, WHOLLY_IN_ARRAYS["FEW_SLOTS"]])
@pytest.mark.parametrize("max_hops", [1, current_rates.MAX_HOPS, 100])
def test_far_neighbours_feel_a_change(few_slots: int, max_hops: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of links: when the work on the first ends, every second flow speeds up, and the others slow down.

    Also where what is connected is further away than it is looked for.
    """
    monkeypatch.setattr(local_rates, "FEW_SLOTS", few_slots)
    monkeypatch.setattr(current_rates, "MAX_HOPS", max_hops)
    works = [Work({link: 1.0, link + 1: 1.0}, 1e30) for link in range(6)] + [Work({0: 1.0}, 1e30)]
    work = shared(works, [1.0, 2.5, 4.0, 6.0, 9.0, 12.0, 99.0])
    rates = CurrentRates(work.resource, work.use, work.most, work.capacity)
    before = told(rates, set(), set(range(7)))
    after = told(rates, {6}, set())
    assert [before[slot] for slot in range(6)] == [0.5, 2.0, 2.0, 4.0, 5.0, 7.0]
    assert [after[slot] for slot in range(6)] == [1.0, 1.5, 2.5, 3.5, 5.5, 6.5]


def test_work_that_follows_work_changes_nothing() -> None:
    """The new work in the slot has the rate of the one before; no other rate is told, nor computed."""
    work = shared([Work({0: 1.0}, 1e30)] * 3, [6.0])
    rates = CurrentRates(work.resource, work.use, work.most, work.capacity)
    assert told(rates, set(), {0, 1, 2}) == dict.fromkeys(range(3), 2.0)
    assert told(rates, {1}, {1}) == {1: 2.0}


def test_a_change_is_computed_near_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double tree on shared NICs: nearly all that is at work is connected, but few updates compute all rates.

    When every update did, 525,000 rates were computed for these 6,048 transfers.
    """
    computed = []
    of_all = current_rates.fair_rates_by_round

    def counted(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        computed.append(len(columns[2]))
        return of_all(*columns)

    monkeypatch.setattr(current_rates, "fair_rates_by_round", counted)
    timeline = simulate(algorithm("double_binary_tree", 64), load_network("ib-400g"), 2**26)
    assert 0 < sum(computed) < 5 * len(timeline)


def test_sums_are_those_of_numpy() -> None:
    """From left to right: Python's own sum is more exact from 3.12 on, and gives another last bit here."""
    numbers = [0.1] * 10
    assert added(numbers) == np.bincount([0] * 10, weights=numbers)[0] != math.fsum(numbers)
