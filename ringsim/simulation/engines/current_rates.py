"""`CurrentRates`: how fast the work in each slot goes, kept up to date while work begins and ends."""

from collections.abc import Iterator

import numpy as np

from ringsim.network import Floats
from ringsim.simulation.engines.fair_share import Ints, fair_rates_by_round
from ringsim.simulation.engines.local_rates import LocalRates
from ringsim.simulation.engines.shared_work import SharedWork
from ringsim.simulation.engines.users import float_view

MAX_HOPS = 4  # from one shared resource to the next; then computing more rates takes less time than looking further
NewRates = dict[int, float] | tuple[Ints, Floats]  # by slot; or slots, and the rate of each


class CurrentRates:
    """Max-min fair rates of the work that goes on; the arguments are those of `fair_rates`.

    When little has changed, only the rates around it are computed (`LocalRates`); otherwise those of all slots that
    share, directly or not, a resource with other users than before. Both give the same rates to the last bit, so the
    choice is one of speed alone.
    """

    def __init__(self, resource: Ints, use: Floats, most: Floats, capacity: Floats) -> None:
        self._work = SharedWork.none(resource, use, most, capacity)
        self._local = LocalRates(self._work)
        self._alone = self._work.alone_rates()
        self._changed = np.zeros(len(capacity), dtype=np.bool_)  # the resources that have other users than before
        self._left = self._joined = np.empty(0, dtype=np.int64)

    def fail(self, resource: Ints) -> None:
        """From now on these resources give nothing."""
        self._work.capacity[resource] = 0.0
        self._alone = self._work.alone_rates()
        self._changed[resource] = True

    def leave(self, slot: Ints) -> None:
        """The work in these slots is done. To be called at most once between two updates."""
        self._left = slot

    def join(self, slot: Ints) -> None:
        """Work begins in these slots. To be called at most once between two updates."""
        self._joined = slot

    def update(self) -> Iterator[NewRates]:
        """The rates of all that has joined since the last update, and those of others that may have changed."""
        left, joined = self._left, self._joined
        self._left = self._joined = left[:0]
        if self._local.can_take(len(left) + len(joined)):
            yield from self._exchange_few(left, joined)
        else:
            yield self._exchange(left, joined)
            yield from self._share()

    def _exchange_few(self, left: Ints, joined: Ints) -> Iterator[NewRates]:
        """One slot after the other."""
        again, alone, changed = self._local.exchange(left.tolist(), joined.tolist(), float_view(self._alone))
        rates = None if self._changed.any() else self._local.refill(changed)
        if rates is None:
            self._changed[list(changed | self._local.used_by(again))] = True
            yield alone
            yield from self._share()
        else:
            yield again | alone | rates

    def _exchange(self, left: Ints, joined: Ints) -> NewRates:
        """All slots at once; the rates of those that share nothing."""
        self._local.forget()
        work = self._work
        work.active[left] = False
        work.active[joined] = True
        before, used = work.resource[:, left], work.resource[:, joined]
        work.num_users[:] -= np.bincount(before.ravel(), minlength=len(work.num_users))
        work.num_users[:] += np.bincount(used.ravel(), minlength=len(work.num_users))
        work.num_users[-1] = 0
        alone = (work.num_users[used] <= 1).all(axis=0)
        self._changed[before] = True
        self._changed[used[:, ~alone]] = True
        self._changed &= work.num_users > 0
        slot = joined[alone]
        work.rate[slot], work.round[slot] = self._alone[slot], 0
        return slot, work.rate[slot]

    def _share(self) -> Iterator[NewRates]:
        """The rates of all that share, directly or not, what has changed."""
        changed = np.flatnonzero(self._changed)
        if not len(changed):
            return
        work, slot = self._work, self._concerned()
        resource, use = work.resource[:, slot], work.use[:, slot]
        rate, rounds = fair_rates_by_round(resource, use, work.most[slot], work.capacity)
        differ = (rate != work.rate[slot]) | (rounds != work.round[slot])
        self._local.forget_fillings({*changed.tolist(), *resource[:, differ].ravel().tolist()})
        work.rate[slot], work.round[slot] = rate, rounds
        self._changed[:] = False
        yield slot, rate

    def _concerned(self) -> Ints:
        """The active slots whose rates may change: those that share, directly or not, what has other users now.

        All that are active where these are not found soon: the others get the rates that they have.
        """
        active = np.flatnonzero(self._work.active)
        used = self._work.resource[:, active]
        num_concerned = -1
        for _ in range(MAX_HOPS):
            concerned = self._changed[used].any(axis=0)
            if concerned.sum() == num_concerned:
                return active[concerned]
            num_concerned = int(concerned.sum())
            self._changed[used[:, concerned]] = True
            self._changed[-1] = False  # to be without limit connects nobody
        return active
