"""`Run`: one execution of a schedule on one rank: what is posted, what is under way, what is applied."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from collectives.errors import CollectiveError
from collectives.ledger import Entry, Ledger
from ringsim.collective import Collective
from ringsim.program import Receive, Send
from ringsim.schedule import NEVER

if TYPE_CHECKING:
    from collectives.execute import Executor

ALIKE = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST)  # after these all ranks hold the same

Reduce = Callable[[torch.Tensor, torch.Tensor], object]


class Source(NamedTuple):
    """A rank's contribution that is not to be changed.

    reduce_into: called with a place, a chunk and what arrived for it; puts into the place what they are together.
    """

    tensor: torch.Tensor
    reduce_into: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


class Event(NamedTuple):
    """One thing a rank did: `sent` when it issued a send, `applied` when it had applied a receive."""

    kind: str
    step: int
    peer: int
    chunk: int
    time_s: float


@dataclass(slots=True)
class Run:
    """One run on one rank: what is posted, what is under way, what is applied.

    chunks: where each chunk is now: at home, or, until it is first written, in the source.
    mirror: what is sent of each chunk: the chunks themselves, or, if they travel in another dtype, tensors of that.
    """

    executor: "Executor"
    chunks: list[torch.Tensor]
    homes: list[torch.Tensor]
    mirror: list[torch.Tensor]
    slots: list[torch.Tensor]
    reduce: Reduce
    reduce_into: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object] | None
    log: list[Event] | None
    posted: list[tuple[dist.Work, torch.Tensor]] = field(default_factory=list)
    under_way: list[tuple[Send, dist.Work]] = field(default_factory=list)
    slots_used: int = 0
    num_applied: int = 0
    num_sent: int = 0

    def run(self) -> None:
        program = self.executor.program
        if program.receives:
            self._post(0, before_sending=True)
        self._send(program.first_sends)
        for index, receive in enumerate(program.receives):
            self._post(index)
            self._apply(index, receive)
            self._send(receive.then_send)
        self._wait_sends(lambda _: True)
        if self.mirror is not self.chunks and self.executor.schedule.collective in ALIKE:
            for chunk, sent in zip(self.chunks, self.mirror, strict=True):
                sent.copy_(chunk)  # who summed a chunk holds it as it was before it was rounded to be sent
                chunk.copy_(sent)

    def _post(self, applied: int, before_sending: bool = False) -> None:
        """Post the receives up to the horizon of the one to be applied next, as far as they can be.

        before_sending: even the first sends are yet to be issued, so nothing may land where they read.
        """
        receives = self.executor.program.receives
        for receive in receives[len(self.posted) : self.executor.horizons[applied]]:
            if receive.lands_apart:
                # The slot is free again: there are as many as such receives are ever posted and not yet applied.
                slot = self.slots[self.slots_used % len(self.slots)]
                self.slots_used += 1
                buffer = slot[: len(self.chunks[receive.chunk])]
            elif before_sending and receive.sent_in != NEVER:
                return
            elif applied >= receive.last_user and receive.sent_in < receives[applied].step:
                # Rule 4. To wait for a send here is safe: it is of an earlier step than anything this rank
                # has yet to apply, so its receiver needs nothing more from this rank to take it.
                self._wait_sends(lambda send, chunk=receive.chunk: send.chunk == chunk)  # type: ignore[misc]
                buffer = (self.homes if self.mirror is self.chunks else self.mirror)[receive.chunk]
            else:
                return
            try:
                work = self.executor.group.recv([buffer], self.executor.peers[receive.peer], self.executor.tag)
            except RuntimeError as error:
                raise self._failure(receive, error) from error
            self.posted.append((work, buffer))

    def _apply(self, index: int, receive: Receive) -> None:
        work, buffer = self.posted[index]
        try:
            work.wait()
        except RuntimeError as error:
            raise self._failure(receive, error) from error
        self._wait_sends(lambda send: send.step <= receive.free_after)  # rule 4
        chunk, home = self.chunks[receive.chunk], self.homes[receive.chunk]
        if receive.reduce and self.reduce_into is not None and chunk is not home:
            self.reduce_into(home, chunk, buffer)
        elif receive.reduce:
            self.reduce(home, buffer)
        elif buffer is not home:
            home.copy_(buffer)
        self.chunks[receive.chunk] = home
        self.num_applied += 1
        self._record("applied", receive)

    def _send(self, sends: tuple[Send, ...]) -> None:
        for send in sends:
            data = self.mirror[send.chunk]
            if data is not self.chunks[send.chunk]:
                data.copy_(self.chunks[send.chunk])  # rounds; if it is still being sent, it is the same once more
                self.chunks[send.chunk].copy_(data)  # in an exchange both sides must add the same two
            try:
                work = self.executor.group.send([data], self.executor.peers[send.peer], self.executor.tag)
            except RuntimeError as error:
                raise self._failure(send, error) from error
            self.under_way.append((send, work))
            self.num_sent += 1
            self._record("sent", send)

    def _wait_sends(self, wanted: Callable[[Send], bool]) -> None:
        leaving = [(send, work) for send, work in self.under_way if wanted(send)]
        for send, work in leaving:
            try:
                work.wait()
            except RuntimeError as error:
                raise self._failure(send, error) from error
        self.under_way = [(send, work) for send, work in self.under_way if not wanted(send)]

    def _record(self, kind: str, transfer: Send | Receive) -> None:
        if self.log is not None:
            peer = self.executor.peers[transfer.peer]
            self.log.append(Event(kind, transfer.step, peer, transfer.chunk, time.perf_counter()))

    def _failure(self, transfer: Send | Receive, error: RuntimeError) -> CollectiveError:
        doing, way = ("sending", "to") if isinstance(transfer, Send) else ("receiving", "from")
        cause = (str(error).strip() or repr(error)).splitlines()[0]
        ledger = self._ledger()
        return CollectiveError(
            f"rank {self.executor.group.rank()}: {self.executor.schedule}: step {transfer.step}: {doing} chunk "
            f"{transfer.chunk} {way} rank {self.executor.peers[transfer.peer]} failed: {cause} ({ledger})",
            ledger,
        )

    def _ledger(self) -> Ledger:
        """How far each of this rank's transfers had got."""
        program, peers = self.executor.program, self.executor.peers
        under_way = {send for send, _ in self.under_way}
        entries = []
        for index, send in enumerate(program.sends):
            state = "not begun" if index >= self.num_sent else "under way" if send in under_way else "left"
            entries.append(Entry("send", send.step, peers[send.peer], send.chunk, state))
        for index, receive in enumerate(program.receives):
            state = "applied" if index < self.num_applied else "awaited" if index < len(self.posted) else "not begun"
            entries.append(Entry("receive", receive.step, peers[receive.peer], receive.chunk, state))
        return Ledger(tuple(sorted(entries, key=lambda entry: (entry.step, entry.kind))))
