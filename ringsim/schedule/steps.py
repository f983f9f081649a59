"""`Steps`: the steps of a schedule: a `TransferTable`, or a `Relay`, a rule for rings from which the table follows.

A ring of 65,536 ranks has 8.6 billion transfers.
"""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, overload

import numpy as np
import numpy.typing as npt

from ringsim.limits import require_memory

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
AnyInts = npt.NDArray[np.signedinteger]
NEVER = -1  # in place of the number of a step: there is none
BYTES_LISTED = 100  # of memory for each transfer that is listed, while it is made, at most


class ScheduleError(Exception):
    """A schedule that breaks the rule of execution or its collective's contract."""


class Transfer(NamedTuple):
    """One chunk sent from `src` to `dst`: a send with its receive.

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
    """All transfers of a schedule in step order; each column of shape (num_transfers,)."""

    step: Rows
    src: Rows
    dst: Rows
    chunk: Rows
    reduce: Bools
    channel: Rows

    @classmethod
    def of_steps(cls, steps: Sequence[Sequence[npt.ArrayLike]]) -> TransferTable:
        """Return the table of steps of columns, which are broadcast to one shape and read row by row."""
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
        return TransferTable(**{name: column[chosen] for name, column in self.columns().items()})

    def columns(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(TransferTable)}

    def __len__(self) -> int:
        return len(self.src)


def stable_order(key: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return `np.argsort(key, kind="stable")` for keys from 0, several times faster.

    NumPy uses radix sort for 16-bit numbers: the lower half of a key is sorted first.
    """
    order = np.argsort((key & 0xFFFF).astype(np.uint16), kind="stable")
    while key.max(initial=0) > 0xFFFF:
        key = key >> 16
        order = order[np.argsort((key[order] & 0xFFFF).astype(np.uint16), kind="stable")]
    return order


