"""Work that shares resources: the rate of each piece, and its end.

Rates are max-min fair: no rate can be raised without lowering one that is no higher. They follow from the *level* of
each resource: the rate of users that no other resource limits; infinite if it is not used up. Work has the lowest level
of its resources as its rate, or its own limit.

When a few pieces begin or end, `Levels` corrects the affected levels (Charny et al. 1995); when many do, it computes
all in arrays. The two differ by rounding only.
"""

import math
from collections import deque
from collections.abc import Iterable
from itertools import accumulate
from typing import cast

import numpy as np

from ringsim.network import Floats, Resources
from ringsim.simulation.waits import Ints

# Events closer than this fraction of the time so far count as one moment. Symmetric ranks then stay in step although
# sums differ in their last bits, and a thousand events cost hardly more than one.
SAME_MOMENT = 1e-10
SAME_LEVEL = 1e-14  # levels that differ by less than this fraction are equal, so that corrections end
FEW_CHANGES = 64  # of work; with more at a time, arrays are faster
PEAK_RATIO = 1e3  # times its capacity a resource gives out of its bucket if nothing else limits: rates are finite
NEGLIGIBLE = 1e-9  # of a bucket, or of the rate at which it fills


def fair_rates(resource: Ints, use: Floats, most: Floats, capacity: Floats) -> Floats:
    """Return the max-min fair rates of these activities, (num_activities,). Raises ValueError for NaN.

    resource: (width, num_activities), those of each activity, without repetition, filled up with one without limit.
    use: (width, num_activities), capacity of that resource used per unit of rate.
    most: (num_activities,), finite, the rate of each if nothing were shared.
    capacity: (num_resources,); infinite: without limit.
    """
    return _rates_at(fair_levels(resource, use, most, capacity), resource, most)


def _rates_at(level: Floats, resource: Ints, most: Floats) -> Floats:
    rates: Floats = np.minimum(most, level[resource].min(axis=0))
    return rates


def fair_levels(resource: Ints, use: Floats, most: Floats, capacity: Floats) -> Floats:
    """Return the level of each resource, (num_resources,), by progressive filling; for the arguments see `fair_rates`.

    Bertsekas and Gallager 1992, section 6.5.2. One round fixes all resources that are used up before any other resource
    of their users.
    """
    levels = np.full(len(capacity), np.inf)
    left = capacity.copy()
    while len(most):
        demand = _sum_by(resource, use, len(left))
        level = np.full(len(left), np.inf)
        np.divide(np.maximum(left, 0.0), demand, out=level, where=demand > 0)
        seen = level[resource]  # by each activity, of each resource it uses
        lowest = np.minimum(most, seen.min(axis=0))
        later = demand == 0  # resources without users, or with a user that another resource limits first
        later[resource[lowest < seen]] = True
        levels[~later] = level[~later]
        fixed = ((seen == lowest) & ~later[resource]).any(axis=0) | (lowest == most)
        if not fixed.any():  # no number is equal to NaN: the rates would rise for ever
            raise ValueError(
                f"activity 0: its rate is at most {lowest[0]}, with {most[0]} if nothing were shared: "
                f"all rates, uses and capacities must be numbers, and not negative"
            )
        left -= _sum_by(resource[:, fixed], use[:, fixed] * lowest[fixed], len(left))
        resource, use, most = resource[:, ~fixed], use[:, ~fixed], most[~fixed]
    return levels


def _sum_by(resource: Ints, amount: Floats, num_resources: int) -> Floats:
    total: Floats = np.bincount(resource.ravel(), weights=amount.ravel(), minlength=num_resources)  # type: ignore[assignment]  # weights make floats
    return total


