"""How chunks travel in a run (`ChunkTransport`): by Gloo one by one, by NCCL in batches, or through shared memory."""

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from msgspec import Struct, field

from collectives.runtime.chunks import ChunkMemory, copy_rounded, reduce_into
from collectives.runtime.instructions import Actions, RankInstruction, RankPart, SharedPlan
from collectives.runtime.messages import (
    STAMPED,
    CallStamp,
    EagerBuffer,
    FailedReceive,
    PrepostedReceives,
    digest_tag,
    is_eager,
)
from collectives.shared_memory import OtherCallError
from ringsim.schedule import Receive, Send


class ChunkTransport(Struct):
    """The interface between a run and its transport: an action for each opcode, on the chunks in `memory`."""

    part: RankPart
    memory: ChunkMemory

    @property
    def instructions(self) -> Sequence[RankInstruction]:
        return self.part.instructions

    @property
    def actions(self) -> Actions:
        """Return the actions by opcode. They are not kept: methods and object would keep each other alive."""
        raise NotImplementedError

    def open(self) -> None:
        """Begin a run. Raises RuntimeError if other ranks cannot."""

    def close(self) -> None:
        """End a run that succeeded."""


class PostedReceive(NamedTuple):
    """A posted receive: the buffer where it lands, its work, and the eager buffer if it is eager."""

    buffer: torch.Tensor
    work: dist.Work | FailedReceive
    eager: EagerBuffer | None = None


class GlooTransport(ChunkTransport):
    """Sends and receives chunks one by one with torch.distributed.

    Receives are posted ahead, because Gloo's send is a rendezvous; those of short messages even before the call
    (`PrepostedReceives`).

    tags: of each chunk's messages, without the digest.
    outgoing: buffers of stamped chunks. copied: the chunks whose present value is in `outgoing`.
    """

    group: dist.ProcessGroup
    preposted: PrepostedReceives
    tags: list[int]
    stamp: CallStamp
    timeout: timedelta
    receives: dict[int, PostedReceive] = field(default_factory=dict)
    sends: dict[int, dist.Work] = field(default_factory=dict)
    outgoing: dict[int, EagerBuffer] = field(default_factory=dict)
    copied: set[int] = field(default_factory=set)

    @property
    def actions(self) -> Actions:
        return self.post_recv, self.wait_recv, self.apply, self.repost_recv, self.send, self.wait_send

    def close(self) -> None:
        for number, buffer in self.outgoing.items():
            self.preposted.outgoing[self.tags[number]].append(buffer)

    def post_recv(self, index: int) -> None:
        receive = self.part.receives[index]
        peer, tag = receive.peer, self.tags[receive.chunk]
        if is_eager(tag):
            eager = self.preposted.take(self.group, peer, tag)
            assert eager.work is not None
            message = self.memory.wire_chunks[receive.chunk]
            self.receives[index] = PostedReceive(eager.view_as(message), eager.work, eager)
            return
        buffer = self.memory.receive_buffer(receive)
        work = self.group.recv([buffer], peer, self._rendezvous_tag(tag))
        self.receives[index] = PostedReceive(buffer, work)

    def wait_recv(self, index: int) -> None:
        _, work, eager = self.receives[index]
        work.wait(self.timeout)
        if eager is not None and eager.stamp is not None and eager.stamp[1] != self.stamp.digest:
            peer = self.part.receives[index].peer
            detail = f": its message belongs to call {eager.stamp[0]}, and this rank is in call {self.stamp.position}"
            raise OtherCallError(peer, detail)

    def apply(self, index: int) -> None:
        receive = self.part.receives[index]
        self.memory.apply(receive, self.receives[index].buffer)
        self.copied.discard(receive.chunk)

    def repost_recv(self, index: int) -> None:
        eager = self.receives[index].eager
        if eager is not None:
            receive = self.part.receives[index]
            self.preposted.repost(self.group, receive.peer, self.tags[receive.chunk], eager)

    def send(self, index: int) -> None:
        send = self.part.sends[index]
        message, tag = self.memory.message(index, send.chunk), self.tags[send.chunk]
        if not is_eager(tag):
            tag = self._rendezvous_tag(tag)
        elif tag & STAMPED:
            message = self._stamped(send.chunk, message, tag)
        self.sends[index] = self.group.send([message], send.peer, tag)

    def wait_send(self, index: int) -> None:
        self.sends[index].wait(self.timeout)

    def _rendezvous_tag(self, tag: int) -> int:
        return digest_tag(tag, self.stamp.digest) if tag & STAMPED else tag

    def _stamped(self, number: int, message: torch.Tensor, tag: int) -> torch.Tensor:
        buffer = self.outgoing.get(number)
        if buffer is None:
            free = self.preposted.outgoing[tag]
            buffer = self.outgoing[number] = free.pop() if free else EagerBuffer(tag)
        if number in self.copied:
            return buffer.whole
        self.copied.add(number)
        return buffer.filled(message, self.stamp)  # earlier sends of the chunk have left: rule 4


