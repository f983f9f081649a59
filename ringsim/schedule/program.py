"""`RankProgram`: what one rank does when a schedule is executed, in an order that the rule permits."""

from bisect import bisect_left
from dataclasses import dataclass

from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import NEVER


@dataclass(frozen=True, slots=True)
class Send:
    """One chunk to `peer`; `channel` and `data_dependency` as in `Step`."""

    step: int
    peer: int
    chunk: int
    channel: int
    data_dependency: int


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
    sends, receives = _own_transfers(schedule, rank)
    groups = _group_sends(sends, [(step, chunk) for step, _, chunk, *_ in receives])
    group_of = {send: index for index, group in enumerate(groups) for send in group}
    sends_of: dict[int, list[Send]] = {}
    for send in sends:
        sends_of.setdefault(send.chunk, []).append(send)
    written: dict[int, tuple[int, int]] = {}  # chunk: the step of its last write so far, and its number
    program = []
    for index, (step, peer, chunk, reduce, buffer_dependency) in enumerate(receives):
        earlier = [send for send in sends_of.get(chunk, []) if send.step <= step]
        sent_in = max((send.step for send in earlier), default=NEVER)
        last_user = max((group_of[send] for send in earlier), default=0)
        written_in, writes = written.get(chunk, (NEVER, 0))
        written[chunk] = step, index + 1
        lands_apart = reduce or step in (sent_in, written_in)
        then_send = tuple(groups[index + 1])
        last_user = max(last_user, writes)
        program.append(
            Receive(step, peer, chunk, reduce, buffer_dependency, lands_apart, last_user, sent_in, then_send)
        )
    return RankProgram(tuple(groups[0]), tuple(program))


def _own_transfers(schedule: Schedule, rank: int) -> tuple[list[Send], list[tuple[int, int, int, bool, int]]]:
    """Return the sends, and the receives as (step, peer, chunk, reduce, buffer_dependency), both in step order."""
    sends: list[Send] = []
    receives: list[tuple[int, int, int, bool, int]] = []
    for index, step in enumerate(schedule.steps):
        for row in (step.src == rank).nonzero()[0]:
            peer, chunk, channel = int(step.dst[row]), int(step.chunk[row]), int(step.channel[row])
            sends.append(Send(index, peer, chunk, channel, int(step.data_dependency[row])))
        for row in (step.dst == rank).nonzero()[0]:
            src, chunk, reduce = int(step.src[row]), int(step.chunk[row]), bool(step.reduce[row])
            receives.append((index, src, chunk, reduce, int(step.buffer_dependency[row])))
    return sends, receives


def _group_sends(sends: list[Send], receives: list[tuple[int, int]]) -> list[list[Send]]:
    """Return the sends in groups: group 0 at the start, group i + 1 once receive i, of that step and chunk, is applied.

    A rank waits for one thing at a time. So a send that may have to wait until one to another peer has left (rule 2)
    is put off until all receives of earlier steps are applied: they do not depend on it, and need not wait with it.
    Sends to one peer are issued in step order, also on different channels, since their messages are told apart by that.
    """
    groups: list[list[Send]] = [[] for _ in range(len(receives) + 1)]
    receive_steps = [step for step, _ in receives]
    written_in = {(chunk, step): group for group, (step, chunk) in enumerate(receives, 1)}
    latest_to: dict[int, int] = {}
    latest_on: dict[int, tuple[int, int]] = {}  # of a channel: the group and the peer
    for send in sends:
        group, peer = latest_on.get(send.channel, (0, send.peer))
        ready = 0 if send.data_dependency == NEVER else written_in[send.chunk, send.data_dependency]
        group = max(group, ready, latest_to.get(send.peer, 0))
        if peer != send.peer:
            group = max(group, bisect_left(receive_steps, send.step))
        latest_to[send.peer] = group
        latest_on[send.channel] = group, send.peer
        groups[group].append(send)
    return groups
