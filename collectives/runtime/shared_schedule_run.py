"""`SharedScheduleRun`: an execution in which ranks of a host read what they receive where its sender has put it.

To send, a rank publishes where the chunk is: in its own segment, to which it copies it if it is not there yet, or, if
it has only been passed on to this rank, where it was published first. The receiver adds it, or copies it, from there.
What is to be sent on is added straight into the receiver's own segment. As each chunk that is published has a place of
its own in the portion, nothing is ever overwritten that somebody may still read (rule 4).
"""

from dataclasses import dataclass, field

import torch

from collectives.runtime.errors import CollectiveError
from collectives.runtime.flight_record import flight_record_of
from collectives.runtime.schedule_run import PostedReceive, ScheduleRun, reduce_into
from collectives.runtime.shared_plan import SharedPlan
from collectives.runtime.work import Work
from collectives.shared_memory import LateRankError, LocalRanks, OtherCallError

_AWAITED = PostedReceive(torch.empty(0))  # what is not posted anywhere
_PUBLISHED = Work.over([])  # stands for a send that is over already: nobody waits for it


@dataclass(slots=True)
class SharedScheduleRun(ScheduleRun):
    """A run, or a portion of it. Messages to and from ranks of other hosts go as in `ScheduleRun`.

    local: the ranks of this host. plan: of this rank. token: stands for the schedule and the tensor.
    locations: where each chunk is published; None if, as it is now, it is not.
    arrived: where what each receive has brought is published; None if it came from another host.
    """

    local: LocalRanks = field(kw_only=True)
    plan: SharedPlan = field(kw_only=True)
    token: int = field(kw_only=True)
    locations: list[int | None] = field(init=False)
    arrived: list[int | None] = field(default_factory=list)

    def run(self) -> None:
        self.locations = [None] * len(self.chunks)
        try:
            self._open_portion()
            ScheduleRun.run(self)
            self.local.close_portion()
        except BaseException:
            self.local.fail()  # whoever waits for this rank need not wait any longer
            raise

    def _open_portion(self) -> None:
        try:
            self.local.open_portion(self.token)
        except RuntimeError as error:
            record = flight_record_of(self.part.program, (), self.part.peers)
            peer = error.peer if isinstance(error, LateRankError | OtherCallError) else None
            before = f"rank {self.group.rank()}: {self.part.schedule}: before step 0: "
            raise CollectiveError(f"{before}{error} ({record})", record, peer) from error

    def _post_recv(self, index: int) -> None:
        if self.plan.records[index] < 0:
            ScheduleRun._post_recv(self, index)
        else:
            self.receives.append(_AWAITED)
        self.arrived.append(None)

    def _wait_recv(self, index: int) -> None:
        record = self.plan.records[index]
        if record < 0:
            ScheduleRun._wait_recv(self, index)
            return
        receive = self.part.program.receives[index]
        location = self.local.wait_for(self.part.peers[receive.peer], record)
        message = self.wire_chunks[receive.chunk]
        self.arrived[index] = location
        self.receives[index] = PostedReceive(self.local.view(location, message.numel(), message.dtype))

    def _apply(self, index: int) -> None:
        receive = self.part.program.receives[index]
        self.copied.discard(receive.chunk)
        if receive.reduce:
            self._reduce(index, receive.chunk)
        else:
            self._take(index, receive.chunk)
        self._record("applied", receive)

    def _reduce(self, index: int, number: int) -> None:
        """Add what has arrived, in this rank's segment if the sum is sent on as it is."""
        chunk, target, arrived = self.chunks[number], self.targets[number], self.receives[index].buffer
        output, location = target, None
        if self.plan.sent_on[index] and self.wire_chunks is self.chunks:
            location, output = self.local.allocate(target.numel(), target.dtype)
        reduce_into(self.reduce, output, chunk, arrived)
        self._write(index, number, output, location)

    def _take(self, index: int, number: int) -> None:
        """Let what has arrived be the chunk, where it is."""
        output, location = self.receives[index].buffer, self.arrived[index]
        if location is None or self.wire_chunks is not self.chunks:
            target = self.targets[number]
            if output is not target:
                target.copy_(output)
            output = target
        self._write(index, number, output, location)

    def _write(self, index: int, number: int, output: torch.Tensor, location: int | None) -> None:
        target = self.targets[number]
        if output is not target and self.plan.is_kept[index]:
            target.copy_(output)
        if self.wire_chunks is self.chunks:
            self.wire_chunks[number] = output
        self.chunks[number] = output
        self.locations[number] = location

    def _send(self, index: int) -> None:
        send = self.part.sends[index]
        peer = self.part.peers[send.peer]
        if peer not in self.local:
            ScheduleRun._send(self, index)
            return
        self._record("sent", send)  # with the copy, which is what sending takes here
        location = self.locations[send.chunk]
        if location is None:
            location = self.locations[send.chunk] = self._place(send.chunk)
        self.local.publish(peer, index, location)
        self.sends.append(_PUBLISHED)

    def _wait_send(self, index: int) -> None:
        if self.sends[index] is not _PUBLISHED:
            ScheduleRun._wait_send(self, index)

    def _place(self, number: int) -> int:
        """Copy a chunk to where others can read it; returns its location."""
        chunk, message = self.chunks[number], self.wire_chunks[number]
        location, place = self.local.allocate(message.numel(), message.dtype)
        place.copy_(chunk)  # rounds, if it travels in another dtype
        if self.wire_chunks is not self.chunks:
            chunk.copy_(place)  # in an exchange both sides must add the same two
        return location