class Levels:
    """The level of each resource while work in slots begins and ends; for the arguments see `fair_rates`."""

    def __init__(self, resource: Ints, use: Floats, most: Floats, capacity: Floats) -> None:
        self._resource, self._use, self._most, self._capacity = resource, use, most, capacity
        self._num_slots = len(most)
        self._active = np.zeros(self._num_slots, dtype=np.bool_)
        self._level = np.full(len(capacity), np.inf)
        # Single elements of a memoryview are read and written faster than those of an array.
        self._most_of, self._capacity_of, self._level_of = (
            cast("memoryview[float]", memoryview(column))  # type: ignore[arg-type]
            for column in (most, capacity, self._level)
        )
        self._uses: dict[int, tuple[tuple[int, float], ...]] = {}
        self._users: dict[int, dict[int, float]] = {}
        self._by_resource: tuple[Ints, Ints] | None = None
        self._changed: list[int] = []

    def limit(self, resource: Ints, capacity: Floats | float) -> None:
        self._capacity[resource] = capacity
        self._changed += resource.tolist()

    def used(self, rate: Floats) -> Floats:
        return _sum_by(self._resource, self._use * np.where(self._active, rate, 0.0), len(self._capacity))

    def update(self, left: Ints, joined: Ints) -> tuple[Ints, Floats]:
        """End the work in the slots `left`, and begin that in `joined`.

        Returns the slots that joined or whose rates may have changed, and their rates.
        """
        self._active[left] = False
        self._active[joined] = True
        touched = self._correct(left.tolist(), joined.tolist()) if len(left) + len(joined) <= FEW_CHANGES else None
        if touched is None:
            slot = np.flatnonzero(self._active)
            columns = self._resource[:, slot], self._use[:, slot], self._most[slot]
            self._level[:] = fair_levels(*columns, self._capacity)
            self._users.clear()
        else:
            users = (user for number in touched for user in self._users_of(number))
            slot = np.fromiter(dict.fromkeys((*joined.tolist(), *users)), dtype=np.int64)
        self._changed = []
        return slot, _rates_at(self._level, self._resource[:, slot], self._most[slot])

    def _correct(self, left: Iterable[int], joined: Iterable[int]) -> set[int] | None:
        """Correct the levels; return the resources with a new level, or None if that takes too long."""
        # If work follows work in a slot, nothing changes for the other slots.
        ended, begun = set(left).difference(joined), set(joined).difference(left)
        for slot in ended:
            for number, _ in self._uses_of(slot):
                self._users.get(number, {}).pop(slot, None)
        for slot in begun:
            for number, use in self._uses_of(slot):
                if number in self._users:
                    self._users[number][slot] = use
        waiting = dict.fromkeys(number for slot in ended | begun for number, _ in self._uses_of(slot))
        return self._spread(deque(dict.fromkeys((*self._changed, *waiting))))

    def _spread(self, waiting: deque[int]) -> set[int] | None:
        touched, queued = set(), set(waiting)
        most_visits = FEW_CHANGES + np.count_nonzero(self._active) // 2  # then arrays are faster
        while waiting:
            most_visits -= 1
            if most_visits < 0:
                return None
            number = waiting.popleft()
            queued.discard(number)
            level = self._corrected(number)
            if math.isclose(level, self._level_of[number], rel_tol=SAME_LEVEL):
                continue
            self._level_of[number] = level
            touched.add(number)
            for slot in self._users_of(number):
                for other, _ in self._uses_of(slot):
                    if other != number and other not in queued:
                        queued.add(other)
                        waiting.append(other)
        return touched

    def _corrected(self, number: int) -> float:
        demands = []
        for slot, use in self._users_of(number).items():
            wanted = self._most_of[slot]
            for other, _ in self._uses_of(slot):
                if other != number and self._level_of[other] < wanted:
                    wanted = self._level_of[other]
            demands.append((wanted, use))
        demands.sort(reverse=True)
        # Sum the small uses: subtracting the limited ones from the total would leave mostly rounding errors.
        rising = list(accumulate(use for _, use in demands))
        left = self._capacity_of[number]
        while demands:
            wanted, use = demands.pop()
            demand = rising.pop()
            if wanted * demand >= left:
                return max(left, 0.0) / demand
            left -= wanted * use
        return math.inf

    def _uses_of(self, slot: int) -> tuple[tuple[int, float], ...]:
        if slot not in self._uses:
            uses = zip(self._resource[:, slot].tolist(), self._use[:, slot].tolist(), strict=True)
            self._uses[slot] = tuple((number, use) for number, use in uses if use > 0)
        return self._uses[slot]

    def _users_of(self, number: int) -> dict[int, float]:
        if number not in self._users:
            order, first = self._places()
            place = order[first[number] : first[number + 1]]
            place = place[self._active[place % self._num_slots] & (self._use.ravel()[place] > 0)]
            uses = zip((place % self._num_slots).tolist(), self._use.ravel()[place].tolist(), strict=True)
            self._users[number] = dict(uses)
        return self._users[number]

    def _places(self) -> tuple[Ints, Ints]:
        if self._by_resource is None:
            numbers = self._resource.ravel()
            order = np.argsort(numbers, kind="stable")
            self._by_resource = order, np.searchsorted(numbers[order], np.arange(len(self._capacity) + 1))
        return self._by_resource


