"""`Steps`: the steps of a schedule: one table of transfers, or a relay from which the table follows."""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from ringsim.schedule.memory import require_memory
from ringsim.schedule.relay import Relay
from ringsim.schedule.table import BYTES_LISTED, AnyInts, Ints, Step, TransferTable


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

    def of_connections(self, src: AnyInts, dst: AnyInts, channel: AnyInts) -> tuple[Ints, Ints, Ints, Ints]:
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


class Steps(Sequence[Step]):
    """The steps of a schedule. Their table is made when it is first asked for, as not all that is known needs it.

    num_steps, num_transfers: of the table that `make` returns.
    relay: the rule by which the transfers follow, if they are those of rings.
    copies: the parts that several sets of ranks do side by side, if they are known.
    moved: the steps that these are with other ranks in their places, and the rank that does what each did there.
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
        """Return the steps that have this table."""
        steps = cls(num_steps, len(table), None)
        steps.table = table
        return steps

    @classmethod
    def relayed(cls, relay: Relay) -> Steps:
        """Return the steps of a relay."""
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
        """Return the attributes for pickle, which cannot take the function that makes a table: have it made."""
        return vars(self) if self.relay else vars(self) | {"table": self.table, "_make": None}

    def table_of(self, rank: int) -> TransferTable:
        """Return all that a rank sends and receives."""
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
