"""`Relay`: the transfers of a ring as a rule, from which its table, any step and one rank's rows can be made.

A ring of 65,536 ranks has 8.6 billion transfers, and no table of it can exist.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from ringsim.schedule.table import Bools, Ints, Step, TransferTable


@dataclass(frozen=True, slots=True, eq=False)
class Relay:
    """Rounds of transfers: in each one chunk goes over every hop, and in the next round on over the next hop.

    No chunk is on two hops of the same ranks at once. The first round sends what ranks hold from the start. So what is
    sent has come in the round before, and a rank's own sends of a chunk have arrived before the chunk comes back.

    src, dst, channel: (num_hops,), of every round; `dst` of one hop has one hop that passes on what comes.
    chunk: (num_hops,), in the first round. after: (num_hops,), the hop that brings what this one passes on.
    turn: (num_hops,), the step of the round, never falling; a round has `num_turns` steps.
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
        """Return relays of the same rounds side by side: in each turn the hops of one part after those of another."""
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
        """Return the rounds of both, one after the other; None if the other does not pass on what came last."""
        columns = ((getattr(self, name), getattr(other, name)) for name in ("src", "dst", "channel", "turn", "after"))
        same_hops = all(np.array_equal(*pair) for pair in columns) and self.num_turns == other.num_turns
        if not same_hops or not np.array_equal(self.chunks(len(self.reduces)), other.chunk):
            return None
        return replace(self, reduces=self.reduces + other.reduces)

    def chunks(self, number: int) -> Ints:
        """Return the chunk on each hop in round `number`: (num_hops,)."""
        place, ahead = np.arange(len(self.after)), self.after
        while number:  # binary powers of a permutation
            if number % 2:
                place = place[ahead]
            ahead, number = ahead[ahead], number // 2
        return self.chunk[place]

    def hops_of(self, turn: int) -> slice:
        """Return the hops of a turn."""
        return slice(*np.searchsorted(self.turn, [turn, turn + 1]).tolist())

    def step(self, index: int) -> Step:
        """Return a step by its number."""
        number, turn = divmod(index, self.num_turns)
        return self._step(self.hops_of(turn), self.chunks(number), self.reduces[number])

    def steps(self) -> Iterator[Step]:
        """Yield all steps, which share columns."""
        hops, chunk = [self.hops_of(turn) for turn in range(self.num_turns)], self.chunk
        for reduces in self.reduces:
            yield from (self._step(own, chunk, reduces) for own in hops)
            chunk = chunk[self.after]

    def table(self, hops: Ints | None = None) -> TransferTable:
        """Return all transfers; hops: only those over these, in rising order."""
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