class Buckets:
    """The token buckets of resources; (num_buckets,) each.

    A bucket fills at its resource's capacity, and data through the resource empties it. Until it is empty, the resource
    has PEAK_RATIO times its capacity.
    """

    def __init__(self, resources: Resources) -> None:
        self.number = np.flatnonzero(resources.burst_bytes)
        self._fills, self._size = resources.capacity[self.number], resources.burst_bytes[self.number]
        self._saved, self._grows = self._size.copy(), np.zeros(len(self.number))
        self._is_open = np.zeros(len(self.number), dtype=np.bool_)

    def fail(self, resource: Ints) -> None:
        failing = np.isin(self.number, resource)
        self._fills[failing] = self._size[failing] = self._saved[failing] = 0.0

    def use(self, used: Floats) -> None:
        grows = self._fills - used
        self._grows = np.where(np.abs(grows) > NEGLIGIBLE * self._fills, grows, 0.0)

    def empty_after_s(self) -> Floats:
        """Return the seconds until each is empty; infinite if it already is, or never will be."""
        empties = (self._grows < 0) & self._is_open
        after_s: Floats = np.divide(self._saved, -self._grows, out=np.full(len(empties), np.inf), where=empties)
        return after_s

    def advance_by(self, seconds: float, same_s: float) -> None:
        """Advance the time. same_s: a bucket that is empty this soon afterwards is empty now."""
        empty = self.empty_after_s() <= seconds + same_s
        self._saved = np.where(empty, 0.0, np.clip(self._saved + seconds * self._grows, 0.0, self._size))

    def changed(self) -> tuple[Ints, Floats]:
        is_open = self._saved > NEGLIGIBLE * self._size
        changed, self._is_open = is_open != self._is_open, is_open
        return self.number[changed], np.where(is_open, PEAK_RATIO, 1.0)[changed] * self._fills[changed]


