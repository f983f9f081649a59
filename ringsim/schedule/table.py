"""`TransferTable`: the transfers of a schedule as columns, in step order; `Step`: the rows of one step."""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
AnyInts = npt.NDArray[np.signedinteger]
NEVER = -1  # in place of the number of a step: there is none
BYTES_LISTED = 100  # of memory for each transfer that is listed, while it is made, at most


class ScheduleError(Exception):
    """A schedule that breaks the rule of execution or its collective's contract."""


class Transfer(NamedTuple):
    """One chunk sent from `src` to `dst`. A send without its receive cannot be written.

    channel: 0 or more; transfers of `src` on one channel leave one after the other.
    """

    src: int
    dst: int
    chunk: int
    reduce: bool
    channel: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The transfers of one step, a column per field, each of shape (num_transfers,)."""

    src: AnyInts
    dst: AnyInts
    chunk: AnyInts
    reduce: Bools
    channel: AnyInts

    def __len__(self) -> int:
        return len(self.src)

    def __iter__(self) -> Iterator[Transfer]:
        columns = (getattr(self, name).tolist() for name in Transfer._fields)
        return map(Transfer._make, zip(*columns, strict=True))


@dataclass(frozen=True, eq=False)
class TransferTable:
    """All transfers of a schedule, the rows in step order, each column of shape (num_transfers,)."""

    step: Rows
    src: Rows
    dst: Rows
    chunk: Rows
    reduce: Bools
    channel: Rows

    @classmethod
    def of_steps(cls, steps: Sequence[Sequence[npt.ArrayLike]]) -> TransferTable:
        """Return the table of steps of columns, which are broadcast against one another and read row by row."""
        parts = [[np.ravel(column) for column in np.broadcast_arrays(*columns)] for columns in steps]
        types = (np.int32, np.int32, np.int32, np.bool_, np.int32)
        columns = (
            np.concatenate([np.empty(0, dtype), *(part[place].astype(dtype) for part in parts)])
            for place, dtype in enumerate(types)
        )
        step = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part[0]) for part in parts])
        return cls(step, *columns)

    @classmethod
    def joined(cls, parts: Sequence[TransferTable]) -> TransferTable:
        columns = [np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)]
        table = cls(*columns)
        return table if (np.diff(table.step) >= 0).all() else table.rows(stable_order(table.step))

    def rows(self, chosen: AnyInts) -> TransferTable:
        return TransferTable(*(getattr(self, field.name)[chosen] for field in fields(TransferTable)))

    def __len__(self) -> int:
        return len(self.src)


def stable_order(key: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return `np.argsort(key, kind="stable")` for keys from 0, several times faster.

    NumPy uses radix sort for 16-bit numbers. Therefore the lower half of a key is sorted first, then the upper half.
    """
    order = np.argsort((key & 0xFFFF).astype(np.uint16), kind="stable")
    while key.max(initial=0) > 0xFFFF:
        key = key >> 16
        order = order[np.argsort((key[order] & 0xFFFF).astype(np.uint16), kind="stable")]
    return order
