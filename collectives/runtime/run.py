"""`Run`: one execution of a schedule on one rank: what is posted, what is under way, what is applied."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist

from collectives.runtime.errors import CollectiveError
from collectives.runtime.flight_record import ledger_of
from collectives.runtime.instructions import Do, Line
from collectives.runtime.preposted import Mail, Place, Unposted, goes_by_mail
from collectives.runtime.profiler_spans import named, profiling
from collectives.runtime.rank_part import RankPart
from ringsim.schedule import Collective, Receive, Send

ALIKE = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST)  # after these all ranks hold the same

Reduce = Callable[[torch.Tensor, torch.Tensor], object]


class Source(NamedTuple):
    """A rank's contribution that is not to be changed.

    reduce_into: called with a place, a chunk and what arrived for it; puts into the place what they are together.
    """

    tensor: torch.Tensor
    reduce_into: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


class Event(NamedTuple):
    """One thing a rank did: `sent` as it issued a send, `applied` when it had applied a receive.

    time_s: of `time.perf_counter`, which on Linux is one clock for all processes of a machine.
    """

    kind: str
    step: int
    peer: int
    chunk: int
    time_s: float


class Arrival(NamedTuple):
    """A receive that is posted: where it lands, and the place if it is one of the mail's.

    work: to wait for; None if it is one of a batch.
    """

    buffer: torch.Tensor
    work: dist.Work | Unposted | None = None
    place: Place | None = None


@dataclass(slots=True)
class Run:
    """One run on one rank: it does what the script says, line by line.

    chunks: where each chunk is now: at home, or, until it is first written, in the source.
    mirror: what is sent of each chunk: the chunks themselves, or, if they travel in another dtype, tensors of that.
    slots: places for what is too long for mail and must not land in its chunk.
    tags: of each chunk's messages.
    """

    part: RankPart
    group: dist.ProcessGroup
    mail: Mail
    script: tuple[Line, ...]
    chunks: list[torch.Tensor]
    homes: list[torch.Tensor]
    mirror: list[torch.Tensor]
    slots: Sequence[torch.Tensor]
    tags: list[int]
    reduce: Reduce
    reduce_into: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object] | None
    log: list[Event] | None
    arrivals: list[Arrival] = field(default_factory=list)
    under_way: list[dist.Work] = field(default_factory=list)
    slots_used: int = 0
    position: int = 0

    def run(self) -> None:
        doing = self._doing()
        if profiling():
            doing = named(doing, self.part)
        try:
            for self.position, (do, index) in enumerate(self.script):  # noqa: B020
                doing[do](index)
        except RuntimeError as error:
            do, index = self.script[self.position]
            if do is Do.APPLY:
                raise  # that was no transfer
            raise self._failure(do, index, error) from error
        if self.mirror is not self.chunks and self.part.schedule.collective in ALIKE:
            for chunk, sent in zip(self.chunks, self.mirror, strict=True):
                sent.copy_(chunk)  # who summed a chunk holds it as it was before it was rounded to be sent
                chunk.copy_(sent)

    def _doing(self) -> Sequence[Callable[[int], None]]:
        """What each word of a script means, by its number; to look that up in a dict takes Python 3.11 longer."""
        return self._post, self._arrive, self._apply, self._free, self._send, self._leave

    def _post(self, index: int) -> None:
        receive = self.part.program.receives[index]
        chunk, peer = receive.chunk, self.part.peers[receive.peer]
        tag = self.tags[chunk]
        if goes_by_mail(tag):
            place = self.mail.expect(self.group, peer, tag)
            self.arrivals.append(Arrival(place.as_wide_as(self.mirror[chunk]), place.work, place))
            return
        buffer = self._landing(receive)
        self.arrivals.append(Arrival(buffer, self.group.recv([buffer], peer, tag)))

    def _landing(self, receive: Receive) -> torch.Tensor:
        """Where what does not come by mail lands."""
        chunk = receive.chunk
        if not receive.lands_apart:
            return (self.homes if self.mirror is self.chunks else self.mirror)[chunk]
        # The slot is free again: there are as many as such receives are ever posted and not yet applied.
        self.slots_used += 1
        return self.slots[self.slots_used % len(self.slots)][: len(self.mirror[chunk])]

    def _arrive(self, index: int) -> None:
        work = self.arrivals[index].work
        assert work is not None
        work.wait()

    def _apply(self, index: int) -> None:
        receive, buffer = self.part.program.receives[index], self.arrivals[index].buffer
        chunk, home = self.chunks[receive.chunk], self.homes[receive.chunk]
        if receive.reduce and self.reduce_into is not None and chunk is not home:
            self.reduce_into(home, chunk, buffer)
        elif receive.reduce:
            self.reduce(home, buffer)
        elif buffer is not home:
            home.copy_(buffer)
        self.chunks[receive.chunk] = home
        self._record("applied", receive)

    def _free(self, index: int) -> None:
        place = self.arrivals[index].place
        if place is not None:
            receive = self.part.program.receives[index]
            peer, tag = self.part.peers[receive.peer], self.tags[receive.chunk]
            self.mail.renew(self.group, peer, tag, place)

    def _send(self, index: int) -> None:
        send = self.part.sends[index]
        data = self._message(send)
        self._record("sent", send)  # before it is: a receiver that has a core may be done before we go on
        self.under_way.append(self.group.send([data], self.part.peers[send.peer], self.tags[send.chunk]))

    def _message(self, send: Send) -> torch.Tensor:
        """What is sent: the chunk, or what it is in the dtype that travels."""
        data, chunk = self.mirror[send.chunk], self.chunks[send.chunk]
        if data is not chunk:
            data.copy_(chunk)  # rounds; if it is still being sent, it is the same once more
            chunk.copy_(data)  # in an exchange both sides must add the same two
        return data

    def _leave(self, index: int) -> None:
        self.under_way[index].wait()

    def _record(self, kind: str, transfer: Send | Receive) -> None:
        if self.log is not None:
            peer = self.part.peers[transfer.peer]
            self.log.append(Event(kind, transfer.step, peer, transfer.chunk, time.perf_counter()))

    def _failure(self, do: Do, index: int, error: RuntimeError) -> CollectiveError:
        part = self.part
        is_send = do in (Do.SEND, Do.LEAVE)
        transfer = part.sends[index] if is_send else part.program.receives[index]
        doing, way = ("sending", "to") if is_send else ("receiving", "from")
        cause = (str(error).strip() or repr(error)).splitlines()[0]
        ledger = ledger_of(part.program, self.script[: self.position], part.peers)
        return CollectiveError(
            f"rank {self.group.rank()}: {part.schedule}: step {transfer.step}: {doing} chunk "
            f"{transfer.chunk} {way} rank {part.peers[transfer.peer]} failed: {cause} ({ledger})",
            ledger,
            part.peers[transfer.peer],
        )