class NcclTransport(ChunkTransport):
    """Launches all transfers of a step as one group: POST_RECV and SEND add to it, LAUNCH launches it.

    NCCL requires it: two ranks that send to each other one by one would deadlock. The current stream waits, not the
    CPU.

    batch: the operations since the last launch, without empty chunks.
    works: not yet waited for, in order; on NCCL one for the whole batch.
    """

    group: dist.ProcessGroup
    tags: list[int]
    buffers: dict[int, torch.Tensor] = field(default_factory=dict)
    batch: list[dist.P2POp] = field(default_factory=list)
    works: deque[dist.Work] = field(default_factory=deque)

    @property
    def actions(self) -> Actions:
        posted = self.post_recv, self.wait_recv, self.apply, self.repost_recv, self.send, self.wait_send
        return *posted, self.launch

    def post_recv(self, index: int) -> None:
        receive = self.part.receives[index]
        self.buffers[index] = self.memory.receive_buffer(receive)
        self._add(dist.irecv, self.buffers[index], receive)

    def send(self, index: int) -> None:
        send = self.part.sends[index]
        self._add(dist.isend, self.memory.message(index, send.chunk), send)

    def launch(self, _: int) -> None:
        if self.batch:
            self.works.extend(dist.batch_isend_irecv(self.batch))
            self.batch.clear()

    def wait_recv(self, index: int) -> None:
        self._wait(self.buffers[index])

    def apply(self, index: int) -> None:
        self.memory.apply(self.part.receives[index], self.buffers[index])

    def repost_recv(self, index: int) -> None:
        """Do nothing: no receive stays posted between calls."""

    def wait_send(self, index: int) -> None:
        self._wait(self.memory.wire_chunks[self.part.sends[index].chunk])

    def _add(self, op: Callable[..., dist.Work | None], message: torch.Tensor, transfer: Send | Receive) -> None:
        if message.numel():
            data = message.view(torch.uint8)  # NCCL knows fewer dtypes than torch
            tag = self.tags[transfer.chunk]
            self.batch.append(dist.P2POp(op, data, group=self.group, tag=tag, group_peer=transfer.peer))

    def _wait(self, message: torch.Tensor) -> None:
        if message.numel() and self.works:
            self.works.popleft().wait()


