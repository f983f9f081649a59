"""`Users`: the slots at work on each resource, as lists that are made when they are first needed."""

from bisect import insort
from typing import cast

import numpy as np

from ringsim.network import Floats
from ringsim.simulation.engines.fair_share import Ints
from ringsim.simulation.engines.shared_work import SharedWork

User = tuple[int, int, float]  # the place in the columns of `fair_rates`, which orders its sums; the slot; its use


class Users(dict[int, list[User]]):
    """By resource: the slots at work that use it, in the order of their places.

    used_by: by slot, the resources that it uses.
    """

    def __init__(self, work: SharedWork) -> None:
        super().__init__()
        self.used_by = _UsedBy(work.resource, unlimited=len(work.capacity) - 1)
        self._work, self._num_slots = work, len(work.most)
        self._entries = _Entries(work)
        self._by_resource: tuple[Ints, Ints] | None = None

    def __missing__(self, number: int) -> list[User]:
        order, first = self._places()
        place = order[first[number] : first[number + 1]]
        place = place[self._work.active[place % self._num_slots]]
        slot, use = place % self._num_slots, self._work.use.ravel()[place]
        self[number] = users = list(zip(place.tolist(), slot.tolist(), use.tolist(), strict=True))
        return users

    def _places(self) -> tuple[Ints, Ints]:
        """All places ordered by resource, and where those of each resource begin."""
        if self._by_resource is None:
            numbers = self._work.resource.ravel()
            order = np.argsort(numbers, kind="stable")
            self._by_resource = order, np.searchsorted(numbers[order], np.arange(len(self._work.capacity) + 1))
        return self._by_resource

    def join(self, slot: int) -> None:
        """Add a slot in which work has begun; `work` says already that it is active."""
        for number, user in self._entries[slot]:
            if number in self:
                insort(self[number], user)

    def leave(self, slot: int) -> None:
        """Take out a slot whose work is done."""
        for number, user in self._entries[slot]:
            if number in self:
                self[number].remove(user)


class _Entries(dict[int, tuple[tuple[int, User], ...]]):
    """By slot: the resources that its work uses, and what `Users` has there of it."""

    def __init__(self, work: SharedWork) -> None:
        super().__init__()
        self._work, self._num_slots, self._unlimited = work, len(work.most), len(work.capacity) - 1

    def __missing__(self, slot: int) -> tuple[tuple[int, User], ...]:
        numbers, uses = self._work.resource[:, slot].tolist(), self._work.use[:, slot].tolist()
        self[slot] = entries = tuple(
            (number, (column * self._num_slots + slot, slot, use))
            for column, (number, use) in enumerate(zip(numbers, uses, strict=True))
            if number != self._unlimited
        )
        return entries


class _UsedBy(dict[int, tuple[int, ...]]):
    """By slot: the resources that its work uses."""

    def __init__(self, resource: Ints, unlimited: int) -> None:
        super().__init__()
        self._resource, self._unlimited = resource, unlimited

    def __missing__(self, slot: int) -> tuple[int, ...]:
        self[slot] = used = tuple(n for n in self._resource[:, slot].tolist() if n != self._unlimited)
        return used


def float_view(column: Floats) -> "memoryview[float]":
    """The same numbers as a memoryview, whose single elements are read and written faster than those of an array."""
    return cast("memoryview[float]", memoryview(column))  # type: ignore[arg-type]


def int_view(column: Ints) -> "memoryview[int]":
    """As `float_view`."""
    return memoryview(column)  # type: ignore[arg-type]