@dataclass(frozen=True, slots=True, eq=False)
class Relay:
    """Rounds of transfers: every hop carries one chunk per round; a received chunk is forwarded in the next round.

    No chunk is on two hops of the same ranks at once. The first round sends chunks that ranks hold from the start. A
    rank's own sends of a chunk have arrived before the chunk returns.

    src, dst, channel: (num_hops,), the same in every round; each hop is followed by one that starts at its `dst`.
    chunk: (num_hops,), in the first round. after: (num_hops,), the hop that brings the chunk that this one forwards.
    turn: (num_hops,), the step within the round, never falling; a round has `num_turns` steps.
    reduces: (num_rounds,), whether the receivers of the round add.
    """

    src: Ints
    dst: Ints
    chunk: Ints
    channel: Ints
    turn: Ints
    after: Ints
    num_turns: int
    reduces: tuple[bool, ...]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return relays of the same rounds side by side, in each turn one part after the other."""
        first = np.cumsum([0, *(len(part.src) for part in parts)])
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("src", "dst", "chunk", "channel", "turn")
        }
        after = np.concatenate([start + part.after for start, part in zip(first, parts, strict=False)])
        order = np.argsort(columns["turn"], kind="stable")
        rest: dict[str, Any] = {name: column[order] for name, column in columns.items()}
        return replace(parts[0], **rest, after=np.argsort(order)[after[order]])

    def followed_by(self, other: Self) -> Self | None:
        """Return the rounds of both; None if `other` does not start with the chunks received last."""
        columns = ((getattr(self, name), getattr(other, name)) for name in ("src", "dst", "channel", "turn", "after"))
        same_hops = all(np.array_equal(*pair) for pair in columns) and self.num_turns == other.num_turns
        if not same_hops or not np.array_equal(self.chunks(len(self.reduces)), other.chunk):
            return None
        return replace(self, reduces=self.reduces + other.reduces)

    def chunks(self, number: int) -> Ints:
        place, ahead = np.arange(len(self.after)), self.after
        while number:  # binary powers of a permutation
            if number % 2:
                place = place[ahead]
            ahead, number = ahead[ahead], number // 2
        return self.chunk[place]

    def hops_of(self, turn: int) -> slice:
        return slice(*np.searchsorted(self.turn, [turn, turn + 1]).tolist())

    def step(self, index: int) -> Step:
        number, turn = divmod(index, self.num_turns)
        return self._step(self.hops_of(turn), self.chunks(number), self.reduces[number])

    def steps(self) -> Iterator[Step]:
        hops, chunk = [self.hops_of(turn) for turn in range(self.num_turns)], self.chunk
        for reduces in self.reduces:
            yield from (self._step(own, chunk, reduces) for own in hops)
            chunk = chunk[self.after]

    def table(self, hops: Ints | None = None) -> TransferTable:
        """Return all transfers, or only those on `hops`, in rising order."""
        hops = np.arange(len(self.src)) if hops is None else hops
        shape, places = (len(self.reduces), len(hops)), hops
        columns = {name: np.empty(shape, np.int32) for name in ("step", "src", "dst", "chunk", "channel")}
        for number in range(len(self.reduces)):
            columns["chunk"][number] = self.chunk[places]
            places = self.after[places]
        columns["step"][:] = np.arange(shape[0])[:, None] * self.num_turns + self.turn[hops]
        for name in ("src", "dst", "channel"):
            columns[name][:] = getattr(self, name)[hops]
        reduce = np.repeat(np.array(self.reduces, np.bool_), len(hops))
        return TransferTable(**{name: column.ravel() for name, column in columns.items()}, reduce=reduce)

    def _step(self, hops: slice, chunk: Ints, reduces: bool) -> Step:
        reduce: Bools = np.full(hops.stop - hops.start, reduces)
        return Step(self.src[hops], self.dst[hops], chunk[hops], reduce, self.channel[hops])


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """The same steps executed by disjoint groups of ranks, each with its own chunks and channels.

    steps: the first copy of each part; channel c of the i-th of k parts is channel `k * c + i`.
    numbers: for each part, the numbers of its copies among all copies, (num_copies,); they also number the channels.
    ranks: for each part, (num_copies, num_ranks), the rank in the place of each rank of `steps`.
    """

    steps: Steps
    numbers: tuple[Ints, ...]
    ranks: tuple[Ints, ...]

    def of_connections(self, src: AnyInts, dst: AnyInts, channel: AnyInts) -> tuple[Ints, Ints, Ints, Ints]:
        """Return src, dst and channel of all copies of connections of `steps`, and the original of each copy."""
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


class Steps(Sequence[Step]):
    """The steps of a schedule. The table of transfers is made on first access.

    relay: the rule from which the transfers follow, if they form rings.
    copies: the parts that several groups of ranks execute, if known.
    moved: of permuted steps, the original steps, and the new rank of each original rank.
    """

    def __init__(
        self,
        num_steps: int,
        num_transfers: int,
        make: Callable[[], TransferTable] | None,
        *,
        relay: Relay | None = None,
        copies: Copies | None = None,
        moved: tuple[Steps, Ints] | None = None,
    ) -> None:
        self._num_steps, self.num_transfers, self._make = num_steps, num_transfers, make
        self.relay, self.copies, self.moved = relay, copies, moved

    @classmethod
    def listed(cls, num_steps: int, table: TransferTable) -> Steps:
        steps = cls(num_steps, len(table), None)
        steps.table = table
        return steps

    @classmethod
    def relayed(cls, relay: Relay) -> Steps:
        num_rounds = len(relay.reduces)
        return cls(num_rounds * relay.num_turns, num_rounds * len(relay.src), relay.table, relay=relay)

    @cached_property
    def table(self) -> TransferTable:
        """All transfers. Raises ValueError if there is no memory for them."""
        require_memory(f"a list of {self.num_transfers:,} transfers", self.num_transfers * BYTES_LISTED)
        if make := self._make:
            vars(self)["table"] = make()
            self._make = None  # and with it go the tables that this one was made of
        table: TransferTable = vars(self)["table"]  # of another thread, if one made it meanwhile
        return table

    def __getstate__(self) -> dict[str, object]:
        """Return the attributes for pickle, which cannot store the function `make`: the table is made first."""
        return vars(self) if self.relay else vars(self) | {"table": self.table, "_make": None}

    def table_of(self, rank: int) -> TransferTable:
        rows = self.relay or self.table
        own = np.flatnonzero((rows.src == rank) | (rows.dst == rank))
        return self.relay.table(own) if self.relay else self.table.rows(own)

    def __len__(self) -> int:
        return self._num_steps

    def __iter__(self) -> Iterator[Step]:
        return self.relay.steps() if self.relay else map(self._listed, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"step {index} of {len(self)}")
        return self.relay.step(index) if self.relay else self._listed(index)

    def _listed(self, index: int) -> Step:
        rows, table = slice(*self._bounds[index : index + 2]), self.table
        return Step(table.src[rows], table.dst[rows], table.chunk[rows], table.reduce[rows], table.channel[rows])

    @cached_property
    def _bounds(self) -> list[int]:
        bounds: list[int] = np.searchsorted(self.table.step, np.arange(len(self) + 1)).tolist()
        return bounds


def same_transfers(steps: Steps, other: Steps) -> bool:
    """Return whether both have the same transfers in the same order; two relays are compared without a table."""
    if steps is other:
        return True
    if (len(steps), steps.num_transfers) != (len(other), other.num_transfers):
        return False
    both = (steps.relay, other.relay) if steps.relay and other.relay else (steps.table, other.table)
    return all(np.array_equal(*(getattr(one, field.name) for one in both)) for field in fields(both[0]))
