"""`SharedPlan`: what a rank must know, beside its instructions, to execute a schedule over shared memory."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from collectives.runtime.instructions import Opcode, RankInstruction, RankPart
from collectives.shared_memory import CACHE_LINE, MAX_RECORDS, LocalRanks
from ringsim.schedule import Schedule, rank_program, required


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """One rank's part of a schedule, over shared memory.

    sent_on: of each receive: whether the rank sends its chunk to a rank of its host before it is written again.
    is_last: of each receive: whether it is the last one that writes its chunk.
    is_wanted: of each receive: whether it is, and the collective leaves the chunk at this rank.
    records: of each receive from a rank of its host: the number of the sender's record; of the others -1.
    """

    sent_on: tuple[bool, ...]
    is_last: tuple[bool, ...]
    is_wanted: tuple[bool, ...]
    records: tuple[int, ...]


def shared_plan(part: RankPart, instructions: Sequence[RankInstruction], local: LocalRanks) -> SharedPlan:
    """That of the rank that carries out `part`, in the order of `instructions`."""
    receives, rank = part.program.receives, part.peers.index(local.rank)

    def is_local(peer: int) -> bool:
        return part.peers[peer] in local

    sent_on, is_last = [False] * len(receives), [True] * len(receives)
    writer: dict[int, int] = {}  # of each chunk: the receive that wrote it last, as the instructions go
    for opcode, index in instructions:
        if opcode is Opcode.APPLY:
            chunk = receives[index].chunk
            if chunk in writer:
                is_last[writer[chunk]] = False
            writer[chunk] = index
        elif opcode is Opcode.SEND and part.sends[index].chunk in writer and is_local(part.sends[index].peer):
            sent_on[writer[part.sends[index].chunk]] = True
    numbers: dict[int, dict[tuple[int, int, int], int]] = {}
    for peer in sorted({receive.peer for receive in receives if is_local(receive.peer)}):
        sends = enumerate(rank_program(part.schedule, peer).sends)
        numbers[peer] = {(send.step, send.chunk, send.peer): number for number, send in sends}
    records = [
        numbers[receive.peer][receive.step, receive.chunk, rank] if receive.peer in numbers else -1
        for receive in receives
    ]
    schedule = part.schedule
    wanted = required(schedule.collective, schedule.num_ranks, schedule.num_chunks)[1][rank]
    is_wanted = tuple(last and bool(wanted[receive.chunk]) for last, receive in zip(is_last, receives, strict=True))
    return SharedPlan(tuple(sent_on), tuple(is_last), is_wanted, tuple(records))


def portion_bytes(schedule: Schedule, slot_bytes: int, on_one_host: bool) -> int:
    """How many bytes of each chunk may be in a portion, so that what any rank publishes fits its segment.

    on_one_host: whether all ranks of the schedule share memory, so that a copy is never published anew.

    0 if nothing fits: then the schedule cannot be executed over shared memory.
    """
    most_sent, most_published = _most_sent_and_published(schedule, on_one_host)
    if most_sent > MAX_RECORDS:
        return 0
    return slot_bytes // max(most_published, 1) // CACHE_LINE * CACHE_LINE


def _most_sent_and_published(schedule: Schedule, on_one_host: bool) -> tuple[int, int]:
    """How many transfers a rank sends at most, and of how many chunks; those that stay as they are count once."""
    sent: Counter[int] = Counter()
    published = [set[tuple[int, int]]() for _ in range(schedule.num_ranks)]
    copied: set[tuple[int, int, int]] = set()
    for index, step in enumerate(schedule.steps):
        columns = step.src, step.dst, step.chunk, step.reduce, step.data_dependency
        for src, dst, chunk, reduce, version in zip(*(column.tolist() for column in columns), strict=True):
            sent[src] += 1
            if (src, chunk, version) not in copied:
                published[src].add((chunk, version))
            if on_one_host and not reduce:
                copied.add((dst, chunk, index))
            else:  # of several that write a chunk in one step the last one counts
                copied.discard((dst, chunk, index))
    return max(sent.values(), default=0), max(map(len, published), default=0)
