"""`RankInstruction`: one action of a rank in a run, in an order that the schedule alone determines."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from collectives.shared_memory import CACHE_LINE, MAX_RECORDS, LocalRanks
from ringsim.schedule import (
    Flow,
    RankProgram,
    Receive,
    Schedule,
    Send,
    flow,
    held_at_end,
    most_published,
    stays_until_read,
)

POSTED_AHEAD = 2  # receives posted beyond the one being waited for
POSTED_SHARE = 16  # of several peers: this part of the chunks, if that is more,
MOST_POSTED_AHEAD = 8  # and no more than that, which keep connections busy: each takes a buffer


def posted_ahead(program: RankProgram, num_chunks: int) -> int:
    """Return how many receives of a schedule with `num_chunks` chunks are posted beyond the one being waited for.

    A rank that waits for one peer must let the others send; but posted receives take memory.
    """
    num_peers = len({receive.peer for receive in program.receives})
    return POSTED_AHEAD if num_peers < 2 else min(max(POSTED_AHEAD, num_chunks // POSTED_SHARE), MOST_POSTED_AHEAD)


class Opcode(IntEnum):
    """The actions on a receive or a send."""

    POST_RECV = 0  # say where it may land
    WAIT_RECV = 1  # wait until it has arrived
    APPLY = 2  # write it into its chunk
    REPOST_RECV = 3  # post the buffer it landed in again, for a later call
    SEND = 4
    WAIT_SEND = 5  # wait until it has left
    LAUNCH = 6  # in a batched list: launch all receives and sends that were posted since the last launch


Action = Callable[[int], None]  # of the index of a transfer
Actions = Sequence[Action]  # by the number of the opcode; to look that up in a dict takes Python 3.11 longer


class RankInstruction(NamedTuple):
    """One action. transfer: the index in the receives or sends of the `RankPart`; for LAUNCH, the step."""

    opcode: Opcode
    transfer: int


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's part of a schedule on a process group.

    ranks: the group's rank of each rank of the schedule; peers are ranks of the group.
    sends: in the order in which they are issued.
    num_staging_buffers: for messages that must not land in their chunk.
    """

    schedule: Schedule
    ranks: tuple[int, ...]
    receives: tuple[Receive, ...]
    sends: tuple[Send, ...]
    instructions: tuple[RankInstruction, ...]
    num_staging_buffers: int

    @classmethod
    def posted(cls, schedule: Schedule, program: RankProgram, ranks: tuple[int, ...]) -> Self:
        ahead = posted_ahead(program, schedule.num_chunks)
        instructions = instructions_of(program, ahead)
        return cls(schedule, ranks, *_on_group(program, ranks), instructions, num_staging_buffers(program, ahead))

    @classmethod
    def batched(cls, schedule: Schedule, program: RankProgram, ranks: tuple[int, ...]) -> Self:
        staged = Counter(receive.step for receive in program.receives if receive.needs_staging)
        num_buffers = max(staged.values(), default=0)
        return cls(schedule, ranks, *_on_group(program, ranks), batched_instructions_of(program), num_buffers)

    @property
    def transfers(self) -> list[Send | Receive]:
        return [*self.receives, *self.sends]

    def transfer(self, opcode: Opcode, index: int) -> Send | Receive:
        return self.sends[index] if opcode in (Opcode.SEND, Opcode.WAIT_SEND) else self.receives[index]


def _on_group(program: RankProgram, ranks: tuple[int, ...]) -> tuple[tuple[Receive, ...], tuple[Send, ...]]:
    receives = tuple(replace(receive, peer=ranks[receive.peer]) for receive in program.receives)
    return receives, tuple(replace(send, peer=ranks[send.peer]) for send in program.sends)


def instructions_of(program: RankProgram, ahead: int = POSTED_AHEAD) -> tuple[RankInstruction, ...]:
    """Return the instructions of a rank, in order: each receive and send once with each opcode that applies to it.

    ahead: see `posted_ahead`.
    """
    return tuple(_InstructionWriter(program, ahead).instructions)


