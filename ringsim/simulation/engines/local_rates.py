"""`LocalRates`: the fair rates after work in few slots has begun or ended, computed near them, slot by slot."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ringsim.simulation.engines.refilling import RISING, Fillings
from ringsim.simulation.engines.shared_work import SharedWork
from ringsim.simulation.engines.users import Users, float_view, int_view

FEW_SLOTS, FEW_RESOURCES = 16, 256  # with more of them, arrays are faster
VISITS_AT_LEAST = 30
LONGEST_PAUSE = 64  # changes


class Exchange(NamedTuple):
    """What follows from work that has ended and begun: rates by slot that are known, and what must be computed.

    again: of slots in which work follows work, so that nothing changes for the others. alone: of those that share
    nothing. changed: the resources with other users than before.
    """

    again: dict[int, float]
    alone: dict[int, float]
    changed: set[int]


class LocalRates:
    """What is known of users and fillings, which pays if little changes at a time."""

    def __init__(self, work: SharedWork) -> None:
        self._work = work
        self._users = Users(work)
        self._fillings = Fillings(work, self._users)
        self._num_users, self._rate, self._round = int_view(work.num_users), float_view(work.rate), int_view(work.round)
        self._pause = self._next_pause = 0

    def used_by(self, slots: Iterable[int]) -> set[int]:
        """The resources that any of these uses."""
        return {number for slot in slots for number in self._users.used_by[slot]}

    def can_take(self, num_slots: int) -> bool:
        """Whether `exchange` is faster than to forget all and begin anew."""
        return num_slots <= max(FEW_SLOTS, len(self._users))

    def forget(self) -> None:
        """Who uses what has changed otherwise than by `exchange`."""
        self._users.clear()
        self._fillings.clear()

    def forget_fillings(self, numbers: Iterable[int]) -> None:
        """Rates of users of these resources have been computed otherwise than by `refill`."""
        if self._fillings:
            for number in numbers:
                self._fillings.pop(number, None)

    def exchange(self, left: list[int], joined: list[int], alone_rate: "memoryview[float]") -> Exchange:
        """Work has ended in the slots `left`, and begun in those that have `joined`."""
        used_by = self._users.used_by
        same = set(left).intersection(joined) if left and joined else left[:0]
        again = {slot: self._rate[slot] for slot in same if used_by[slot]}
        if len(again) == len(left) == len(joined):
            return Exchange(again, {}, set())
        gone, new = [slot for slot in left if slot not in again], [slot for slot in joined if slot not in again]
        for slot in gone:
            self._leave(slot)
        for slot in new:
            self._join(slot)
        alone = {slot: alone_rate[slot] for slot in new if all(self._num_users[n] <= 1 for n in used_by[slot])}
        for slot, rate in alone.items():
            self._rate[slot], self._round[slot] = rate, 0
        changed = {number for number in self.used_by(gone) if self._num_users[number]}
        return Exchange(again, alone, changed | self.used_by(slot for slot in new if slot not in alone))

    def _leave(self, slot: int) -> None:
        self._work.active[slot] = False
        self._users.leave(slot)
        for number in self._users.used_by[slot]:
            self._num_users[number] -= 1
            self._fillings.pop(number, None)

    def _join(self, slot: int) -> None:
        self._work.active[slot] = True
        self._round[slot] = RISING
        self._users.join(slot)
        for number in self._users.used_by[slot]:
            self._num_users[number] += 1

    def refill(self, changed: set[int]) -> dict[int, float] | None:
        """By slot, the rates that may have changed; None where it is faster to compute all.

        After it has been tried in vain, it is not tried again for a while.
        """
        if not changed:
            return {}
        if self._pause or len(changed) > FEW_RESOURCES:
            self._pause = max(self._pause - 1, 0)
            return None
        # `fair_rates` takes a while however few there are, and then less for each activity than a visit takes.
        rates = self._fillings.refill(changed, VISITS_AT_LEAST + int(np.count_nonzero(self._work.active)))
        if rates is None:
            self._pause = self._next_pause = min(2 * self._next_pause + 1, LONGEST_PAUSE)
            return None
        self._next_pause = 0
        for slot, rate in rates.items():
            self._rate[slot] = rate
        return rates
