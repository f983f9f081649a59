"""`Schedule`: a collective algorithm as data, and the one rule by which everything executes it.

A schedule is a sequence of steps; a step is a set of transfers; a transfer names the rank that sends, the
rank that receives, the chunk, whether the receiver adds it (REDUCE) or overwrites with it (COPY), and the channel
on which it is sent. It holds no bytes, no times and no tensors.

The rule of execution
---------------------
Steps are an order, not a barrier. Within a step the order of the rows counts.

1. A transfer may start when `src` has applied the last earlier step that wrote into its chunk there. So
   what is sent is what the chunk held before this step.
2. Transfers of one rank on one channel leave in step order, each after the one before it has left. Channels are
   independent of each other.
3. A rank applies what it receives in step order: REDUCE adds into its chunk, COPY overwrites it. This
   fixes the order of the additions, so a result is the same bit for bit on every run.
4. A write to a chunk waits until the rank's own sends, up to the last one of that chunk (this step's
   included), have left.

Every wait points to an earlier step or row, or from a write to a send of the same step, so a schedule cannot
deadlock. And since the waits make each send read what it would read if the steps ran one after the other,
`replay`, which does run them one after the other, gives the result of any execution.

Executors: `verify` (symbolic), `simulate` (virtual time), `replay` (arrays in one process) and
`collectives.execute` (tensors in many processes).
"""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from ringsim.display import Displayed
from ringsim.files import quoted
from ringsim.schedule.collective import Collective
from ringsim.schedule.memory import require_memory
from ringsim.schedule.partition import Cut, partition
from ringsim.schedule.user_steps import columns_by_step, require_count, transfers_by_step
from ringsim.units import plural

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Columns = tuple[npt.ArrayLike, ...]  # src, dst, chunk, reduce and, if it is not 0 for all, channel

MAX_CHANNELS = 2**20  # more than a rank has peers, or a schedule rings
LARGE_STEP = 2**16  # transfers; smaller ones come one by one, and memory is not looked at for each
BYTES_LISTED = 100  # of memory for each transfer of a step that is listed, while it is made, at most
NEVER = -1  # in `data_dependency` and `buffer_dependency`: there is no such step


def constant(value: int, length: int) -> Ints:
    """A column with the same value for all transfers, which takes the room of one. Not to be written to."""
    return np.ndarray((length,), np.int64, buffer=np.int64(value).tobytes(), strides=(0,))


def only_value(column: Ints | Bools) -> int | None:
    """The value of a column made by `constant`, without looking through it; None for any other."""
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

    def reach(self, index: int) -> int:
        """How many steps back its transfers wait for, at most, if this is step number `index`."""
        earliest = (
            column[column != NEVER].min(initial=index) for column in (self.data_dependency, self.buffer_dependency)
        )
        return index - int(min(earliest))


class Steps(ABC, Sequence[Step]):
    """The steps of a schedule, listed or computed one at a time: a large ring never exists as a whole."""

    @property
    @abstractmethod
    def lookback(self) -> int:
        """How many steps back `data_dependency` and `buffer_dependency` point at most; what an executor must keep."""

    @property
    def num_transfers(self) -> int:
        """How many transfers all steps have together."""
        return sum(len(self.step(index)) for index in range(len(self)))

    @property
    def num_channels(self) -> int:
        """The numbers of their channels are below this."""
        return 1 + max((int(self.step(index).channel.max(initial=0)) for index in range(len(self))), default=0)

    @abstractmethod
    def last_write(self, rank: Ints, chunk: Ints) -> Ints:
        """The last step that writes `chunk` on `rank` (NEVER if none), elementwise."""

    @abstractmethod
    def last_send(self, rank: Ints, chunk: Ints) -> Ints:
        """The last step in which `rank` sends `chunk`, elementwise.

        NEVER if there is none, or if a later write to the chunk cannot but follow that send's arrival.
        """

    @abstractmethod
    def step(self, index: int) -> Step:
        """Step number `index`, 0 <= index < len(self)."""

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