def batched_instructions_of(program: RankProgram) -> tuple[RankInstruction, ...]:
    """Return the instructions of a rank by step: its transfers are launched, and waited for, together.

    A rank waits only for ranks in an earlier step, so it cannot deadlock.
    """
    receives, sends = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for index, receive in enumerate(program.receives):
        receives[receive.step].append(index)
    for index, send in enumerate(program.sends):
        sends[send.step].append(index)
    instructions = []
    for step in sorted({*receives, *sends}):
        instructions += [RankInstruction(Opcode.POST_RECV, index) for index in receives.get(step, [])]
        instructions += [RankInstruction(Opcode.SEND, index) for index in sends.get(step, [])]
        instructions.append(RankInstruction(Opcode.LAUNCH, step))
        instructions += [RankInstruction(Opcode.WAIT_RECV, index) for index in receives.get(step, [])]
        instructions += [RankInstruction(Opcode.WAIT_SEND, index) for index in sends.get(step, [])]
        instructions += [RankInstruction(Opcode.APPLY, index) for index in receives.get(step, [])]
    return tuple(instructions)


def num_staging_buffers(program: RankProgram, ahead: int = POSTED_AHEAD) -> int:
    """Return the largest number of receives with a staging buffer that are posted and not yet applied."""
    staged = [receive.needs_staging for receive in program.receives]
    posted = (staged[index : _horizon(program.receives, index, ahead)] for index in range(len(staged)))
    return max(map(sum, posted), default=0)


class _InstructionWriter:
    def __init__(self, program: RankProgram, ahead: int) -> None:
        self.instructions: list[RankInstruction] = []
        self._receives, self._ahead = program.receives, ahead
        self._num_posted = 0
        self._sends: list[Send] = []
        self._under_way: dict[int, Send] = {}  # by their indices in `_sends`
        self._to_issue: dict[int, list[int]] = defaultdict(list)  # of each chunk: the steps of its sends
        for send in program.sends:
            self._to_issue[send.chunk].append(send.step)
        self._post(0)
        self._send(program.first_sends, 0)
        for index, receive in enumerate(program.receives):
            self._post(index)
            self._add(Opcode.WAIT_RECV, index)
            self._wait_for(self._reading(receive.chunk, receive.after_send_step))  # rule 4
            self._add(Opcode.APPLY, index)
            self._send(receive.unlocks, index + 1)
            self._add(Opcode.REPOST_RECV, index)  # after the sends, for which others wait
        self._wait_for(self._under_way)

    def _add(self, opcode: Opcode, index: int) -> None:
        self.instructions.append(RankInstruction(opcode, index))

    def _post(self, applied: int, to_send: Sequence[Send] = ()) -> None:
        """Post the receives up to the horizon of the next one to apply, where possible.

        to_send: ready sends that wait for this.
        """
        for receive in self._receives[self._num_posted : _horizon(self._receives, applied, self._ahead)]:
            if not receive.needs_staging:
                if any(step <= receive.after_send_step for step in self._to_issue[receive.chunk]):
                    return  # nothing may land where a send is yet to read
                if applied < receive.after_receive or receive.after_send_step > self._receives[applied].step:
                    return
                if any(send.step < receive.after_send_step for send in to_send):
                    return
                # Rule 4. Waiting for a send is safe here: this rank has applied and sent everything of earlier steps,
                # and posted all receives of the send's step, so the receiver needs nothing more from this rank.
                self._wait_for(self._reading(receive.chunk, receive.step))
            self._add(Opcode.POST_RECV, self._num_posted)
            self._num_posted += 1

    def _send(self, sends: Sequence[Send], applied: int) -> None:
        for position, send in enumerate(sends):
            if self._ahead_of(send):  # rule 2
                # The peers may wait in the same way, so their receives must be posted.
                self._post(applied, sends[position:])
                self._wait_for(self._ahead_of(send))
            self._to_issue[send.chunk].remove(send.step)
            self._add(Opcode.SEND, len(self._sends))
            self._under_way[len(self._sends)] = send
            self._sends.append(send)

    def _reading(self, chunk: int, last_step: int) -> list[int]:
        under_way = self._under_way.items()
        return [index for index, sent in under_way if sent.chunk == chunk and sent.step <= last_step]

    def _ahead_of(self, send: Send) -> list[int]:
        """Return the sends to other peers that must leave before `send` on its channel."""
        under_way = self._under_way.items()
        return [index for index, sent in under_way if sent.channel == send.channel and sent.peer != send.peer]

    def _wait_for(self, sent: Iterable[int]) -> None:
        for index in tuple(sent):
            self._add(Opcode.WAIT_SEND, index)
            del self._under_way[index]


