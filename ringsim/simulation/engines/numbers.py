"""`Numbers`: small numbers for large keys, given as the keys are met, and times by such a number."""

import numpy as np

from ringsim.schedule import Ints
from ringsim.simulation.timeline import Seconds


class Numbers:
    """A number from 0 on for each key. own: keys below this are their own numbers."""

    def __init__(self, own: int = 0) -> None:
        self._known: Ints = np.arange(own)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, keys: Ints) -> Ints:
        """The numbers of these keys; those met for the first time come at the end, so that earlier ones stay valid."""
        new = np.setdiff1d(keys, self._known)
        self._known = np.concatenate([self._known, new])
        order = np.argsort(self._known)
        return order[np.searchsorted(self._known, keys, sorter=order)].astype(np.int64)


class TimesByNumber:
    """A time for each number, 0 at first."""

    def __init__(self) -> None:
        self._times: Seconds = np.zeros(0)

    def at_least(self, length: int) -> Seconds:
        """(length or more,): the times themselves, to be changed in place."""
        if len(self._times) < length:
            self._times = np.concatenate([self._times, np.zeros(length - len(self._times))])
        return self._times
