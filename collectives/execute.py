"""`execute`: a `Schedule` on real tensors, over point-to-point send and receive of torch.distributed.

Each rank runs its own part (`RankProgram`) in one thread. Receives are posted ahead, because Gloo's send
is a rendezvous: it writes at once only if the receiver has already said where to.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.distributed as dist

from collectives.errors import CollectiveError
from ringsim.partition import partition
from ringsim.program import RankProgram, Receive, Send, rank_program
from ringsim.schedule import Schedule

TAG = 0x52  # keeps our messages apart from the program's own sends and receives, which default to tag 0
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
    """Run `schedule` on every rank of `group`, each with its own `tensor`, in place.

    tensor: contiguous, on the CPU, of the same length and dtype on every rank; `partition` cuts it into the
    schedule's chunks.
    reduce: called with a chunk and what arrived for it; must change the chunk in place.
    log: gets an `Event` for every send and every receive, in the order in which they happened.

    Raises ValueError for a tensor or group that does not fit, CollectiveError when a peer fails or is later
    than the group's timeout.
    """
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("execute: torch.distributed is not initialised; call dist.init_process_group first")
    _check(schedule, tensor, group)
    program = _cached_program(schedule, group.rank())
    bounds = partition(tensor.numel(), schedule.num_chunks).tolist()
    flat = tensor.view(-1)
    chunks = [flat[low:high] for low, high in zip(bounds, bounds[1:], strict=False)]
    _Run(schedule, program, chunks, reduce, group, log).run()


@lru_cache(maxsize=256)
def _cached_program(schedule: Schedule, rank: int) -> RankProgram:
    return rank_program(schedule, rank)


def _check(schedule: Schedule, tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    if schedule.num_ranks != group.size():
        raise ValueError(f"{schedule}: the group has {group.size()} ranks; build the schedule for as many")
    if not tensor.is_contiguous():
        raise ValueError(f"{schedule}: the tensor with strides {tensor.stride()} must be contiguous")
    if tensor.device.type != "cpu":
        raise ValueError(f"{schedule}: the tensor is on {tensor.device}; only CPU tensors are supported so far")


@dataclass(slots=True)
class _Run:
    """One rank's execution: what is posted, what is under way, what is applied."""

    schedule: Schedule
    program: RankProgram
    chunks: list[torch.Tensor]
    reduce: Reduce
    group: dist.ProcessGroup
    log: list[Event] | None
    posted: list[tuple[dist.Work, torch.Tensor]] = field(default_factory=list)
    under_way: list[tuple[Send, dist.Work]] = field(default_factory=list)
    scratch: list[torch.Tensor] = field(default_factory=list)
    num_apart: int = 0

    def run(self) -> None:
        receives = self.program.receives
        num_slots = max((_apart(receives[i : _horizon(receives, i)]) for i in range(len(receives))), default=0)
        longest = max(len(chunk) for chunk in self.chunks)
        self.scratch = [self.chunks[0].new_empty(longest) for _ in range(num_slots)]
        self._post(0)
        self._send(self.program.first_sends)
        for index, receive in enumerate(receives):
            self._post(index)
            self._apply(index, receive)
            self._send(receive.then_send)
        self._wait_sends(lambda _: True)

    def _post(self, applied: int) -> None:
        """Post the receives up to the horizon of the one to be applied next, as far as they can be."""
        receives = self.program.receives
        for receive in receives[len(self.posted) : _horizon(receives, applied)]:
            if receive.lands_apart:
                # The slot is free again: there are as many as such receives are ever posted and not yet applied.
                slot = self.scratch[self.num_apart % len(self.scratch)]
                self.num_apart += 1
                buffer = slot[: len(self.chunks[receive.chunk])]
            elif applied >= receive.last_user and receive.sent_in < receives[applied].step:
                # Rule 4. To wait for a send here is safe: it is of an earlier step than anything this rank
                # has yet to apply, so its receiver needs nothing more from this rank to take it.
                self._wait_sends(lambda send, chunk=receive.chunk: send.chunk == chunk)  # type: ignore[misc]
                buffer = self.chunks[receive.chunk]
            else:
                return
            try:
                work = self.group.recv([buffer], receive.peer, TAG)
            except RuntimeError as error:
                raise self._error("receiving", receive, "from", error) from error
            self.posted.append((work, buffer))

    def _apply(self, index: int, receive: Receive) -> None:
        work, buffer = self.posted[index]
        try:
            work.wait()
        except RuntimeError as error:
            raise self._error("receiving", receive, "from", error) from error
        self._wait_sends(lambda send: send.step <= receive.free_after)  # rule 4
        chunk = self.chunks[receive.chunk]
        if receive.reduce:
            self.reduce(chunk, buffer)
        elif buffer is not chunk:
            chunk.copy_(buffer)
        self._record("applied", receive)

    def _send(self, sends: tuple[Send, ...]) -> None:
        for send in sends:
            try:
                work = self.group.send([self.chunks[send.chunk]], send.peer, TAG)
            except RuntimeError as error:
                raise self._error("sending", send, "to", error) from error
            self.under_way.append((send, work))
            self._record("sent", send)

    def _wait_sends(self, wanted: Callable[[Send], bool]) -> None:
        leaving = [(send, work) for send, work in self.under_way if wanted(send)]
        self.under_way = [(send, work) for send, work in self.under_way if not wanted(send)]
        for send, work in leaving:
            try:
                work.wait()
            except RuntimeError as error:
                raise self._error("sending", send, "to", error) from error

    def _record(self, kind: str, transfer: Send | Receive) -> None:
        if self.log is not None:
            self.log.append(Event(kind, transfer.step, transfer.peer, transfer.chunk, time.perf_counter()))

    def _error(self, doing: str, transfer: Send | Receive, way: str, error: RuntimeError) -> CollectiveError:
        cause = str(error).strip().splitlines()[0]
        return CollectiveError(
            f"rank {self.group.rank()}: {self.schedule}: step {transfer.step}: "
            f"{doing} chunk {transfer.chunk} {way} rank {transfer.peer} failed: {cause}"
        )


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


def _apart(receives: Sequence[Receive]) -> int:
    return sum(receive.lands_apart for receive in receives)