def _horizon(receives: Sequence[Receive], applied: int, ahead: int) -> int:
    """Return how many receives to have posted before receive `applied` is waited for.

    It includes all receives of its step, because rule 4 makes all ranks wait for their sends of this step.
    """
    horizon = applied
    while horizon < len(receives) and (horizon <= applied + ahead or receives[horizon].step == receives[applied].step):
        horizon += 1
    return horizon


_ONLY_BETWEEN_HOSTS = (Opcode.POST_RECV, Opcode.REPOST_RECV, Opcode.WAIT_SEND)


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """One rank's part of a schedule, over shared memory.

    instructions: the part's, without those that only messages need.
    sent_on: per receive, whether the rank sends the chunk within its host before it is written again.
    is_kept: per receive, whether it is the last write of a chunk that stays at this rank.
    awaited: per receive, the number of the sender's record; -1 if the sender is on another host.
    published: per send, the number of this rank's record.
    stays: per chunk, whether others can read it in this rank's tensor (`stays_until_read`).
    """

    local: LocalRanks
    instructions: tuple[RankInstruction, ...]
    sent_on: list[bool]
    is_kept: list[bool]
    awaited: list[int]
    published: list[int]
    stays: list[bool]
    has_remote: bool


def shared_plan(part: RankPart, local: LocalRanks) -> SharedPlan:
    """Return the plan of the rank that executes `part`."""
    rows, rank = flow(part.schedule), part.ranks.index(local.rank)
    is_local = np.array([peer in local for peer in part.ranks])
    received, sent = np.flatnonzero(rows.dst == rank), np.flatnonzero(rows.src == rank)
    wanted = held_at_end(part.schedule.collective, part.schedule.num_ranks, part.schedule.num_chunks)[rank]
    records = _records(rows)
    numbers = defaultdict[tuple[int, int, int], list[int]](list)  # several if a chunk goes to one rank more than once
    for row in sent.tolist():
        numbers[int(rows.step[row]), int(rows.chunk[row]), part.ranks[rows.dst[row]]].append(int(records[row]))
    return SharedPlan(
        local=local,
        instructions=tuple(
            instruction
            for instruction in part.instructions
            if instruction.opcode not in _ONLY_BETWEEN_HOSTS or part.transfer(*instruction).peer not in local
        ),
        sent_on=np.isin(received, rows.reads[sent[is_local[rows.dst[sent]]]]).tolist(),
        is_kept=(wanted[rows.chunk[received]] & ~rows.is_replaced[received]).tolist(),
        awaited=np.where(is_local[rows.src[received]], records[received], -1).tolist(),
        published=[numbers[send.step, send.chunk, send.peer].pop() for send in part.sends],
        stays=stays_until_read(part.schedule, rows, rank).tolist(),
        has_remote=not all(transfer.peer in local for transfer in part.transfers),
    )


def _records(rows: Flow) -> npt.NDArray[np.int64]:
    order = np.argsort(rows.src, kind="stable")
    numbers = np.empty(len(rows), dtype=np.int64)
    numbers[order] = np.arange(len(rows)) - np.searchsorted(rows.src[order], rows.src[order])
    return numbers


def portion_bytes(schedule: Schedule, slot_bytes: int, on_one_host: bool) -> int:
    """Return the most bytes of a chunk in one portion with which every rank's published data fits its slot; 0 if none.

    on_one_host: whether all ranks share memory, so that a copy is never published again.
    """
    rows = flow(schedule)
    if np.bincount(rows.src).max(initial=0) > MAX_RECORDS:
        return 0
    return slot_bytes // max(most_published(schedule, rows, on_one_host), 1) // CACHE_LINE * CACHE_LINE
