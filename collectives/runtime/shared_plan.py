"""`SharedPlan`: what a rank must know, beside its instructions, to execute a schedule over shared memory."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collectives.runtime.instructions import Opcode, RankInstruction, RankPart
from collectives.shared_memory import CACHE_LINE, MAX_RECORDS, LocalRanks
from ringsim.schedule import Schedule, rank_program, required

_ONLY_BETWEEN_HOSTS = (Opcode.POST_RECV, Opcode.REPOST_RECV, Opcode.WAIT_SEND)


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """One rank's part of a schedule, over shared memory.

    local: the ranks of this host.
    instructions: those of the part, less what only messages of torch.distributed need: to post receives, and to wait
    until sends have left.
    sent_on: of each receive: whether the rank sends its chunk to a rank of its host before it is written again.
    is_kept: of each receive: whether it is the last one that writes its chunk, and the collective leaves the chunk at
    this rank.
    records: of each receive from a rank of its host: the number of the sender's record; of the others -1.
    has_remote: whether any instruction concerns a rank of another host.
    """

    local: LocalRanks
    instructions: tuple[RankInstruction, ...]
    sent_on: tuple[bool, ...]
    is_kept: tuple[bool, ...]
    records: tuple[int, ...]
    has_remote: bool


def shared_plan(part: RankPart, local: LocalRanks) -> SharedPlan:
    """Return the plan of the rank that carries out `part`."""
    receives, schedule, rank = part.program.receives, part.schedule, part.peers.index(local.rank)
    are_local = [peer in local for peer in part.peers]
    sent_on, is_last = _uses_of_receives(part, are_local)
    wanted = required(schedule.collective, schedule.num_ranks, schedule.num_chunks)[1][rank]
    is_kept = (last and bool(wanted[receive.chunk]) for last, receive in zip(is_last, receives, strict=True))
    instructions = tuple(
        instruction
        for instruction in part.instructions
        if instruction.opcode not in _ONLY_BETWEEN_HOSTS or not are_local[part.transfer(*instruction).peer]
    )
    records = tuple(_records(part, rank, are_local))
    has_remote = not all(are_local[transfer.peer] for transfer in part.transfers)
    return SharedPlan(local, instructions, tuple(sent_on), tuple(is_kept), records, has_remote)


def _uses_of_receives(part: RankPart, are_local: Sequence[bool]) -> tuple[list[bool], list[bool]]:
    """`sent_on` of a `SharedPlan`, and of each receive whether it is the last one that writes its chunk.

    are_local: of each rank of the schedule.
    """
    receives = part.program.receives
    sent_on, is_last = [False] * len(receives), [True] * len(receives)
    writer: dict[int, int] = {}  # of each chunk: the receive that wrote it last, as the instructions go
    for opcode, index in part.instructions:
        if opcode is Opcode.APPLY:
            chunk = receives[index].chunk
            if chunk in writer:
                is_last[writer[chunk]] = False
            writer[chunk] = index
        elif opcode is Opcode.SEND and part.sends[index].chunk in writer and are_local[part.sends[index].peer]:
            sent_on[writer[part.sends[index].chunk]] = True
    return sent_on, is_last


def _records(part: RankPart, rank: int, are_local: Sequence[bool]) -> Iterator[int]:
    """`records` of a `SharedPlan`: each sender numbers its sends in the order in which it issues them."""
    numbers: dict[int, dict[tuple[int, int, int], int]] = {}
    for receive in part.program.receives:
        sender = receive.peer
        if are_local[sender] and sender not in numbers:
            sends = enumerate(rank_program(part.schedule, sender).sends)
            numbers[sender] = {(send.step, send.chunk, send.peer): number for number, send in sends}
        yield numbers[sender][receive.step, receive.chunk, rank] if are_local[sender] else -1


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
