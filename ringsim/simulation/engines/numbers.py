"""`Numbers`: small numbers for large keys, given as the keys are met; `Growing`: a column by such a number."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ringsim.schedule import Ints


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


class Growing:
    """A value for each number, `first` until it is changed."""

    def __init__(self, first: float) -> None:
        self._first = np.array([first])
        self._values = self._first[:0]

    def at_least(self, length: int) -> npt.NDArray[Any]:
        """(length or more,): the values themselves, to be changed in place."""
        missing = length - len(self._values)
        if missing > 0:
            self._values = np.concatenate([self._values, np.repeat(self._first, missing)])
        return self._values
