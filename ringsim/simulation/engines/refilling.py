"""`Refilling`: the fair rates after few activities have begun or ended, computed only where they may have changed.

A `Refilling` repeats the rounds of `fair_rates`, but looks at a resource only if its level may differ from before, or
if it becomes full in another round than before, and at an activity only if it uses such a resource. Every other
activity gets the same rate in the same round as before. All sums are taken in the order in which `fair_rates` takes
them, so both give the same rates to the last bit. SimGrid calls this a selective update of its max-min system.
"""

from collections.abc import Iterable
from itertools import chain

from ringsim.simulation.engines.shared_work import SharedWork
from ringsim.simulation.engines.users import Users, float_view, int_view

RISING = 2**30  # stands for the round of an activity whose rate is not fixed yet
NEVER = -1  # stands for the round in which a resource becomes full, if other resources hold up all its users


class Filling:
    """How a resource is filled while the rates of its users rise.

    left, level: at the beginning of each round, what is left of its capacity, and the rate that would use that up.
    full: the round in which all its users that still rise get that rate.
    """

    __slots__ = ("full", "left", "level")

    def __init__(self, left: list[float], level: list[float]) -> None:
        self.left, self.level, self.full = left, level, NEVER

    def until(self, num_rounds: int) -> "Filling":
        """A copy of the first rounds."""
        return Filling(self.left[:num_rounds], self.level[:num_rounds])


class Fillings(dict[int, Filling]):
    """By resource: how it was filled when the rates were last computed. It follows from rates and rounds if missing."""

    def __init__(self, work: SharedWork, users: Users) -> None:
        super().__init__()
        self.users = users
        self.most, self.capacity, self.rate = (float_view(c) for c in (work.most, work.capacity, work.rate))
        self.rounds = int_view(work.round)

    def __missing__(self, number: int) -> Filling:
        self[number] = filling = Filling([], [])
        left = self.capacity[number]
        rising = [(self.rounds[slot], use, self.rate[slot]) for _, slot, use in self.users[number]]
        while rising:
            now = len(filling.left)
            level = max(left, 0.0) / added(use for _, use, _ in rising)
            if all(at == now and rate == level for at, _, rate in rising):
                filling.full = now
            filling.left.append(left)
            filling.level.append(level)
            left -= added(use * rate for at, use, rate in rising if at == now)
            rising = [user for user in rising if user[0] > now]
        return filling

    def refill(self, changed: Iterable[int], most_visits: int) -> dict[int, float] | None:
        """By slot, the rates that may have changed because these resources have other users than before.

        A slot whose round is RISING has no rate yet. None if more than about `most_visits` users must be looked at.
        """
        refilling = Refilling(self, changed)
        if not refilling.run(most_visits):
            refilling.undo()
            return None
        self.update(refilling.touched)
        return refilling.rates


