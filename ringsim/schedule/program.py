"""`RankProgram`: what one rank does when a schedule is executed, in an order that the rule permits."""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ringsim.schedule.flow import NO_ROW, Flow, flow_of_rank
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import NEVER


@dataclass(frozen=True, slots=True)
class Send:
    """One chunk to `peer`; `channel` as in `Step`."""

    step: int
    peer: int
    chunk: int
    channel: int


@dataclass(frozen=True, slots=True)
class Receive:
    """One chunk from `peer`, and what its arrival has to do with the rank's other transfers.

    `buffer_dependency`: as in `Step`; the rank's sends of the chunk up to this step must have left before the write.
    `lands_apart`: what arrives needs a place of its own: to be added, or because the chunk is also sent, or
    written by an earlier row, in this very step. Otherwise it may land in the chunk directly, once
    `last_user` receives are applied (after which no earlier transfer of this rank is yet to touch the chunk)
    and the sends of it up to step `sent_in` (NEVER if there is none) have left.
    `then_send`: the sends that become possible once this receive is applied, in the order to issue them.
    """

    step: int
    peer: int
    chunk: int
    reduce: bool
    buffer_dependency: int
    lands_apart: bool
    last_user: int
    sent_in: int
    then_send: tuple[Send, ...]


@dataclass(frozen=True, slots=True)
class RankProgram:
    """The sends possible from the start, then the receives in the order in which they are applied."""

    first_sends: tuple[Send, ...]
    receives: tuple[Receive, ...]

    @property
    def sends(self) -> list[Send]:
        """All sends, in the order in which they are issued."""
        return [*self.first_sends, *(send for receive in self.receives for send in receive.then_send)]


def rank_program(schedule: Schedule, rank: int) -> RankProgram:
    """Return the part of `rank` in `schedule`, every send as early as rules 1 and 2 and one thread allow.

    Raises ValueError for a rank that the schedule does not have.
    """
    if not 0 <= rank < schedule.num_ranks:
        raise ValueError(f"rank {rank}: {schedule} has ranks 0..{schedule.num_ranks - 1}")
    rows = flow_of_rank(schedule, rank)
    received = np.flatnonzero(rows.dst == rank).tolist()
    number = {NO_ROW: 0} | {row: number for number, row in enumerate(received, 1)}
    group_of = _group_sends(rows, np.flatnonzero(rows.src == rank).tolist(), number)
    groups: list[list[Send]] = [[] for _ in number]
    sends_of = defaultdict[int, list[tuple[int, int]]](list)  # of each chunk: the step and the group of its sends
    for row, group in group_of.items():
        send = Send(*(int(column[row]) for column in (rows.step, rows.dst, rows.chunk, rows.channel)))
        groups[group].append(send)
        sends_of[send.chunk].append((send.step, group))
    program = []
    for row in received:
        step, chunk, reduce = int(rows.step[row]), int(rows.chunk[row]), bool(rows.reduce[row])
        earlier = [(sent_in, group) for sent_in, group in sends_of[chunk] if sent_in <= step]
        sent_in = max((sent_in for sent_in, _ in earlier), default=NEVER)
        written = int(rows.replaces[row])
        written_in = NEVER if written == NO_ROW else int(rows.step[written])
        receive = Receive(
            step=step,
            peer=int(rows.src[row]),
            chunk=chunk,
            reduce=reduce,
            buffer_dependency=int(rows.free_after[row]),
            lands_apart=reduce or step in (sent_in, written_in),
            last_user=max([number[written], *(group for _, group in earlier)]),
            sent_in=sent_in,
            then_send=tuple(groups[number[row]]),
        )
        program.append(receive)
    return RankProgram(tuple(groups[0]), tuple(program))


def _group_sends(rows: Flow, sent: list[int], number: dict[int, int]) -> dict[int, int]:
    """Return the group of each row that the rank sends: 0 at the start, i once receive number i is applied.

    A rank waits for one thing at a time. So a send that may have to wait until one to another peer has left (rule 2)
    is put off until all receives of earlier steps are applied: they do not depend on it, and need not wait with it.
    Sends to one peer are issued in step order, also on different channels, since their messages are told apart by that.

    number: of each row that the rank receives, from 1; 0 of NO_ROW.
    """
    steps_of_receives = [int(rows.step[row]) for row in number if row != NO_ROW]
    group_of: dict[int, int] = {}
    latest_to: dict[int, int] = {}  # of a peer: the group
    latest_on: dict[int, tuple[int, int]] = {}  # of a channel: the group and the peer
    for row in sent:
        step, peer, channel = int(rows.step[row]), int(rows.dst[row]), int(rows.channel[row])
        group, peer_before = latest_on.get(channel, (0, peer))
        group = max(group, number[int(rows.reads[row])], latest_to.get(peer, 0))
        if peer_before != peer:
            group = max(group, bisect_left(steps_of_receives, step))
        latest_to[peer] = group
        latest_on[channel] = group, peer
        group_of[row] = group
    return group_of
