"""`execute`: a `Schedule` on real tensors, over point-to-point send and receive of torch.distributed.

Each rank runs its own part (`RankProgram`) in one thread. Receives are posted ahead, because Gloo's send
is a rendezvous: it writes at once only if the receiver has already said where to.
"""

import itertools
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist

from collectives.errors import CollectiveError
from collectives.ledger import Entry, Ledger
from ringsim.collective import Collective
from ringsim.partition import Cut, partition
from ringsim.program import Receive, Send, rank_program
from ringsim.schedule import NEVER, Schedule

TAG = 0x52  # keeps our messages apart from the program's own sends and receives, which default to tag 0
ALIKE = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST)  # after these all ranks hold the same
POSTED_AHEAD = 2  # receives posted beyond the one being waited for

Reduce = Callable[[torch.Tensor, torch.Tensor], object]


class Event(NamedTuple):
    """One thing a rank did: `sent` when it issued a send, `applied` when it had applied a receive."""

    kind: str
    step: int
    peer: int
    chunk: int
    time_s: float


def execute(
    schedule: Schedule,
    tensor: torch.Tensor,
    *,
    reduce: Reduce = torch.Tensor.add_,
    group: dist.ProcessGroup | None = None,
    log: list[Event] | None = None,
) -> None:
    """Run `schedule` once: `Executor(schedule, group).run(tensor, ...)`.

    group: the default process group if None; ValueError if there is none.
    """
    Executor(schedule, resolve(group)).run(tensor, reduce=reduce, log=log)


def resolve(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """`group`, or the default one. Raises ValueError if there is none, or this rank is not in it."""
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("torch.distributed is not initialised: call dist.init_process_group first")
    if not isinstance(group, dist.ProcessGroup):  # torch's mark for it is a number
        raise ValueError("group: this rank is not in it; only its members call its collectives")
    return group


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the memory of `tensor` can be sent as it is: elements in order, none to be negated when read."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


class Executor:
    """One schedule on one process group, to be run any number of times; keeps what every run needs.

    Memory: `num_slots` chunks for what arrives to be added (as many as one step brings to this rank, and at
    least three where there are as many), kept between runs, because fresh memory costs more than the sending.

    root: the rank of the group that does what the schedule says of rank 0; the others follow it in order.
    tag: of the messages; others than those of the collectives need another.
    cut: where the bounds of the chunks lie.

    Raises ValueError if the schedule has another number of ranks than the group.
    """

    def __init__(
        self, schedule: Schedule, group: dist.ProcessGroup, root: int = 0, tag: int = TAG, cut: Cut = partition
    ) -> None:
        if schedule.num_ranks != group.size():
            raise ValueError(f"{schedule}: the group has {group.size()} ranks; build the schedule for as many")
        self.schedule = schedule
        self._group = weakref.ref(group)  # so that who keeps executors by group does not keep the group
        self.program = rank_program(schedule, (group.rank() - root) % group.size())
        # Whom the schedule calls rank i, in the group: with another root than 0, all are moved along by as much.
        self.peers = [(rank + root) % group.size() for rank in range(group.size())]
        receives = self.program.receives
        self.horizons = [_horizon(receives, index) for index in range(len(receives))]
        self.num_slots = max(
            (sum(r.lands_apart for r in receives[index:horizon]) for index, horizon in enumerate(self.horizons)),
            default=0,
        )
        self.tag, self.cut = tag, cut
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._mirror = torch.empty(0, dtype=torch.uint8)

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group. Raises ValueError once it has been destroyed."""
        group = self._group()
        if group is None:
            raise ValueError(f"{self.schedule}: the process group has been destroyed")
        return group

    def run(
        self,
        tensor: torch.Tensor,
        *,
        reduce: Reduce = torch.Tensor.add_,
        wire: torch.dtype | None = None,
        log: list[Event] | None = None,
    ) -> None:
        """Run the schedule on every rank of the group, each with its own `tensor`, in place.

        tensor: contiguous, on the CPU, of the same length and dtype on every rank.
        reduce: called with a chunk and what arrived for it; must change the chunk in place.
        wire: the dtype in which chunks travel, that of `tensor` if None. Each send rounds what it sends, for its sender
        too; sums are kept in the dtype of `tensor`.
        log: gets an `Event` for every send and every receive, in the order in which they happened.

        Not to be called again before it has returned. Raises ValueError for a tensor that does not fit,
        CollectiveError when a peer fails or is later than the group's timeout.
        """
        self._check(tensor)
        bounds = self.cut(tensor.numel(), self.schedule.num_chunks).tolist()
        chunks = _cut(tensor.detach().view(-1), bounds)
        wire = wire or tensor.dtype
        mirror = chunks
        if wire != tensor.dtype:
            self._mirror = _room(self._mirror, tensor.numel(), wire)
            mirror = _cut(self._mirror, bounds)
        length = max(len(chunk) for chunk in chunks)
        self._scratch = _room(self._scratch, self.num_slots * length, wire)
        slots = [self._scratch[index * length : (index + 1) * length] for index in range(self.num_slots)]
        _Run(self, chunks, mirror, slots, reduce, log).run()

    def _check(self, tensor: torch.Tensor) -> None:
        if not tensor.is_contiguous():
            raise ValueError(f"{self.schedule}: the tensor with strides {tensor.stride()} must be contiguous")
        if not is_plain(tensor):
            raise ValueError(f"{self.schedule}: the tensor is a conjugated or negated view; resolve_conj, resolve_neg")
        if tensor.device.type != "cpu":
            raise ValueError(
                f"{self.schedule}: the tensor is on {tensor.device}; only CPU tensors are supported so far"
            )


def _cut(flat: torch.Tensor, bounds: list[int]) -> list[torch.Tensor]:
    return [flat[low:high] for low, high in itertools.pairwise(bounds)]


def _room(kept: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """`kept` if it will do: fresh memory costs more than the sending."""
    return kept if kept.dtype == dtype and len(kept) >= length else torch.empty(length, dtype=dtype)


def _horizon(receives: Sequence[Receive], applied: int) -> int:
    """How many receives to have posted before the one numbered `applied` is waited for.

    At least all of its step: rule 4 makes a rank wait for its own sends of this step, and so does every
    peer, each of which therefore must find its receive posted.
    """
    horizon = applied
    while horizon < len(receives) and (
        horizon <= applied + POSTED_AHEAD or receives[horizon].step == receives[applied].step
    ):
        horizon += 1
    return horizon


@dataclass(slots=True)
class _Run:
    """One run on one rank: what is posted, what is under way, what is applied.

    mirror: what is sent of each chunk, and where it lands if it need not land apart: the chunks themselves, or, if they
    travel in another dtype, as many tensors of that.
    """

    executor: Executor
    chunks: list[torch.Tensor]
    mirror: list[torch.Tensor]
    slots: list[torch.Tensor]
    reduce: Reduce
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
                buffer = self.mirror[receive.chunk]
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
        chunk = self.chunks[receive.chunk]
        if receive.reduce:
            self.reduce(chunk, buffer)
        elif buffer is not chunk:
            chunk.copy_(buffer)
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