class Refilling:
    """One repetition of the rounds.

    touched: the resources whose filling may differ from before. rates: those that are fixed in another round, or at
    another level, than before.
    """

    def __init__(self, before: Fillings, changed: Iterable[int]) -> None:
        self._before, self._users, self._used_by = before, before.users, before.users.used_by
        self._rounds, self._rate, self._most = before.rounds, before.rate, before.most
        self.touched = {number: Filling([], []) for number in changed}
        self.rates: dict[int, float] = {}
        self._rounds_before: dict[int, int] = {}
        self._live = list(self.touched)  # the touched resources whose users may still rise
        self._round = self._visits = 0

    def run(self, most_visits: int) -> bool:
        """Go through all rounds; False if that takes too many visits."""
        while self._live and self._visits <= most_visits:
            self._raise_levels()
            if self._front:
                self._look_around()
                self._fix()
            self._round += 1
        return not self._live

    def undo(self) -> None:
        """Put back the rounds of all slots."""
        for slot, number_of_round in self._rounds_before.items():
            self._rounds[slot] = number_of_round

    def _raise_levels(self) -> None:
        """Find the level of each live resource, and as `_front` the slots whose rate is fixed now or was before."""
        self._levels = _Levels(self._before, self._round)
        self._lowest = _Lowest(self._levels, self._before)
        self._rising: dict[int, list[int]] = {}
        for number in self._live:
            self._raise_level(number)
        self._live = list(self._rising)
        self._front = dict.fromkeys(chain.from_iterable(self._rising.values()))

    def _raise_level(self, number: int) -> None:
        now, rounds, users = self._round, self._rounds, self._users[number]
        demand = spent = 0.0
        rising = []
        for _, slot, use in users:
            at = rounds[slot]
            if at >= now:
                demand += use
                rising.append(slot)
            elif at == now - 1:
                spent += use * (self.rates[slot] if slot in self.rates else self._rate[slot])
        self._visits += len(users)
        if rising:
            filling = self.touched[number]
            left = filling.left[-1] - spent if now else self._before.capacity[number]
            filling.left.append(left)
            filling.level.append(max(left, 0.0) / demand)
            self._levels[number] = filling.level[-1]
            self._rising[number] = rising

    def _look_around(self) -> None:
        """Touch the neighbours that become full in this round and did not before, or the other way round."""
        for number in self._turned():
            self.touched[number] = self._before[number].until(self._round + 1)
            self._rising[number] = self._rising_on(number)
            self._front.update(dict.fromkeys(self._rising[number]))

    def _rising_on(self, number: int) -> list[int]:
        return [slot for _, slot, _ in self._users[number] if self._rounds[slot] >= self._round]

    def _turned(self) -> set[int]:
        now, rising, levels, before = self._round, self._rising, self._levels, self._before
        turned: set[int] = set()
        not_full: set[int] = set()
        in_doubt: set[int] = set()
        for slot in self._front:
            rate = self._lowest[slot]
            for number in self._used_by[slot]:
                if number in rising:
                    continue
                was_full = before[number].full == now
                if rate < levels[number]:
                    (turned if was_full else not_full).add(number)
                elif not was_full:
                    in_doubt.add(number)
        return turned.union(n for n in in_doubt - not_full if self._is_full(n, self._rising_on(n)))

    def _is_full(self, number: int, rising: Iterable[int]) -> bool:
        """Whether no other resource holds up any of these users, or all, before this one does."""
        level, lowest = self._levels[number], self._lowest
        for slot in rising:  # noqa: SIM110  a generator takes twice as long
            if lowest[slot] < level:
                return False
        return True

    def _fix(self) -> None:
        """Fix the rates of the users of full resources; what differs from before touches the next round."""
        self._live = []
        for number, rising in self._rising.items():
            if self._is_full(number, rising):
                self.touched[number].full = self._round
            else:
                self._live.append(number)
        differ: set[int] = set()
        now, rounds = self._round, self._rounds
        for slot in self._front:
            at, rate = rounds[slot], self._lowest[slot]
            fixed = self._is_fixed(slot, rate)
            if fixed == (at == now) and (not fixed or rate == self._rate[slot]):
                continue  # as before, or it rises on
            self._rounds_before.setdefault(slot, at)
            rounds[slot] = now if fixed else RISING
            if fixed:
                self.rates[slot] = rate
            if at != RISING:
                differ.update(self._used_by[slot])
        self._touch(differ)

    def _is_fixed(self, slot: int, rate: float) -> bool:
        if rate == self._most[slot]:
            return True
        for number in self._used_by[slot]:
            if self._levels[number] == rate:
                filling = self.touched[number] if number in self._rising else self._before[number]
                if filling.full == self._round:
                    return True
        return False

    def _touch(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number not in self.touched:
                self.touched[number] = self._before[number].until(self._round + 1)
                self._live.append(number)


class _Levels(dict[int, float]):
    """By resource: its level in one round, as before unless set otherwise."""

    def __init__(self, before: Fillings, number_of_round: int) -> None:
        super().__init__()
        self._before, self._round = before, number_of_round

    def __missing__(self, number: int) -> float:
        self[number] = level = self._before[number].level[self._round]
        return level


class _Lowest(dict[int, float]):
    """By slot: the lowest level of the resources that it uses, which is the most that it can get in this round."""

    def __init__(self, levels: _Levels, before: Fillings) -> None:
        super().__init__()
        self._levels, self._used_by, self._most = levels, before.users.used_by, before.most

    def __missing__(self, slot: int) -> float:
        lowest, levels = self._most[slot], self._levels
        for number in self._used_by[slot]:
            level = levels[number]
            if level < lowest:  # noqa: PLR1730  twice as fast as `min`
                lowest = level
        self[slot] = lowest
        return lowest


def added(numbers: Iterable[float]) -> float:
    """The sum, one number after the other, as NumPy's bincount adds; `sum` of Python 3.12 rounds otherwise."""
    total = 0.0
    for number in numbers:
        total += number
    return total
