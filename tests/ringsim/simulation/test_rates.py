"""Rates of shared resources: max-min fair, corrected while work comes and goes, and the virtual time that follows."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringsim import algorithm, load_network, simulate
from ringsim.simulation import rates
from ringsim.simulation.rates import Activities, Levels, fair_rates
from tests.ringsim.plain_sharing import Work, columns_of, filled_one_at_a_time
from tests.ringsim.topologies import resources

INF = math.inf


def rates_of(works: list[Work], capacity: list[float]) -> list[float]:
    """`fair_rates` of these activities."""
    return list(fair_rates(*columns_of(works, capacity)).tolist())


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Work], list[float]]:
    """Few resources and numbers, so that levels often coincide."""
    capacity = draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, 7.0, 1e9, INF]), min_size=1, max_size=5))
    uses = st.dictionaries(st.integers(0, len(capacity) - 1), st.sampled_from([0.5, 1.0, 2.0, 3.0]))
    most = st.sampled_from([0.5, 1.0, 2.5, 1e6, 1e30])
    return draw(st.lists(st.builds(Work, uses, most), max_size=9)), capacity


# Each flow is freed by the one before: as many rounds as links, and sums of very different sizes.
LINE = [Work({k: 1.0, k + 1: 1.0}, 1e30) for k in range(100)], [1.0 + 1.5**k for k in range(101)]


@given(networks())
@example(LINE)
@example(([Work({0: 1, 1: 3}, 1e30), Work({1: 1, 2: 1}, 1e30), Work({2: 3}, 1e30)], [0.1, 0.7, 1.1]))
def test_filling_one_resource_at_a_time_gives_the_same(network: tuple[list[Work], list[float]]) -> None:
    """Another algorithm, in plain Python."""
    assert rates_of(*network) == pytest.approx(filled_one_at_a_time(*network), rel=1e-9)


@pytest.mark.timeout(60)
def test_what_is_no_number_has_no_rate() -> None:
    """Nothing is equal to NaN, so that no rate would ever be fixed."""
    told = "activity 0: its rate is at most nan.* must be numbers, and not negative"
    for most, capacity in ((math.nan, 1.0), (1.0, math.nan)):
        with pytest.raises(ValueError, match=told):
            rates_of([Work({0: 1.0}, most), Work({0: 1.0}, 1.0)], [capacity])


Change = tuple[set[int], set[int]]  # the slots whose work ends, and those in which work begins
ALWAYS_IN_ARRAYS, NEVER_IN_ARRAYS = -1, 10**6  # for FEW_CHANGES


@st.composite
def chained_networks(draw: st.DrawFn) -> tuple[list[Work], list[float]]:
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
@given(network=chained_networks(), draw=st.data())
def test_kept_rates_are_right(few_changes: int, network: tuple[list[Work], list[float]], draw: st.DataObject) -> None:
    """Whether levels are corrected or computed in arrays, after every change, also after a failure."""
    resource, use, most, capacity = columns_of(*network)
    fails_after = draw.draw(st.sampled_from([None, 2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rates, "FEW_CHANGES", few_changes)
        levels = Levels(resource, use, most, capacity.copy())
        now: dict[int, float] = {}
        for number, (left, joined) in enumerate(changes(draw, len(most))):
            if number == fails_after:
                levels.limit(np.array([0]), 0.0)
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


def activities(uses: Sequence[Mapping[int, float]], most: Sequence[float], capacity: Sequence[float],
               fails_at_s: Mapping[int, float] | None = None) -> Activities:  # fmt: skip
    """Slots with these uses, of resources with these capacities."""
    works = [Work(used, rate) for used, rate in zip(uses, most, strict=True)]
    fails = [(fails_at_s or {}).get(number, INF) for number in range(len(capacity))]
    return Activities(*columns_of(works, capacity)[:3], resources([float(limit) for limit in capacity], fails))


def begin(work: Activities, *rows: tuple[int, float, float, float]) -> None:
    """Slot, from when, lead, and amount of each."""
    slot, at_s, lead_s, amount = (np.array(column) for column in zip(*rows, strict=True))
    work.begin(slot, at_s, lead_s, amount.astype(np.float64))


def ends(work: Activities) -> list[tuple[int, float]]:
    """All slots that end, with their times, in the order in which they are told."""
    ended = []
    while True:
        slot, ends_s = work.next_ended()
        if not len(slot):
            return ended
        ended += list(zip(slot.tolist(), ends_s.tolist(), strict=True))


TWO = [{0: 1}, {0: 1}]
CHAIN = [{0: 1}, {0: 1, 1: 1}, {1: 1}]
ACTIVITIES_BY_HAND = {
    "one ends and the other speeds up": (TWO, [99, 99], [2], [(0, 0, 0, 3), (1, 0, 0, 9)], [(0, 3), (1, 6)]),
    "one begins and the other slows down": (TWO, [99, 99], [2], [(0, 0, 0, 5), (1, 1, 0, 4)], [(0, 4), (1, 4.5)]),
    "a lead takes nothing from others": (TWO, [99, 99], [2], [(0, 0, 0, 6), (1, 0, 2, 6)], [(0, 4), (1, 6)]),
    "what one may not take is left to others": (TWO, [1, 99], [5], [(0, 0, 0, 4), (1, 0, 0, 8)], [(1, 2), (0, 4)]),
    "no amount takes its lead alone": (TWO, [99, 99], [2], [(0, 1, 0.5, 0), (1, 0, 0, 6)], [(0, 1.5), (1, 3)]),
    "a change is felt through a neighbour": (
        CHAIN, [99] * 3, [2, 4], [(0, 0, 0, 1), (1, 0, 0, 7), (2, 0, 0, 9)], [(0, 1), (1, 4), (2, 4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ACTIVITIES_BY_HAND)
def test_activities_by_hand(case: str) -> None:
    """Such as: 2 a second between two: 3 each is done at 3 s; what is left of 9, 6, takes 3 s more at full speed."""
    uses, most, capacity, begun, expected = ACTIVITIES_BY_HAND[case]
    work = activities(uses, most, capacity)
    begin(work, *begun)
    assert ends(work) == expected


def test_moments_that_differ_by_rounding_are_one() -> None:
    """And each keeps its own last bit."""
    work = activities([{0: 1}, {1: 1}], [99, 99], [1, 1])
    begin(work, (0, 0.1 + 0.2, 0, 1), (1, 0.3, 0, 1))
    slot, ends_s = work.next_ended()
    assert (slot.tolist(), ends_s.tolist()) == ([0, 1], [0.1 + 0.2 + 1, 1.3])


def test_what_ends_before_a_failure_is_as_without_it() -> None:
    """To the last bit; and who begins at that moment waits for ever."""
    with_and_without = []
    for fails in ({0: 1.5}, {}):
        work = activities([{0: 1}, {0: 3}, {1: 1}], [99] * 3, [3, 1], fails)
        begin(work, (0, 0.1, 0.2, 0.7), (1, 0.3, 0, 0.1), (2, 0, 0, 2))
        before = [(slot.tolist(), ends_s.tolist()) for slot, ends_s in (work.next_ended(), work.next_ended())]
        begin(work, (1, 1.5, 0, 0))
        with_and_without.append((before, ends(work)))
    (before, after), (same, without) = with_and_without
    assert before == same
    assert (after, without) == ([(2, 2)], [(1, 1.5), (2, 2)])


@pytest.mark.timeout(60)
def test_work_that_could_never_end_is_refused() -> None:
    """With a time that is NaN or negative the clock would be asked for the next moment for ever, and stand still."""
    work = activities([{0: 1}, {0: 1}], [1.0, 1.0], [1.0])
    message = "work in slot 0, on r0: begins at .* none of these may be negative or NaN"
    for row in ((0, math.nan, 0, 1), (0, -1.0, 0, 1), (0, 0, math.nan, 1), (0, 0, 0, math.nan)):
        with pytest.raises(ValueError, match=message):
            begin(work, row, (1, 0, 0, 1))
