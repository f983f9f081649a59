"""`CollectiveError`, and the `FlightRecord` of the collective that failed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from collectives.runtime.instructions import Opcode, RankInstruction, RankPart


class TransferRecord(NamedTuple):
    """One transfer of this rank.

    kind: "send" or "receive".
    state: "not begun", then "under way" and "left" of a send, "awaited" and "applied" of a receive.
    """

    kind: str
    step: int
    peer: int
    chunk: int
    state: str


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """The transfers of one rank in one collective, in step order: the `flight_record` of a `CollectiveError`.

    >>> from collectives.runtime.errors import TransferRecord
    >>> record = collectives.FlightRecord((TransferRecord("send", step=0, peer=1, chunk=0, state="left"),))
    >>> print(record)
    1 of 1 sends left, 0 of 0 receives applied
    >>> print(record.table())
    step 0: send    chunk 0 to rank 1: left
    """

    entries: tuple[TransferRecord, ...]

    def __str__(self) -> str:
        states = Counter((entry.kind, entry.state) for entry in self.entries)
        kinds = Counter(entry.kind for entry in self.entries)
        left, applied = states["send", "left"], states["receive", "applied"]
        return f"{left} of {kinds['send']} sends left, {applied} of {kinds['receive']} receives applied"

    def table(self) -> str:
        return "\n".join(
            f"step {entry.step}: {entry.kind:7} chunk {entry.chunk} "
            f"{'to' if entry.kind == 'send' else 'from'} rank {entry.peer}: {entry.state}"
            for entry in self.entries
        )


_STATES = {Opcode.POST_RECV: "awaited", Opcode.APPLY: "applied", Opcode.SEND: "under way", Opcode.WAIT_SEND: "left"}


def flight_record_of(part: RankPart, failed: RankInstruction | None = None) -> FlightRecord:
    """Return the states of the transfers of `part` when the instruction `failed` began; None: before the first one."""
    receives, sends = ["not begun"] * len(part.receives), ["not begun"] * len(part.sends)
    num_done = 0 if failed is None else part.instructions.index(failed)
    for opcode, index in part.instructions[:num_done]:
        if opcode in _STATES:
            (sends if opcode in (Opcode.SEND, Opcode.WAIT_SEND) else receives)[index] = _STATES[opcode]
    kinds = ["receive"] * len(receives) + ["send"] * len(sends)
    entries = [
        TransferRecord(kind, transfer.step, transfer.peer, transfer.chunk, state)
        for kind, transfer, state in zip(kinds, part.transfers, receives + sends, strict=True)
    ]
    return FlightRecord(tuple(sorted(entries, key=lambda entry: (entry.step, entry.kind))))


class CollectiveError(RuntimeError):
    """A transfer failed or was not finished within the timeout; the message names rank, step, chunk and peer.

    If the cause is known, the message ends with the rank that failed first, the same on all ranks.

    The tensor is left half-reduced, and the group is broken: its further collectives raise at once. Leave by sys.exit
    with a code other than 0, so that the launcher ends the other ranks. With Gloo neither sys.exit nor a preceding
    dist.destroy_process_group waits for a peer. (While torch's own collectives are under way, leave by os._exit: their
    threads may abort the process.)

    flight_record: the state of each of this rank's transfers; None if the failure was outside a schedule.
    peer: the rank of the group that this rank was waiting for; None if unknown.

        >>> try:
        ...     collectives.all_reduce(torch.ones(3))
        ... except collectives.CollectiveError as error:
        ...     print(error)
        ...     sys.exit(1)
    """

    def __init__(self, message: str, flight_record: FlightRecord | None = None, peer: int | None = None) -> None:
        super().__init__(message)
        self.flight_record = flight_record
        self.peer = peer
        self._cause = ""

    def add_cause(self, cause: str) -> None:
        if cause and not self._cause:
            self._cause = cause
            self.args = (f"{self}; {cause}",)

    def during(self, doing: str) -> "CollectiveError":
        placed = CollectiveError(f"{doing}: {self}", self.flight_record, self.peer)
        placed._cause = self._cause
        return placed


def is_timeout(error: BaseException) -> bool:
    """Whether Gloo reports a timeout, or a connection that an earlier timeout has closed."""
    return any(words in str(error).lower() for words in ("timed out", "timeout"))


def first_line(error: BaseException) -> str:
    """Return the first line of the message."""
    return (str(error).strip() or repr(error)).splitlines()[0]


@contextmanager
def naming_failures(doing: str) -> Iterator[None]:
    """Turn a RuntimeError of torch.distributed in the block into a CollectiveError.

    doing: the rank and its operation, the beginning of the message.
    """
    try:
        yield
    except CollectiveError as error:
        raise error.during(doing) from error
    except RuntimeError as error:
        raise CollectiveError(f"{doing}: {first_line(error)}") from error


def disagreement(calls: Sequence[tuple[int, str]], about: str = "what to do") -> str:
    """Return a sentence with the ranks of each call; empty if all calls are the same. calls: (rank, call) pairs."""
    ranks: dict[str, list[int]] = {}
    for rank, call in calls:
        ranks.setdefault(call, []).append(rank)
    if len(ranks) < 2:
        return ""
    parts = [f"{'rank' if len(same) == 1 else 'ranks'} {_list(same)}: {call}" for call, same in ranks.items()]
    return f"the ranks do not agree on {about}: {'; '.join(parts)}"


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{', '.join(map(str, ranks[:8]))}, ..."
