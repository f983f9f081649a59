"""`Activities`: work that goes on side by side, shares resources fairly, and ends when it is done."""

import math

import numpy as np

from ringsim.network import Floats, Resources
from ringsim.simulation.engines.current_rates import CurrentRates, NewRates
from ringsim.simulation.engines.fair_share import Ints
from ringsim.simulation.engines.users import float_view

# Events that are closer than this fraction of the time so far count as one moment. What is symmetric then stays in
# step although sums differ in their last bits, and a thousand events cost hardly more than one.
SAME_MOMENT = 1e-10


class Activities:
    """A fixed number of slots, in each of which one activity at a time can be at work.

    resource, use: (width, num_slots), and `most`: (num_slots,), of the work done in each slot: see `fair_rates`.

    The rate of an activity changes only when another one begins or ends. As long as it does not, the end is worked out
    from the beginning in one go, so that work that shares nothing takes exactly `amount / most`.
    """

    def __init__(self, resource: Ints, use: Floats, most: Floats, resources: Resources) -> None:
        self.num_slots = num_slots = len(most)
        # One resource more, the last, without limit: where a slot uses less than others.
        self._resource = np.where(use > 0, resource, len(resources.names))
        self._names = resources.names
        capacity = np.append(resources.capacity, np.inf)
        self._rates = CurrentRates(self._resource, use, most, capacity)
        self._fails_at_s = resources.fails_at_s.copy()
        self._now_s = 0.0
        self._joins_s = np.full(num_slots, np.inf)  # when it becomes active
        self._ends_s = np.full(num_slots, np.inf)
        self._since_s = np.zeros(num_slots)  # the moment from which `lead` and `amount` are still to be done
        self._lead_s = np.zeros(num_slots)
        self._amount = np.zeros(num_slots)
        self._rate = np.zeros(num_slots)
        columns = self._since_s, self._lead_s, self._amount, self._ends_s, self._rate
        self._views = tuple(float_view(column) for column in columns)
        self._let_fail()

    def begin(self, slot: Ints, at_s: Floats, lead_s: Floats | float, amount: Floats) -> None:
        """Work of `amount` in each of these free slots, after a lead that shares nothing.

        Raises ValueError for a time or amount that is negative or NaN, with which the clock would stand still.
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
        """The slots in which work ends next, at the same moment, and when; none if no work will ever end.

        What is begun at that moment must be begun before the next call.
        """
        while True:
            self._let_join()
            # NumPy's minimum, as that of Python may pass over NaN.
            ends_s = float(np.minimum.reduce(self._ends_s, initial=np.inf))
            joins_s = float(np.minimum.reduce(self._joins_s, initial=np.inf))
            now = float(np.minimum(np.minimum(ends_s, joins_s), self._next_failure_s))
            if now == np.inf:
                return np.empty(0, dtype=np.int64), np.empty(0)
            self._require_progress(now)
            self._now_s = now
            if self._next_failure_s <= now:
                self._let_fail()
            moment_s = now * (1 + SAME_MOMENT)
            if ends_s <= moment_s:
                ended = np.flatnonzero(self._ends_s <= moment_s)
                ends = self._ends_s[ended]
                self._leave(ended)
                return ended, ends

    def _require_progress(self, now: float) -> None:
        """Raise ValueError, which names what stands still, unless the next moment is one at which something happens.

        Each round has an event: work joins, ends or fails, once. With NaN nothing would, and the rounds would not end.
        """
        if now >= self._now_s * (1 - SAME_MOMENT):
            return
        for times, event in ((self._joins_s, "begins"), (self._ends_s, "ends")):
            for slot in np.flatnonzero(~(times >= self._now_s))[:1].tolist():
                raise ValueError(
                    f"{self._name(slot)}: {event} at {times[slot]} s: the clock is at {self._now_s} s already"
                )
        raise ValueError(f"the clock does not advance: from {self._now_s} s to {now} s")

    def _name(self, slot: int) -> str:
        """What the work in a slot uses, for messages."""
        used = [self._names[number] for number in self._resource[:, slot].tolist() if number < len(self._names)]
        return f"work in slot {slot}" + (f", on {', '.join(used)}" if used else "")

    def _let_join(self) -> None:
        joining = np.flatnonzero(self._joins_s <= self._now_s * (1 + SAME_MOMENT))
        if len(joining):
            self._joins_s[joining] = np.inf
            self._rates.join(joining)
        for rates in self._rates.update():
            self._change(rates)

    def _let_fail(self) -> None:
        failing = np.flatnonzero(self._fails_at_s <= self._now_s)
        if len(failing):
            self._fails_at_s[failing] = np.inf
            self._rates.fail(failing)
        self._next_failure_s = float(self._fails_at_s.min(initial=np.inf))

    def _leave(self, slot: Ints) -> None:
        self._ends_s[slot] = np.inf
        self._rates.leave(slot)

    def _change(self, rates: NewRates) -> None:
        """From now on these rates hold."""
        if isinstance(rates, dict):
            for slot, rate in rates.items():
                self._change_one(slot, rate)
        else:
            self._change_all(*rates)

    def _change_all(self, slot: Ints, rate: Floats) -> None:
        before = self._rate[slot]
        changed = rate != before
        self._account_for(slot[changed & (before > 0)])
        self._set_rates(slot[changed], rate[changed])

    def _change_one(self, slot: int, rate: float) -> None:
        """As `_change_all`, but faster for one slot."""
        since_s, lead_s, amount, ends_s, rates = self._views
        before = rates[slot]
        if rate == before:
            return
        if before > 0:
            begun_s = since_s[slot] + lead_s[slot]
            now_s = max(begun_s, self._now_s)
            amount[slot] = max(amount[slot] - before * (now_s - begun_s), 0.0)
            since_s[slot] = now_s
            lead_s[slot] = 0.0
        rates[slot] = rate
        ends_s[slot] = since_s[slot] + (lead_s[slot] + (amount[slot] / rate if rate > 0 else math.inf))

    def _account_for(self, slot: Ints) -> None:
        """Take off what has been done until now, at the rate that ends now."""
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
