"""`ScheduleRun`: one execution of a schedule on one rank: what is posted, what is under way, what is applied."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist

from collectives.runtime.call_history import CallStamp
from collectives.runtime.errors import CollectiveError
from collectives.runtime.flight_record import flight_record_of
from collectives.runtime.instructions import Opcode, RankInstruction, RankPart
from collectives.runtime.preposted import EagerBuffer, FailedReceive, PrepostedReceives, is_eager
from collectives.runtime.profiler_spans import named, profiling
from collectives.runtime.tags import STAMPED, digest_tag
from collectives.shared_memory import OtherCallError
from ringsim.schedule import Collective, Receive, Send

ALIKE = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST)  # after these all ranks hold the same

Reduce = Callable[[torch.Tensor, torch.Tensor], object]


def reduce_into(reduce: Reduce, output: torch.Tensor, chunk: torch.Tensor, arrived: torch.Tensor) -> None:
    """Put into `output` what `reduce` makes of `chunk`, which stays as it is unless it is the output itself."""
    if output is chunk:
        reduce(chunk, arrived)
    elif reduce is torch.Tensor.add_:
        torch.add(chunk, arrived, out=output)  # at once: most of the time of a sum is reading and writing
    else:
        output.copy_(chunk)
        reduce(output, arrived)


class Event(NamedTuple):
    """One transfer of a rank at one moment, as the `log` of `execute` holds it.

    kind: "sent" as it issued a send, "applied" when it had applied a receive.
    step, chunk: of the schedule. peer: a rank of the group.
    time_s: of `time.perf_counter`, which on Linux is one clock for all processes of a machine.

        >>> log = []
        >>> collectives.execute(ringsim.ring_all_reduce(2), torch.ones(4), log=log)
        >>> sorted((event.kind, event.step) for event in log)
        [('applied', 0), ('applied', 1), ('sent', 0), ('sent', 1)]
    """

    kind: str
    step: int
    peer: int
    chunk: int
    time_s: float


class PostedReceive(NamedTuple):
    """A receive that is posted: where it lands, and the eager buffer if it is one.

    work: to wait for; None if it is one of a batch.
    """

    buffer: torch.Tensor
    work: dist.Work | FailedReceive | None = None
    eager: EagerBuffer | None = None


class ChunkTensors(NamedTuple):
    """The chunks of one run on one rank, or of one portion of it.

    chunks: where each chunk is now: in the target, or, until it is first written, in the source.
    targets: where each chunk is in the end.
    wire_chunks: what is sent of each chunk: `chunks` itself, or, if they travel in another dtype, tensors of that.
    """

    chunks: list[torch.Tensor]
    targets: list[torch.Tensor]
    wire_chunks: list[torch.Tensor]

    def cut(self, cuts: list[slice]) -> "ChunkTensors":
        """Of each chunk those elements."""
        chunks, targets = _cut_each(self.chunks, cuts), _cut_each(self.targets, cuts)
        same = self.wire_chunks is self.chunks
        return ChunkTensors(chunks, targets, chunks if same else _cut_each(self.wire_chunks, cuts))


def _cut_each(chunks: list[torch.Tensor], cuts: list[slice]) -> list[torch.Tensor]:
    return [chunk[cut] for chunk, cut in zip(chunks, cuts, strict=True)]


@dataclass(slots=True)
class ScheduleRun:
    """One run on one rank: it executes the rank's instructions, one by one.

    chunks, targets, wire_chunks: as `ChunkTensors` has them.
    staging_buffers: for what is too long to be eager and must not land in its chunk.
    tags: of each chunk's messages, but for the digest. stamp: of the call.
    outgoing: what is sent of each chunk, where it carries the stamp; `copied` are those that hold the chunk as it is.
    """

    part: RankPart
    group: dist.ProcessGroup
    preposted: PrepostedReceives
    instructions: tuple[RankInstruction, ...]
    chunks: list[torch.Tensor]
    targets: list[torch.Tensor]
    wire_chunks: list[torch.Tensor]
    staging_buffers: Sequence[torch.Tensor]
    tags: list[int]
    reduce: Reduce
    log: list[Event] | None
    stamp: CallStamp
    receives: list[PostedReceive] = field(default_factory=list)
    sends: list[dist.Work] = field(default_factory=list)
    outgoing: dict[int, EagerBuffer] = field(default_factory=dict)
    copied: set[int] = field(default_factory=set)
    num_staged: int = 0
    position: int = 0

    def run(self) -> None:
        actions = self._actions()
        if profiling():
            actions = named(actions, self.part)
        try:
            for self.position, (opcode, index) in enumerate(self.instructions):  # noqa: B020
                actions[opcode](index)
        except RuntimeError as error:
            opcode, index = self.instructions[self.position]
            if opcode is Opcode.APPLY:
                raise  # that was no transfer
            raise self._failure(opcode, index, error) from error
        for number, buffer in self.outgoing.items():
            self.preposted.put_outgoing(self.tags[number], buffer)
        if self.wire_chunks is not self.chunks and self.part.schedule.collective in ALIKE:
            for chunk, sent in zip(self.chunks, self.wire_chunks, strict=True):
                sent.copy_(chunk)  # who summed a chunk holds it as it was before it was rounded to be sent
                chunk.copy_(sent)

    def _actions(self) -> Sequence[Callable[[int], None]]:
        """What each opcode does, by its number; to look that up in a dict takes Python 3.11 longer."""
        return self._post_recv, self._wait_recv, self._apply, self._repost_recv, self._send, self._wait_send

    def _post_recv(self, index: int) -> None:
        receive = self.part.program.receives[index]
        chunk, peer = receive.chunk, self.part.peers[receive.peer]
        tag = self.tags[chunk]
        if is_eager(tag):
            eager = self.preposted.take(self.group, peer, tag)
            self.receives.append(PostedReceive(eager.view_as(self.wire_chunks[chunk]), eager.work, eager))
            return
        buffer = self._landing(receive)
        self.receives.append(PostedReceive(buffer, self.group.recv([buffer], peer, self._rendezvous_tag(tag))))

    def _landing(self, receive: Receive) -> torch.Tensor:
        """Where what is not eager lands."""
        chunk = receive.chunk
        if not receive.lands_apart:
            return (self.targets if self.wire_chunks is self.chunks else self.wire_chunks)[chunk]
        # It is free again: there are as many as such receives are ever posted and not yet applied.
        self.num_staged += 1
        return self.staging_buffers[self.num_staged % len(self.staging_buffers)][: len(self.wire_chunks[chunk])]

    def _wait_recv(self, index: int) -> None:
        _, work, eager = self.receives[index]
        assert work is not None
        work.wait()
        if eager is not None and eager.stamp is not None and eager.stamp[1] != self.stamp.digest:
            peer = self.part.peers[self.part.program.receives[index].peer]
            detail = f": it has sent this in call {eager.stamp[0]}, and this rank is in call {self.stamp.position}"
            raise OtherCallError(peer, detail)

    def _apply(self, index: int) -> None:
        receive, buffer = self.part.program.receives[index], self.receives[index].buffer
        chunk, target = self.chunks[receive.chunk], self.targets[receive.chunk]
        if receive.reduce:
            reduce_into(self.reduce, target, chunk, buffer)
        elif buffer is not target:
            target.copy_(buffer)
        self.chunks[receive.chunk] = target
        self.copied.discard(receive.chunk)
        self._record("applied", receive)

    def _repost_recv(self, index: int) -> None:
        eager = self.receives[index].eager
        if eager is not None:
            receive = self.part.program.receives[index]
            peer, tag = self.part.peers[receive.peer], self.tags[receive.chunk]
            self.preposted.repost(self.group, peer, tag, eager)

    def _send(self, index: int) -> None:
        send = self.part.sends[index]
        message, tag = self._message(send), self.tags[send.chunk]
        if not is_eager(tag):
            tag = self._rendezvous_tag(tag)
        elif tag & STAMPED:
            message = self._stamped(send.chunk, message, tag)
        self._record("sent", send)  # before it is: a receiver that has a core may be done before we go on
        self.sends.append(self.group.send([message], self.part.peers[send.peer], tag))

    def _rendezvous_tag(self, tag: int) -> int:
        return digest_tag(tag, self.stamp.digest) if tag & STAMPED else tag

    def _stamped(self, number: int, message: torch.Tensor, tag: int) -> torch.Tensor:
        """`message`, what is sent of that chunk, behind the stamp of the call."""
        buffer = self.outgoing.get(number)
        if buffer is None:
            buffer = self.outgoing[number] = self.preposted.take_outgoing(tag)
        if number in self.copied:
            return buffer.whole
        self.copied.add(number)
        return buffer.filled(message, self.stamp)  # earlier sends of the chunk have left: rule 4

    def _message(self, send: Send) -> torch.Tensor:
        """What is sent: the chunk, or what it is in the dtype that travels."""
        message, chunk = self.wire_chunks[send.chunk], self.chunks[send.chunk]
        if message is not chunk:
            message.copy_(chunk)  # rounds; if it is still being sent, it is the same once more
            chunk.copy_(message)  # in an exchange both sides must add the same two
        return message

    def _wait_send(self, index: int) -> None:
        self.sends[index].wait()

    def _record(self, kind: str, transfer: Send | Receive) -> None:
        if self.log is not None:
            peer = self.part.peers[transfer.peer]
            self.log.append(Event(kind, transfer.step, peer, transfer.chunk, time.perf_counter()))

    def _failure(self, opcode: Opcode, index: int, error: RuntimeError) -> CollectiveError:
        part = self.part
        is_send = opcode in (Opcode.SEND, Opcode.WAIT_SEND)
        transfer = part.sends[index] if is_send else part.program.receives[index]
        action, preposition = ("sending", "to") if is_send else ("receiving", "from")
        cause = (str(error).strip() or repr(error)).splitlines()[0]
        record = flight_record_of(part.program, self.instructions[: self.position], part.peers)
        return CollectiveError(
            f"rank {self.group.rank()}: {part.schedule}: step {transfer.step}: {action} chunk "
            f"{transfer.chunk} {preposition} rank {part.peers[transfer.peer]} failed: {cause} ({record})",
            record,
            part.peers[transfer.peer],
        )
