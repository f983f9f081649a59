"""Max-min fair rates: solved by hand, held against filling one resource at a time, and the property itself."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringsim.simulation.engines.rates import fair_rates
from tests.ringsim.plain_sharing import Work, columns_of, filled_one_at_a_time

INF = math.inf


def rates_of(works: list[Work], capacity: list[float]) -> list[float]:
    """`fair_rates` of these activities."""
    return list(fair_rates(*columns_of(works, capacity)).tolist())


@pytest.mark.parametrize(
    ("works", "capacity", "expected"),
    [
        pytest.param([Work({0: 1}, 99)] * 3, [6.0], [2, 2, 2], id="one bottleneck"),
        pytest.param([Work({0: 1, 1: 1, 2: 1}, 99), *(Work({i: 1}, 99) for i in range(3))], [2, 4, 8],
                     [1, 1, 3, 7], id="a line of three links and one long flow"),
        pytest.param([Work({0: 1}, 1), Work({0: 1}, 99), Work({0: 1}, 99)], [7.0], [1, 3, 3], id="one is held back"),
        pytest.param([Work({0: 1}, 1), Work({0: 1}, 2)], [7.0], [1, 2], id="all are held back"),
        pytest.param([Work({0: 2}, 99), Work({0: 1}, 99)], [6.0], [2, 2], id="equal rates, unequal use"),
        pytest.param([Work({0: 2, 1: 1}, 99), Work({1: 1}, 99)], [6.0, 9.0], [3, 6], id="use decides what is full"),
        pytest.param([Work({0: 1}, 5), Work({}, 5)], [2.0], [2, 5], id="nothing shared"),
        pytest.param([Work({0: 1}, 5), Work({0: 1, 1: 1}, 5), Work({1: 1}, 5)], [0.0, 4.0], [0, 0, 4],
                     id="a failed link"),
        pytest.param([Work({0: 1}, 99), Work({0: 1, 1: 1}, 99), Work({1: 1, 2: 1}, 99), Work({2: 1}, 99)],
                     [2.0, 4.0, 9.0], [1, 1, 3, 6], id="a bottleneck that the one before it makes"),
        pytest.param([Work({0: 1}, 3)], [INF], [3], id="a resource without limit"),
        pytest.param([], [1.0], [], id="nobody"),
    ],
)  # fmt: skip
def test_by_hand(works: list[Work], capacity: list[float], expected: list[float]) -> None:
    """Small enough to be solved on paper."""
    assert rates_of(works, capacity) == expected
    assert filled_one_at_a_time(works, capacity) == expected


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Work], list[float]]:
    """Few resources and numbers, so that levels often coincide."""
    capacity = draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, 7.0, 1e9, INF]), min_size=1, max_size=5))
    uses = st.dictionaries(st.integers(0, len(capacity) - 1), st.sampled_from([0.5, 1.0, 2.0, 3.0]))
    most = st.sampled_from([0.5, 1.0, 2.5, 1e6, 1e30])
    return draw(st.lists(st.builds(Work, uses, most), max_size=9)), capacity


@given(networks())
@example(([Work({0: 1, 1: 3}, 1e30), Work({1: 1, 2: 1}, 1e30), Work({2: 3}, 1e30)], [0.1, 0.7, 1.1]))
def test_filling_one_resource_at_a_time_gives_the_same(network: tuple[list[Work], list[float]]) -> None:
    """Another algorithm, in plain Python."""
    assert rates_of(*network) == pytest.approx(filled_one_at_a_time(*network), rel=1e-9)


@given(networks())
def test_nobody_can_have_more_but_at_the_expense_of_one_with_no_more(network: tuple[list[Work], list[float]]) -> None:
    """No resource gives more than it has; who is not at its own limit is among the fastest on one that is full."""
    works, capacity = network
    rates = rates_of(works, capacity)
    used = [sum(r * work.uses.get(k, 0) for r, work in zip(rates, works, strict=True)) for k in range(len(capacity))]
    assert all(total <= limit * (1 + 1e-12) for total, limit in zip(used, capacity, strict=True))
    for rate, work in zip(rates, works, strict=True):
        full = [k for k in work.uses if used[k] >= capacity[k] * (1 - 1e-12)]
        fastest = [max(r for r, other in zip(rates, works, strict=True) if k in other.uses) for k in full]
        assert rate == work.most or any(rate >= other * (1 - 1e-12) for other in fastest)


def test_many_links_in_a_line() -> None:
    """Each flow is freed by the one before: as many rounds as links, and sums of very different sizes."""
    num_links = 200
    works = [Work({link: 1.0, link + 1: 1.0}, 1e30) for link in range(num_links)]
    capacity = [1.0 + 1.5**link for link in range(num_links + 1)]
    assert rates_of(works, capacity) == pytest.approx(filled_one_at_a_time(works, capacity), rel=1e-9)


@pytest.mark.parametrize(("work", "capacity"), [(Work({0: 1.0}, math.nan), 1.0), (Work({0: 1.0}, 1.0), math.nan)])
@pytest.mark.timeout(60)
def test_what_is_no_number_has_no_rate(work: Work, capacity: float) -> None:
    """Nothing is equal to NaN, so that no rate would ever be fixed."""
    with pytest.raises(ValueError, match=r"activity 0: its rate is at most nan.* must be numbers, and not negative"):
        rates_of([work, Work({0: 1.0}, 1.0)], [capacity])
