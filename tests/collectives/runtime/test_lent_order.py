"""Lent memory is never overwritten while another rank may still read there, in whatever order ranks come to run.

The transport runs for all ranks of a schedule in one thread, on real tensors. Each access to memory is noted with a
vector clock, which publishing and waiting pass on: two accesses that no chain of these orders may happen at once. So
one execution shows it for all.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from collectives.runtime.chunk_transports import SharedMemoryTransport
from collectives.runtime.chunks import ChunkMemory
from collectives.runtime.instructions import Opcode, RankPart, shared_plan
from collectives.shared_memory.local_ranks import OWNER_SHIFT
from ringsim import Collective, Schedule, Transfer
from ringsim.registry import build
from ringsim.schedule import rank_program, replay
from tests.ringsim.strategies import listed, schedules

Clock = tuple[int, ...]


class Access(NamedTuple):
    """One rank's, at a time."""

    rank: int
    clock: Clock
    writes: bool


class Host:
    """Ranks that share memory, as `SharedMemoryTransport` sees them, and which of them has read and written what."""

    def __init__(self, num_ranks: int) -> None:
        self.lent: dict[int, torch.Tensor] = {}  # by rank
        self.clocks = [[0] * num_ranks for _ in range(num_ranks)]
        self.published: dict[tuple[int, int], tuple[int, Clock]] = {}
        self.slots: list[torch.Tensor] = []
        self.accesses = defaultdict[int, list[Access]](list)

    def note(self, rank: int, tensor: torch.Tensor, writes: bool) -> None:
        """One element has been read, or written."""
        self.clocks[rank][rank] += 1
        self.accesses[tensor.data_ptr()].append(Access(rank, tuple(self.clocks[rank]), writes))

    def races(self) -> list[tuple[Access, Access]]:
        """Return the pairs of which one writes what the other may read, or write, at the same time."""
        return [
            (one, other)
            for accesses in self.accesses.values()
            for number, one in enumerate(accesses)
            for other in accesses[:number]
            if one.rank != other.rank and (one.writes or other.writes)
            if one.clock[other.rank] < other.clock[other.rank]
        ]


class OneOfHost:
    """`LocalRanks`, as far as a transport asks it."""

    def __init__(self, host: Host, rank: int) -> None:
        self.host, self.rank = host, rank

    def __contains__(self, _: int) -> bool:
        return True

    def lend(self, chunk: torch.Tensor) -> int | None:
        own = self.host.lent.get(self.rank)
        if own is None or chunk.untyped_storage().data_ptr() != own.untyped_storage().data_ptr():
            return None
        return self.rank << OWNER_SHIFT | chunk.data_ptr()

    def allocate(self, length: int, dtype: torch.dtype) -> tuple[int, torch.Tensor]:
        self.host.slots.append(torch.empty(length, dtype=dtype))
        return len(self.host.slots) - 1, self.host.slots[-1]

    def view(self, location: int, length: int, _: torch.dtype) -> torch.Tensor:
        if location < len(self.host.slots):
            return self.host.slots[location]
        own = self.host.lent[location >> OWNER_SHIFT]
        return own[((location & (1 << OWNER_SHIFT) - 1) - own.data_ptr()) // own.itemsize :][:length]

    def publish(self, _: int, index: int, location: int) -> None:
        self.host.published[self.rank, index] = location, tuple(self.host.clocks[self.rank])

    def wait_for(self, peer: int, index: int) -> int:
        location, clock = self.host.published[peer, index]
        own = self.host.clocks[self.rank]
        own[:] = map(max, own, clock)
        return location


class Watching(TorchDispatchMode):
    """Tells the host what the rank `rank` reads and writes."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host, self.rank = host, 0

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        match str(function):
            case "aten.add.out" | "aten.add_.Tensor":
                reads = args[:2]
            case "aten.copy_.default":
                reads = args[1:2]
            case name:
                assert "slice" in name or "empty" in name, name
                return result
        for tensor in reads:
            self.host.note(self.rank, tensor, writes=False)
        self.host.note(self.rank, result, writes=True)
        return result


def executed(schedule: Schedule, lenders: Collection[int], seed: int, all_stay: bool = False) -> tuple[Host, bool]:
    """Return the accesses of an execution with chunks of one element, and whether its bits are those of the replay.

    lenders: the ranks whose tensors others read where they lie; all_stay: also what would not stay until it is read.
    """
    num_ranks, num_chunks, draw = schedule.num_ranks, schedule.num_chunks, random.Random(seed)
    host = Host(num_ranks)
    tensors = [torch.randn(num_chunks, generator=torch.Generator().manual_seed(rank)) for rank in range(num_ranks)]
    expected = [tensor.clone() for tensor in tensors]
    replay(schedule, expected)
    host.lent = {rank: tensors[rank] for rank in lenders}
    running: list[tuple[int, Iterator[bool]]] = []
    watching = Watching(host)
    for rank, tensor in enumerate(tensors):
        part = RankPart.posted(schedule, rank_program(schedule, rank), tuple(range(num_ranks)))
        plan = shared_plan(part, OneOfHost(host, rank))  # type: ignore[arg-type]
        plan = replace(plan, stays=[all_stay or stays for stays in plan.stays])
        memory = ChunkMemory(list(tensor.split(1)), list(tensor.split(1)), [], torch.Tensor.add_, ())
        memory.wire_chunks = memory.chunks
        running.append((rank, _instructions(SharedMemoryTransport(part, memory, plan, 0, None, is_last=True), host)))
    with watching:
        while running:
            turn = draw.randrange(len(running))
            watching.rank, instructions = running[turn]
            try:
                next(instructions)
            except StopIteration:
                running.pop(turn)
    return host, torch.equal(torch.stack(tensors), torch.stack(expected))


def _instructions(transport: SharedMemoryTransport, host: Host) -> Iterator[bool]:
    """Do one after the other; what has yet to be published is asked for again."""
    actions = transport.actions
    for opcode, index in transport.instructions:
        if opcode is Opcode.WAIT_RECV:
            sender = transport.part.receives[index].peer
            while (sender, transport.plan.awaited[index]) not in host.published:
                yield False
        actions[opcode](index)
        yield True


# A rank adds to what it was passed, and reads that where it lies, also after the rank that it has passed it on to.
PASSED_ON = listed(
    [Transfer(0, 1, 0, False)], [Transfer(1, 2, 0, False)], [Transfer(2, 0, 0, True), Transfer(3, 1, 0, True)]
)
# Two ranks that exchange their sums would overwrite what the other one still reads.
EXCHANGED = build(Collective.ALL_REDUCE, "recursive_doubling", 4)


@example(PASSED_ON, {0}, 0)
@example(EXCHANGED, {0, 1, 2, 3}, 0)
@given(schedules(max_chunks=3, max_steps=7, channels_of_a_pair=2), st.sets(st.integers(0, 3)), st.integers(0, 99))
def test_no_order_changes_a_result(schedule: Schedule, lenders: set[int], seed: int) -> None:
    """With any transfers and any lenders no two accesses meet, and the result has the bits of the replay."""
    host, is_as_replayed = executed(schedule, lenders.intersection(range(schedule.num_ranks)), seed)
    assert host.races() == []
    assert is_as_replayed


@pytest.mark.parametrize(("schedule", "lenders"), [(EXCHANGED, range(4)), (PASSED_ON, {0})])
def test_races_are_found(schedule: Schedule, lenders: Collection[int]) -> None:
    """Where what does not stay is lent all the same."""
    assert executed(schedule, lenders, 0, all_stay=True)[0].races()
