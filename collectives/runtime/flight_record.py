"""`FlightRecord`: how far each of a rank's transfers had got when a collective failed."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from collectives.runtime.instructions import Opcode, RankInstruction, RankPart


class TransferRecord(NamedTuple):
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
class FlightRecord:
    """All transfers of one rank in one collective, in step order: what a `CollectiveError` holds as `flight_record`.

    entries: one `TransferRecord` for each, with kind, step, peer, chunk and state.

        >>> from collectives.runtime.flight_record import TransferRecord
        >>> sent = TransferRecord("send", step=0, peer=1, chunk=0, state="left")
        >>> awaited = TransferRecord("receive", step=0, peer=1, chunk=1, state="awaited")
        >>> record = collectives.FlightRecord((awaited, sent))
        >>> print(record)
        1 of 1 sends left, 0 of 1 receives applied
        >>> print(record.table())
        step 0: receive chunk 1 from rank 1: awaited
        step 0: send    chunk 0 to rank 1: left
    """

    entries: tuple[TransferRecord, ...]

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


_STATES = {
    Opcode.POST_RECV: "awaited",
    Opcode.APPLY: "applied",
    Opcode.SEND: "under way",
    Opcode.WAIT_SEND: "left",
}


def flight_record_of(part: RankPart, failed: RankInstruction | None = None) -> FlightRecord:
    """Return where the transfers of `part` are once the instructions before `failed` are done; None is the first."""
    receives, sends = ["not begun"] * len(part.program.receives), ["not begun"] * len(part.sends)
    num_done = 0 if failed is None else part.instructions.index(failed)
    for opcode, index in part.instructions[:num_done]:
        if opcode in _STATES:
            (sends if opcode in (Opcode.SEND, Opcode.WAIT_SEND) else receives)[index] = _STATES[opcode]
    entries = [
        TransferRecord("receive", receive.step, part.peers[receive.peer], receive.chunk, state)
        for receive, state in zip(part.program.receives, receives, strict=True)
    ]
    entries += [
        TransferRecord("send", send.step, part.peers[send.peer], send.chunk, state)
        for send, state in zip(part.sends, sends, strict=True)
    ]
    return FlightRecord(tuple(sorted(entries, key=lambda entry: (entry.step, entry.kind))))
