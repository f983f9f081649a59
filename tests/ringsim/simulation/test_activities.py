"""Work that shares resources in virtual time, worked out by hand."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from ringsim.network.topology import Resources
from ringsim.simulation.engines.rates import Activities

INF = math.inf


def activities(uses: Sequence[Mapping[int, float]], most: Sequence[float], capacity: Sequence[float],
               fails_at_s: Mapping[int, float] | None = None) -> Activities:  # fmt: skip
    """Slots with these uses, of resources with these capacities."""
    resource, use = np.zeros((3, len(uses)), dtype=np.int64), np.zeros((3, len(uses)))
    for slot, used in enumerate(uses):
        for row, (number, per_unit) in enumerate(used.items()):
            resource[row, slot], use[row, slot] = number, per_unit
    fails = np.full(len(capacity), INF)
    fails[list(fails_at_s or {})] = list((fails_at_s or {}).values())
    names = tuple(f"link{number}" for number in range(len(capacity)))
    resources = Resources(names, np.array(capacity, dtype=np.float64), fails)
    return Activities(resource, use, np.array(most, dtype=np.float64), resources)


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
BY_HAND = {
    "one ends and the other speeds up": (TWO, [99, 99], [2], [(0, 0, 0, 3), (1, 0, 0, 9)], [(0, 3), (1, 6)]),
    "one begins and the other slows down": (TWO, [99, 99], [2], [(0, 0, 0, 5), (1, 1, 0, 4)], [(0, 4), (1, 4.5)]),
    "a lead takes nothing from others": (TWO, [99, 99], [2], [(0, 0, 0, 6), (1, 0, 2, 6)], [(0, 4), (1, 6)]),
    "what one may not take is left to others": (TWO, [1, 99], [5], [(0, 0, 0, 4), (1, 0, 0, 8)], [(1, 2), (0, 4)]),
    "no amount takes its lead alone": (TWO, [99, 99], [2], [(0, 1, 0.5, 0), (1, 0, 0, 6)], [(0, 1.5), (1, 3)]),
    "a change is felt through a neighbour": (
        CHAIN, [99] * 3, [2, 4], [(0, 0, 0, 1), (1, 0, 0, 7), (2, 0, 0, 9)], [(0, 1), (1, 4), (2, 4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case: str) -> None:
    """Such as: 2 a second between two: 3 each is done at 3 s; what is left of 9, 6, takes 3 s more at full speed."""
    uses, most, capacity, begun, expected = BY_HAND[case]
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


@pytest.mark.parametrize("row", [(0, math.nan, 0, 1), (0, -1.0, 0, 1), (0, 0, math.nan, 1), (0, 0, 0, math.nan)])
@pytest.mark.timeout(60)
def test_work_that_could_never_end_is_refused(row: tuple[int, float, float, float]) -> None:
    """With a time that is NaN or negative the clock would be asked for the next moment for ever."""
    work = activities([{0: 1}, {0: 1}], [1.0, 1.0], [1.0])
    with pytest.raises(
        ValueError, match=r"work in slot 0, on link0: begins at .* none of these may be negative or NaN"
    ):
        begin(work, row, (1, 0, 0, 1))


@pytest.mark.timeout(60)
def test_a_clock_that_stands_still_is_noticed() -> None:
    """Whatever made the times so; the message names what does not go on."""
    work = activities([{0: 1}, {0: 1}], [1.0, 1.0], [1.0])
    begin(work, (0, 0, 0, 1), (1, 0, 0, 2))
    work._joins_s[1] = math.nan
    with pytest.raises(ValueError, match=r"work in slot 1, on link0: begins at nan s: the clock is at 0.0 s already"):
        ends(work)