class ListedSteps(Steps):
    """Steps written out; the columns `data_dependency` and `buffer_dependency` are worked out here.

    steps: for each step its `Columns`, which are broadcast against one another and read row by row.
    """

    def __init__(self, num_ranks: int, num_chunks: int, steps: Iterable[Columns]) -> None:
        tables = f"a list of who sends what: {num_ranks:,} ranks x {num_chunks:,} chunks"
        require_memory(tables, 2 * 8 * num_ranks * num_chunks)
        self._last_write = np.full((num_ranks, num_chunks), NEVER, dtype=np.int64)
        self._last_send = np.full((num_ranks, num_chunks), NEVER, dtype=np.int64)
        self._steps: list[Step] = []
        self._lookback = 0
        self._num_channels = 1
        for columns in steps:
            same_length = np.broadcast_arrays(*_with_channel(len(self._steps), columns))
            if same_length[0].size > LARGE_STEP:
                num_bytes = same_length[0].size * BYTES_LISTED
                require_memory(f"a step of {same_length[0].size:,} transfers", num_bytes)
            self._append(*(np.ravel(column) for column in same_length))

    def _append(self, *columns: npt.NDArray[Any]) -> None:
        src, dst, chunk, channel = (columns[place].astype(np.int64) for place in (0, 1, 2, 4))
        index = len(self._steps)
        _check_in_range(index, src, dst, chunk, channel, *self._last_write.shape)
        data_dependency = self._last_write[src, chunk]
        self._last_send[src, chunk] = index
        buffer_dependency = self._last_send[dst, chunk]
        self._last_write[dst, chunk] = index
        reduce = columns[3].astype(np.bool_)
        self._steps.append(Step(src, dst, chunk, reduce, channel, data_dependency, buffer_dependency))
        self._lookback = max(self._lookback, self._steps[-1].reach(index))
        self._num_channels = max(self._num_channels, 1 + int(channel.max(initial=0)))

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def lookback(self) -> int:
        return self._lookback

    @property
    def num_channels(self) -> int:
        return self._num_channels

    def last_write(self, rank: Ints, chunk: Ints) -> Ints:
        return self._last_write[rank, chunk]

    def last_send(self, rank: Ints, chunk: Ints) -> Ints:
        return self._last_send[rank, chunk]

    def step(self, index: int) -> Step:
        return self._steps[index]


def _with_channel(step: int, columns: Columns) -> Columns:
    """With the last column, which may be left out. Raises ScheduleError for any other number of columns."""
    names = Transfer._fields
    if not len(names) - 1 <= len(columns) <= len(names):
        raise ScheduleError(
            f"step {step}: it has {len(columns)} columns: must have {', '.join(names[:-1])}, and may have {names[-1]}"
        )
    return columns if len(columns) == len(names) else (*columns, 0)


def _table(step: int, rows: Sequence[tuple[Any, ...]]) -> Ints:
    """(num_transfers, 5): the transfers of a step; raises ScheduleError for what is no transfer."""
    names = Transfer._fields
    for row in rows:
        if not len(names) - 1 <= len(row) <= len(names):
            raise ScheduleError(
                f"step {step}: {row} is no transfer: it must have {', '.join(names[:-1])}, and may have {names[-1]}"
            )
        for name, value in zip(names, row, strict=False):
            if not isinstance(value, int | np.integer | np.bool_):
                raise ScheduleError(f"step {step}: {name} {value!r} is not a whole number")
    return np.array([Transfer(*row) for row in rows], dtype=np.int64).reshape(-1, len(names))


def _check_in_range(
    step: int, src: Ints, dst: Ints, chunk: Ints, channel: Ints, num_ranks: int, num_chunks: int
) -> None:
    """Raise ScheduleError for the first transfer that names what there is not, or one rank twice."""
    limits = (num_ranks, num_ranks, num_chunks, MAX_CHANNELS)
    named = list(zip(("src", "dst", "chunk", "channel"), (src, dst, chunk, channel), limits, strict=True))
    wrong = src == dst
    for _, values, limit in named:
        wrong = wrong | (values < 0) | (values >= limit)
    if not wrong.any():
        return
    row = int(wrong.argmax())
    for name, values, limit in named:
        if not 0 <= values[row] < limit:
            raise ScheduleError(f"step {step}: {name} {values[row]} is not in 0..{limit - 1}")
    raise ScheduleError(f"step {step}, rank {src[row]}: chunk {chunk[row]} is sent to itself")