class Activities:
    """A fixed number of slots, each with one activity at a time; for the arguments see `fair_rates`.

    Work that shares nothing takes exactly `amount / most`, as its end is computed from its beginning in one operation.
    """

    def __init__(self, resource: Ints, use: Floats, most: Floats, resources: Resources) -> None:
        self.num_slots = num_slots = len(most)
        # The additional last resource has no limit: it fills the unused places of a slot.
        self._resource = np.where(use > 0, resource, len(resources.names))
        self._names = resources.names
        self._levels = Levels(self._resource, use, most, np.append(resources.capacity, np.inf))
        self._buckets = Buckets(resources)
        self._fails_at_s = resources.fails_at_s.copy()
        self._now_s = 0.0
        self._joins_s = np.full(num_slots, np.inf)  # when it becomes active
        self._ends_s = np.full(num_slots, np.inf)
        self._since_s = np.zeros(num_slots)  # the moment from which `lead` and `amount` are still to be done
        self._lead_s = np.zeros(num_slots)
        self._amount = np.zeros(num_slots)
        self._rate = np.zeros(num_slots)
        self._ended = np.empty(0, dtype=np.int64)
        self._apply_failures()

    def begin(self, slot: Ints, at_s: Floats, lead_s: Floats | float, amount: Floats) -> None:
        """Begin work of `amount` in each of these free slots, after a lead that uses no shared resource.

        Raises ValueError for a negative or NaN time or amount.
        """
        good = (at_s >= 0) & (lead_s >= 0) & (amount >= 0)
        if not good.all():
            first = int(np.argmin(good))
            lead = np.broadcast_to(lead_s, len(slot))[first]
            raise ValueError(
                f"{self._name(slot[first])}: begins at {at_s[first]} s, with a lead of {lead} s and {amount[first]} to "
                "do: none of these may be negative or NaN"
            )
        self._joins_s[slot] = at_s + lead_s
        self._since_s[slot] = at_s
        self._lead_s[slot] = lead_s
        self._amount[slot] = amount
        self._rate[slot] = 0.0

    def next_ended(self) -> tuple[Ints, Floats]:
        """Return the slots in which work ends next, and that moment; no slots if none ever will.

        The caller begins all work of that moment before the next call.
        """
        while True:
            self._start_joining()
            # NumPy's minimum, since Python's may ignore NaN.
            ends_s = float(np.minimum.reduce(self._ends_s, initial=np.inf))
            joins_s = float(np.minimum.reduce(self._joins_s, initial=np.inf))
            empty_s = self._now_s + float(np.minimum.reduce(self._buckets.empty_after_s(), initial=np.inf))
            now = float(np.minimum(np.minimum(ends_s, joins_s), np.minimum(self._next_failure_s, empty_s)))
            if now == np.inf:
                return np.empty(0, dtype=np.int64), np.empty(0)
            # In each round work joins, ends or fails. With NaN the rounds would not end.
            assert now >= self._now_s * (1 - SAME_MOMENT), f"the clock goes from {self._now_s} s to {now} s"
            self._buckets.advance_by(now - self._now_s, now * SAME_MOMENT)
            self._now_s = now
            if self._next_failure_s <= now:
                self._apply_failures()
            moment_s = now * (1 + SAME_MOMENT)
            if ends_s <= moment_s:
                self._ended = np.flatnonzero(self._ends_s <= moment_s)
                ends = self._ends_s[self._ended]
                self._ends_s[self._ended] = np.inf
                return self._ended, ends

    def _name(self, slot: int) -> str:
        used = [self._names[number] for number in self._resource[:, slot].tolist() if number < len(self._names)]
        return f"work in slot {slot}" + (f", on {', '.join(used)}" if used else "")

    def _start_joining(self) -> None:
        joining = np.flatnonzero(self._joins_s <= self._now_s * (1 + SAME_MOMENT))
        self._joins_s[joining] = np.inf
        self._levels.limit(*self._buckets.changed())
        slot, rate = self._levels.update(self._ended, joining)
        self._ended = self._ended[:0]
        before = self._rate[slot]
        changed = rate != before
        self._account_for(slot[changed & (before > 0)])
        self._set_rates(slot[changed], rate[changed])
        if len(self._buckets.number):
            self._buckets.use(self._levels.used(self._rate)[self._buckets.number])

    def _apply_failures(self) -> None:
        failing = np.flatnonzero(self._fails_at_s <= self._now_s)
        if len(failing):
            self._fails_at_s[failing] = np.inf
            self._levels.limit(failing, 0.0)
            self._buckets.fail(failing)
        self._next_failure_s = float(self._fails_at_s.min(initial=np.inf))

    def _account_for(self, slot: Ints) -> None:
        begun_s = self._since_s[slot] + self._lead_s[slot]
        now_s = np.maximum(begun_s, self._now_s)
        self._amount[slot] = np.maximum(self._amount[slot] - self._rate[slot] * (now_s - begun_s), 0.0)
        self._since_s[slot] = now_s
        self._lead_s[slot] = 0.0

    def _set_rates(self, slot: Ints, rate: Floats) -> None:
        self._rate[slot] = rate
        work_s = np.full(len(slot), np.inf)
        np.divide(self._amount[slot], rate, out=work_s, where=rate > 0)
        self._ends_s[slot] = self._since_s[slot] + (self._lead_s[slot] + work_s)
