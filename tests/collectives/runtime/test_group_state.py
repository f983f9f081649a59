"""The state of a group: one object of each kind, as long as the group is there."""

import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from collectives.runtime import group_state
from collectives.runtime.group_state import state_of


class Group:
    """Anything that can be referred to weakly."""


class Counted:
    """A part that knows how many have been made."""

    made = 0

    def __init__(self, group: Group) -> None:
        assert isinstance(group, Group)
        Counted.made += 1


class Nested:
    """A part that asks for another one when it is made."""

    def __init__(self, group: Any) -> None:
        self.counted = state_of(group).part(Counted)


def test_each_part_is_made_once() -> None:
    """When it is first asked for, also by another part; one that is taken out is made anew."""
    group: Any = Group()
    state = state_of(group)
    assert state is state_of(group)
    before = Counted.made
    nested = state.part(Nested)
    assert Counted.made == before + 1
    assert state.part(Nested) is nested
    assert state.part(Counted) is nested.counted
    assert state_of(Group()).part(Counted) is not nested.counted  # type: ignore[arg-type]
    assert state.pop(Nested) is nested
    assert state.pop(Nested) is None
    assert state.part(Nested) is not nested


def test_threads_that_ask_at_once_get_the_same() -> None:
    """Each of many has waited for the others."""
    group: Any = Group()
    before, start = Counted.made, Barrier(8)

    def ask(_: int) -> Counted:
        start.wait()
        return state_of(group).part(Counted)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(ask, range(8))))) == 1
    assert Counted.made == before + 1


def test_it_goes_with_the_group() -> None:
    """Whoever still holds the state keeps what it has, but gets nothing new."""
    group: Any = Group()
    state = state_of(group)
    gc.collect()  # what earlier tests have left
    before = len(group_state._STATES)
    counted = state.part(Counted)
    del group
    gc.collect()
    assert len(group_state._STATES) == before - 1
    assert state.part(Counted) is counted
    with pytest.raises(ValueError, match="the process group has been destroyed"):
        state.part(Nested)