@dataclass(frozen=True, slots=True, eq=False)
class Schedule(Displayed):
    """One algorithm for one number of ranks: a collective, its chunks and its steps.

    cut: where the bounds of the chunks lie, for a number of elements and of chunks: a function as `partition` is.
    Simulation and execution both cut tensors by it, so that they move the same bytes.

        >>> from ringsim import Collective, Schedule, Transfer
        >>> steps = [[Transfer(src=0, dst=1, chunk=0, reduce=False)], [Transfer(1, 2, 0, False)]]
        >>> Schedule.from_transfers(Collective.BROADCAST, "mine", 3, 1, steps)
        Schedule(broadcast mine over 3 ranks, 1 chunk, 2 steps)
    """

    collective: Collective
    algorithm: str
    num_ranks: int
    num_chunks: int
    steps: Steps
    cut: Cut = partition

    def __post_init__(self) -> None:
        require_count("num_ranks", self.num_ranks)
        require_count("num_chunks", self.num_chunks)
        self._require(isinstance(self.collective, Collective), "collective", "one of Collective")
        self._require(isinstance(self.algorithm, str), "algorithm", "a name")
        self._require(isinstance(self.steps, Steps), "steps", "Steps, which Schedule.from_transfers makes of lists")
        self._require(callable(self.cut), "cut", "a function as partition is")

    def _require(self, holds: bool, field: str, kind: str) -> None:
        if not holds:
            raise ValueError(f"{field} {quoted(getattr(self, field))}: must be {kind}")

    @classmethod
    def from_transfers(
        cls,
        collective: Collective,
        algorithm: str,
        num_ranks: int,
        num_chunks: int,
        steps: Iterable[Iterable[Transfer]],
    ) -> Schedule:
        """A schedule written out: one iterable of transfers a step.

        Raises ScheduleError for a rank or chunk out of range.
        """
        written = transfers_by_step(steps, Transfer._fields)
        tables = (_table(index, rows) for index, rows in enumerate(written))
        columns = (tuple(table.T) for table in tables)
        return cls.from_columns(collective, algorithm, num_ranks, num_chunks, columns)

    @classmethod
    def from_columns(
        cls, collective: Collective, algorithm: str, num_ranks: int, num_chunks: int, steps: Iterable[Columns]
    ) -> Schedule:
        """The same from arrays: src, dst, chunk, reduce and channel of each step, broadcast against one another.

        The channel may be left out; it is 0 then.

        Raises ScheduleError for a rank or chunk out of range.
        """
        require_count("num_ranks", num_ranks)
        require_count("num_chunks", num_chunks)
        written: Iterator[Any] = columns_by_step(steps, Transfer._fields)
        return cls(collective, algorithm, num_ranks, num_chunks, ListedSteps(num_ranks, num_chunks, written))

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    @property
    def num_transfers(self) -> int:
        """How many transfers all steps have together."""
        return self.steps.num_transfers

    def bounds(self, num_elements: int) -> Ints:
        """(num_chunks + 1,): chunk `i` of a tensor holds the elements `bounds[i]` to `bounds[i + 1]`.

        Raises ValueError for a negative number of elements.
        """
        return self.cut(num_elements, self.num_chunks)

    def chunk_bytes(self, size_bytes: int, element_bytes: int = 1) -> Ints:
        """(num_chunks,): the bytes of each chunk of a tensor of `size_bytes`, which has elements of `element_bytes`.

        Raises ValueError for a size that is negative or not whole elements.
        """
        if element_bytes < 1 or size_bytes % element_bytes:
            raise ValueError(f"size {size_bytes} bytes: must be a multiple of the element size, {element_bytes} bytes")
        return np.diff(self.bounds(size_bytes // element_bytes)) * element_bytes

    def __repr__(self) -> str:
        chunks, steps = plural(self.num_chunks, "chunk"), plural(self.num_steps, "step")
        return f"Schedule({self}, {chunks}, {steps})"

    def __str__(self) -> str:
        return f"{self.collective.value} {self.algorithm} over {plural(self.num_ranks, 'rank')}"
