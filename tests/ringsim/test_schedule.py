"""Schedules written out, and the columns that are worked out for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import NEVER, Collective, Schedule, ScheduleError, Transfer, then
from tests.ringsim.strategies import schedules


def written_out(*steps: list[Transfer]) -> Schedule:
    """A schedule over three ranks and two chunks."""
    return Schedule.from_transfers(Collective.ALL_REDUCE, "mine", 3, 2, steps)


def test_columns_name_the_last_write_and_the_last_send() -> None:
    """`ready_after` is the write that a send needs, `free_after` the send that a write must let go first."""
    schedule = written_out(
        [Transfer(0, 1, 0, True), Transfer(1, 0, 0, True)],  # an exchange: each sends what it held before
        [Transfer(2, 0, 1, False)],
        [Transfer(0, 2, 0, False)],
        [Transfer(1, 0, 0, False)],
    )
    assert [step.ready_after.tolist() for step in schedule.steps] == [[NEVER, NEVER], [NEVER], [0], [0]]
    assert [step.free_after.tolist() for step in schedule.steps] == [[0, 0], [NEVER], [NEVER], [2]]
    assert schedule.steps.lookback == 3


@pytest.mark.parametrize(
    ("transfer", "message"),
    [
        (Transfer(3, 0, 0, True), "step 1: src 3 is not in 0..2"),
        (Transfer(0, -1, 0, True), "step 1: dst -1 is not in 0..2"),
        (Transfer(0, 1, 2, True), "step 1: chunk 2 is not in 0..1"),
        (Transfer(1, 1, 0, True), "step 1, rank 1: chunk 0 is sent to itself"),
    ],
)
def test_transfers_out_of_range_are_refused(transfer: Transfer, message: str) -> None:
    """The message names the step, the value and the range."""
    with pytest.raises(ScheduleError) as error:
        written_out([Transfer(0, 1, 0, True)], [transfer])
    assert str(error.value) == message


def test_steps_behave_as_a_sequence() -> None:
    """Indexing past the end fails and slices give steps, so that loops and `reversed` work."""
    schedule = written_out([Transfer(0, 1, 0, True)], [Transfer(1, 2, 1, False)])
    assert [list(step) for step in schedule.steps] == [[(0, 1, 0, True)], [(1, 2, 1, False)]]
    assert [list(step) for step in reversed(schedule.steps)] == [[(1, 2, 1, False)], [(0, 1, 0, True)]]
    assert len(schedule.steps[:1]) == 1
    with pytest.raises(IndexError, match="step 2 of 2"):
        schedule.steps[2]


@given(schedules(), st.integers(0, 6))
def test_then_is_the_same_as_writing_both_out(schedule: Schedule, cut: int) -> None:
    """Cutting a schedule in two and joining the parts with `then` changes no column."""
    rows = [list(step) for step in schedule.steps]
    shape = (Collective.ALL_REDUCE, "part", schedule.num_ranks, schedule.num_chunks)
    first, second = (Schedule.from_transfers(*shape, part) for part in (rows[:cut], rows[cut:]))
    joined = then(first, second, Collective.ALL_REDUCE, "joined")
    assert joined.steps.lookback == schedule.steps.lookback
    for a, b in zip(joined.steps, schedule.steps, strict=True):
        for name in ("src", "dst", "chunk", "reduce", "ready_after", "free_after"):
            assert getattr(a, name).tolist() == getattr(b, name).tolist(), name


def test_then_needs_the_same_chunks() -> None:
    """Two schedules that cut the tensor differently cannot follow one another."""
    with pytest.raises(ScheduleError, match="has 2 chunks, .* has 3; both must agree"):
        then(
            written_out(),
            Schedule.from_transfers(Collective.ALL_REDUCE, "other", 3, 3, []),
            Collective.ALL_REDUCE,
            "both",
        )
