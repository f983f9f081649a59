"""`Transfer`, `Step` and `Steps`: who sends what to whom, as columns, listed or computed when asked for."""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NEVER = -1  # in `data_dependency` and `buffer_dependency`: there is no such step


def constant(value: int, length: int) -> Ints:
    """Return a column with the same value for all transfers, in the memory of one. It must not be written to."""
    return np.ndarray((length,), np.int64, buffer=np.int64(value).tobytes(), strides=(0,))


def only_value(column: Ints | Bools) -> int | None:
    """Return the value of a column made by `constant`, without looking through it; None for any other."""
    return int(column[0]) if column.strides == (0,) and len(column) else None


class ScheduleError(Exception):
    """A schedule that breaks the rule of execution or its collective's contract."""


class Transfer(NamedTuple):
    """One sending of one chunk; it names both ends, so a send without its receive cannot be written.

    channel: what `src` sends on one channel leaves one after the other; 0 or more.
    """

    src: int
    dst: int
    chunk: int
    reduce: bool
    channel: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """The transfers of one step, a column per field, each of shape (num_transfers,).

    The last two columns say which earlier step a transfer depends on, so that an executor needs no table
    of ranks x chunks:
    `data_dependency`: the step that last wrote `chunk` on `src` (rule 1); NEVER if held from the start.
    `buffer_dependency`: the step (this one included) in which `dst` last sent `chunk` (rule 4); NEVER if there is
    none, or if that send must have arrived before this transfer could start, which `verify` checks.
    """

    src: Ints
    dst: Ints
    chunk: Ints
    reduce: Bools
    channel: Ints
    data_dependency: Ints
    buffer_dependency: Ints

    def __len__(self) -> int:
        return len(self.src)

    def __iter__(self) -> Iterator[Transfer]:
        columns = (getattr(self, name).tolist() for name in Transfer._fields)
        return map(Transfer._make, zip(*columns, strict=True))

    def rows(self, chosen: Ints | slice) -> Step:
        """Return a step with these of its rows."""
        return Step(*(getattr(self, name)[chosen] for name in COLUMNS))

    def reach(self, index: int) -> int:
        """Return how many steps back its transfers wait for, at most, if this is step number `index`."""
        earliest = (
            column[column != NEVER].min(initial=index) for column in (self.data_dependency, self.buffer_dependency)
        )
        return index - int(min(earliest))


COLUMNS = tuple(Step.__dataclass_fields__)


def same_transfers(step: Step, other: Step) -> bool:
    """Return whether two steps have the same transfers in the same order."""
    return all(np.array_equal(getattr(step, name), getattr(other, name)) for name in Transfer._fields)


@dataclass(frozen=True, slots=True, eq=False)
class Relay:
    """Steps in rounds: in each one chunk goes over every connection, and in the next round on over the next one.

    The first round sends what ranks hold from the start. No other chunk, nor what a rank still sends, is waited for.

    src, dst, channel: (num_connections,), of every round; `dst` of one connection has one connection that passes on
    what comes. after: (num_connections,), the connection that brings what this one passes on.
    reduces: (num_rounds,), whether the receivers of the round add.
    """

    src: Ints
    dst: Ints
    channel: Ints
    after: Ints
    reduces: tuple[bool, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Steps of which several sets of ranks do the same side by side, on chunks and channels that no others have.

    steps: the first copy of each part alone; channel c of the i-th of k parts is channel `k * c + i`.
    numbers: of each part, the numbers of its copies among all of them, (num_copies,), which tell channels likewise.
    ranks: of each part, (num_copies, num_ranks), which rank does in each copy what each rank does in `steps`.
    """

    steps: Steps
    numbers: tuple[Ints, ...]
    ranks: tuple[Ints, ...]

    def of_connections(self, src: Ints, dst: Ints, channel: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return src, dst and channel of all copies of connections of `steps`, and which one each is a copy of."""
        num_copies = sum(map(len, self.numbers))
        of_part, part = np.divmod(channel, len(self.numbers))
        columns = []
        for number, (copies, ranks) in enumerate(zip(self.numbers, self.ranks, strict=True)):
            own = np.flatnonzero(part == number)
            channels = of_part[own] * num_copies + copies[:, None]
            table = ranks[:, src[own]], ranks[:, dst[own]], channels, np.broadcast_to(own, channels.shape)
            columns.append([column.ravel() for column in table])
        src, dst, channel, original = map(np.concatenate, zip(*columns, strict=True))
        return src, dst, channel, original


class Steps(ABC, Sequence[Step]):
    """The steps of a schedule, listed or computed one at a time: a large ring never exists as a whole."""

    @property
    @abstractmethod
    def lookback(self) -> int:
        """The steps that `data_dependency` and `buffer_dependency` point back at most, which an executor must keep."""

    @property
    def num_transfers(self) -> int:
        """The number of transfers of all steps together."""
        return sum(len(self.step(index)) for index in range(len(self)))

    @property
    def num_channels(self) -> int:
        """The numbers of their channels are below this."""
        return 1 + max((int(self.step(index).channel.max(initial=0)) for index in range(len(self))), default=0)

    def patterns(self) -> Iterable[Step]:
        """Return steps that together use every connection of the schedule: here all, in some subclasses a few.

        A connection is a sender, a receiver and a channel. A step that is left out only sends over connections of one
        of those returned, and over none of them more often than that one does. A ring, all of whose steps send over the
        same connections, returns one step.
        """
        return self

    @property
    def copies(self) -> Copies | None:
        """The copies that the steps are known to be; None if they are not."""
        return None

    @cached_property
    def relay(self) -> Relay | None:
        """The rounds that the steps are, one each, such as those of a ring; None if they are no relay."""
        if not len(self):
            return None
        first = self.step(0)
        to, by = np.argsort(first.dst), np.argsort(first.src)
        is_around = len(first) and np.array_equal(first.dst[to], first.src[by])
        if not is_around or (np.diff(first.src[by]) == 0).any():
            return None
        reduces = []
        for index in range(len(self)):
            step = self.step(index)
            if not _passes_on(step, first, index):
                return None
            reduces.append(bool(step.reduce[0]))
        after = np.empty_like(to)
        after[by] = to
        return Relay(first.src, first.dst, first.channel, after, tuple(reduces))

    @abstractmethod
    def last_write(self, rank: Ints, chunk: Ints) -> Ints:
        """Return the last step that writes `chunk` on `rank` (NEVER if none), elementwise."""

    @abstractmethod
    def last_send(self, rank: Ints, chunk: Ints) -> Ints:
        """Return the last step in which `rank` sends `chunk`, elementwise.

        NEVER if there is none, or if a later write to the chunk cannot but follow that send's arrival.
        """

    @abstractmethod
    def step(self, index: int) -> Step:
        """Return step number `index`, 0 <= index < len(self)."""

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        if isinstance(index, slice):
            return [self.step(i) for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"step {index} of {len(self)}")
        return self.step(index)


def _passes_on(step: Step, first: Step, index: int) -> bool:
    """Return whether a step sends on the connections of the first one all that came in the step before, adding or not.

    The first step, whose index is 0, sends what was there before; NEVER is -1.
    """
    columns = ("src", "dst", "channel")
    return (
        len(step) == len(first)
        and all(np.array_equal(getattr(step, name), getattr(first, name)) for name in columns)
        and _has_only(step.data_dependency, index - 1)
        and _has_only(step.buffer_dependency, NEVER)
        and _has_only(step.reduce, bool(step.reduce[0]))
    )


def _has_only(column: Ints | Bools, value: int) -> bool:
    only = only_value(column)
    return only == value if only is not None else bool((column == value).all())
