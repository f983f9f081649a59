"""`RankProgram`: the operations of one rank, in an order that the rule of execution permits."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringsim.schedule.flow import NO_ROW, FlowRow, flow_of_rank
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.steps import NEVER


@dataclass(frozen=True, slots=True)
class Send:
    """Send one chunk to `peer`; `channel` as in `Transfer`."""

    step: int
    peer: int
    chunk: int
    channel: int


@dataclass(frozen=True, slots=True)
class Receive:
    """A receive of one chunk from `peer`, and its application.

    after_send_step: the rank's sends of the chunk up to this step must have left before the write (rule 4); NEVER:
    none.
    needs_staging: whether the message needs a staging buffer, as it is added, or the same step also sends the chunk or
    writes it in an earlier row. Otherwise it may land in the chunk once `after_receive` receives are applied.
    unlocks: the sends that are then possible, in the order of issue.
    """

    step: int
    peer: int
    chunk: int
    reduce: bool
    needs_staging: bool
    after_receive: int
    after_send_step: int
    unlocks: tuple[Send, ...]


@dataclass(frozen=True, slots=True)
class RankProgram:
    """The sends possible from the start, and the receives in the order of application."""

    first_sends: tuple[Send, ...]
    receives: tuple[Receive, ...]

    @property
    def sends(self) -> list[Send]:
        return [*self.first_sends, *(send for receive in self.receives for send in receive.unlocks)]


def rank_program(schedule: Schedule, rank: int) -> RankProgram:
    """Return the program of `rank`, with every send as early as rules 1 and 2 and one thread allow.

    Raises ValueError for a rank that the schedule does not have.
    """
    if not 0 <= rank < schedule.num_ranks:
        raise ValueError(f"rank {rank}: {schedule} has ranks 0..{schedule.num_ranks - 1}")
    rows = flow_of_rank(schedule, rank).listed()
    received = [index for index, row in enumerate(rows) if row.dst == rank]
    number = {NO_ROW: 0} | {index: number for number, index in enumerate(received, 1)}
    group_of = _group_sends(rows, rank, number)
    groups: list[list[Send]] = [[] for _ in number]
    sends_of = defaultdict[int, list[tuple[int, int]]](list)  # of each chunk: the step and the group of its sends
    for index, group in group_of.items():
        row = rows[index]
        groups[group].append(Send(row.step, row.dst, row.chunk, row.channel))
        sends_of[row.chunk].append((row.step, group))
    program = []
    for index in received:
        row = rows[index]
        earlier = [(step, group) for step, group in sends_of[row.chunk] if step <= row.step]
        after_send_step = max((step for step, _ in earlier), default=NEVER)
        written_in = NEVER if row.replaces == NO_ROW else rows[row.replaces].step
        receive = Receive(
            step=row.step,
            peer=row.src,
            chunk=row.chunk,
            reduce=row.reduce,
            needs_staging=row.reduce or row.step in (after_send_step, written_in),
            after_receive=max([number[row.replaces], *(group for _, group in earlier)]),
            after_send_step=after_send_step,
            unlocks=tuple(groups[number[index]]),
        )
        program.append(receive)
    return RankProgram(tuple(groups[0]), tuple(program))


def _group_sends(rows: Sequence[FlowRow], rank: int, number: Mapping[int, int]) -> dict[int, int]:
    """Return the group of each row that `rank` sends: 0 at the start, i once receive number i is applied.

    A rank waits for one thing at a time: a send that may wait for a send to another peer (rule 2) is delayed until all
    receives of earlier steps are applied. Sends to one peer are issued in step order on all channels, since the order
    identifies the messages.
    """
    steps_of_receives = [row.step for row in rows if row.dst == rank]
    group_of: dict[int, int] = {}
    latest_to: dict[int, int] = {}  # of a peer: the group
    latest_on: dict[int, tuple[int, int]] = {}  # of a channel: the group and the peer
    for index, row in enumerate(rows):
        if row.src != rank:
            continue
        group, peer_before = latest_on.get(row.channel, (0, row.dst))
        group = max(group, number[row.reads], latest_to.get(row.dst, 0))
        if peer_before != row.dst:
            group = max(group, bisect_left(steps_of_receives, row.step))
        latest_to[row.dst] = group
        latest_on[row.channel] = group, row.dst
        group_of[index] = group
    return group_of
