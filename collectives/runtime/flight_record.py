"""`Ledger`: how far each of a rank's transfers had got when a collective failed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from collectives.runtime.instructions import Do, Line
from ringsim.schedule import RankProgram


class Entry(NamedTuple):
    """One transfer of this rank.

    kind: send or receive.
    state: of a send "not begun", "under way", "left"; of a receive "not begun", "awaited", "applied".
    """

    kind: str
    step: int
    peer: int
    chunk: int
    state: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """All transfers of one rank in one collective, in step order."""

    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        """In short: how many of the sends have left and how many of the receives are applied."""
        states = Counter((entry.kind, entry.state) for entry in self.entries)
        kinds = Counter(entry.kind for entry in self.entries)
        left, applied = states["send", "left"], states["receive", "applied"]
        return f"{left} of {kinds['send']} sends left, {applied} of {kinds['receive']} receives applied"

    def table(self) -> str:
        """A line for each transfer."""
        return "\n".join(
            f"step {entry.step}: {entry.kind:7} chunk {entry.chunk} "
            f"{'to' if entry.kind == 'send' else 'from'} rank {entry.peer}: {entry.state}"
            for entry in self.entries
        )


_STATES = {Do.POST: "awaited", Do.APPLY: "applied", Do.SEND: "under way", Do.LEAVE: "left"}


def ledger_of(program: RankProgram, done: Sequence[Line], peers: Sequence[int]) -> Ledger:
    """Where the transfers of `program` are once those lines of its script are done.

    peers: whom it calls rank 0, 1, ..., in the group.
    """
    receives, sends = ["not begun"] * len(program.receives), ["not begun"] * len(program.sends)
    for do, index in done:
        if do in _STATES:
            (sends if do in (Do.SEND, Do.LEAVE) else receives)[index] = _STATES[do]
    entries = [
        Entry("receive", each.step, peers[each.peer], each.chunk, state)
        for each, state in zip(program.receives, receives, strict=True)
    ]
    entries += [
        Entry("send", each.step, peers[each.peer], each.chunk, state)
        for each, state in zip(program.sends, sends, strict=True)
    ]
    return Ledger(tuple(sorted(entries, key=lambda entry: (entry.step, entry.kind))))