class SharedMemoryTransport(ChunkTransport):
    """Sends chunks to ranks of the same host through shared memory, and to other hosts by torch.distributed.

    A rank sends a chunk by *publishing* its location, from which the receiver adds or copies it: in the tensor, if
    `collectives.empty` made it; else in the rank's segment, after a copy; for a chunk that is only forwarded, where it
    was first published. A sum to be forwarded is written directly to the segment. Nothing is overwritten while another
    rank may read it (rule 4): in the segment each chunk of a portion has its own place, and in the tensor a chunk is
    published only if whatever overwrites it is computed from it (`plan.stays`).

    token: identifies schedule and tensor.
    remote: the transport to other hosts, if any.
    is_last: whether this is the run's last portion, after which the caller may write to the tensor.
    locations: where the present value of each chunk is published.
    arrived: the arrived tensor and its location, by receive; location None if from another host.
    """

    plan: SharedPlan
    token: int
    remote: GlooTransport | None
    is_last: bool
    locations: dict[int, int | None] = field(default_factory=dict)
    arrived: dict[int, tuple[torch.Tensor, int | None]] = field(default_factory=dict)

    @property
    def instructions(self) -> Sequence[RankInstruction]:
        return self.plan.instructions

    @property
    def actions(self) -> Actions:
        remote = self.remote
        if remote is None:
            return _never, self.wait_recv, self.apply, _never, self.send, _never
        return remote.post_recv, self.wait_recv, self.apply, remote.repost_recv, self.send, remote.wait_send

    def open(self) -> None:
        self.plan.local.open_portion(self.token)

    def close(self) -> None:
        if self.remote is not None:
            self.remote.close()
        self.plan.local.close_portion()
        if self.is_last:
            self.plan.local.take_back()

    def wait_recv(self, index: int) -> None:
        record = self.plan.awaited[index]
        if record < 0:
            assert self.remote is not None
            self.remote.wait_recv(index)
            self.arrived[index] = self.remote.receives[index].buffer, None
            return
        receive = self.part.receives[index]
        location = self.plan.local.wait_for(receive.peer, record)
        message = self.memory.wire_chunks[receive.chunk]
        self.arrived[index] = self.plan.local.view(location, message.numel(), message.dtype), location

    def apply(self, index: int) -> None:
        """Apply a receive. A sum that is sent on goes to this rank's segment; a copied chunk may stay in place."""
        receive, memory, is_kept = self.part.receives[index], self.memory, self.plan.is_kept[index]
        number = receive.chunk
        output = target = memory.targets[number]
        arrived, location = self.arrived[index]
        if receive.reduce:
            location, place = None, target
            if self.plan.sent_on[index] and memory.rounding is None and (location := self.lend(number, target)) is None:
                location, place = self.plan.local.allocate(target.numel(), target.dtype)
            # A sum that is kept is formed where its operand lies, and copied from there: memory is read once less.
            output = target if is_kept and memory.chunks[number] is target else place
            reduce_into(memory.reduce, output, memory.chunks[number], arrived)
            if place is not output:
                place.copy_(output)
        elif location is not None and memory.rounding is None:
            output = arrived
        elif arrived is not target:
            target.copy_(arrived)
        if output is not target and is_kept:
            target.copy_(output)
            if self.remote is not None:
                output = target  # to be sent from there
        memory.move(number, output, arrived)
        self.locations[number] = location
        if self.remote is not None:
            self.remote.copied.discard(number)

    def send(self, index: int) -> None:
        send, local = self.part.sends[index], self.plan.local
        peer, number, location = send.peer, send.chunk, self.locations.get(send.chunk)
        if self.remote is not None and peer not in local:
            chunks, target = self.memory.chunks, self.memory.targets[number]
            if local.is_borrowed(location) and chunks[number] is not target:
                # While torch.distributed sends it, its owner could fail and change it.
                chunks[number] = target.copy_(chunks[number])
            local.require_lenders()
            self.remote.send(index)
            return
        if location is None:
            location = self.locations[number] = self.place(index, number)
        local.publish(peer, self.plan.published[index], location)

    def lend(self, number: int, chunk: torch.Tensor) -> int | None:
        """Return the location of `chunk` in tensor or source; None if others cannot read it there."""
        stays = self.plan.stays[number] or chunk.data_ptr() != self.memory.targets[number].data_ptr()
        return self.plan.local.lend(chunk) if stays else None

    def place(self, index: int, number: int) -> int:
        """Return a location where others can read the chunk of send `index`: in place, or a copy in the segment."""
        chunk, message = self.memory.chunks[number], self.memory.wire_chunks[number]
        if self.memory.rounding is None and (lent := self.lend(number, chunk)) is not None:
            return lent
        location, place = self.plan.local.allocate(message.numel(), message.dtype)
        copy_rounded(place, chunk)
        self.memory.round_in_place(index, chunk, place)
        return location


def _never(_: int) -> None:
    raise AssertionError
