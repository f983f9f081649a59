"""The program of a rank, one instruction after the other."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from collectives.runtime import instructions
from collectives.runtime.errors import flight_record_of
from collectives.runtime.instructions import POSTED_AHEAD, Opcode, RankPart, instructions_of, posted_ahead
from ringsim import Collective, Schedule
from ringsim.registry import build
from ringsim.schedule.program import RankProgram, Receive, Send, rank_program
from tests.ringsim.strategies import schedules

AHEAD = st.sampled_from((POSTED_AHEAD, 4 * POSTED_AHEAD))


def programs(schedule: Schedule) -> list[RankProgram]:
    """Of all its ranks."""
    return [rank_program(schedule, rank) for rank in range(schedule.num_ranks)]


@given(schedules(channels_of_a_pair=2), AHEAD)
def test_each_instruction_is_given_once_and_in_order(schedule: Schedule, ahead: int) -> None:
    """A receive is posted, waited for, applied and posted again; a send is issued, and waited for before the end."""
    for program in programs(schedule):
        in_order = instructions_of(program, ahead)
        assert len(set(in_order)) == len(in_order) == 4 * len(program.receives) + 2 * len(program.sends)
        at = {instruction: position for position, instruction in enumerate(in_order)}
        for index in range(len(program.receives)):
            opcodes = Opcode.POST_RECV, Opcode.WAIT_RECV, Opcode.APPLY, Opcode.REPOST_RECV
            positions = [at[opcode, index] for opcode in opcodes]  # type: ignore[index]
            assert positions == sorted(positions)
        for index in range(len(program.sends)):
            assert at[Opcode.SEND, index] < at[Opcode.WAIT_SEND, index]  # type: ignore[index]
        for opcode in (Opcode.POST_RECV, Opcode.APPLY, Opcode.SEND):
            indices = [index for other, index in in_order if other is opcode]
            assert indices == sorted(indices)


@given(schedules(channels_of_a_pair=2), AHEAD)
def test_each_instruction_obeys_the_rule(schedule: Schedule, ahead: int) -> None:
    """Rule 4: before a chunk is written, and before anything may land in it, the sends that read it have left.

    Rule 2: a send waits for those before it on its channel; what goes to one peer is issued in step order, since that
    is how it is received. And there are as many staging buffers as receives that are posted and not yet applied.
    """
    for program in programs(schedule):
        left, staged = set[int](), 0
        for opcode, index in instructions_of(program, ahead):
            if opcode is Opcode.WAIT_SEND:
                left.add(index)
            elif opcode is Opcode.SEND:
                send, before = program.sends[index], list(enumerate(program.sends[:index]))
                assert left.issuperset(i for i, s in before if s.channel == send.channel and s.peer != send.peer)
                assert all(s.step <= send.step for _, s in before if send.peer == s.peer or send.channel == s.channel)
            elif opcode in (Opcode.POST_RECV, Opcode.APPLY):
                receive = program.receives[index]
                staged += receive.needs_staging * (1 if opcode is Opcode.POST_RECV else -1)
                assert staged <= instructions.num_staging_buffers(program, ahead)
                sends, last = enumerate(program.sends), receive.after_send_step
                reading = {i for i, s in sends if s.chunk == receive.chunk and s.step <= last}
                assert left.issuperset(reading) or (opcode is Opcode.POST_RECV and receive.needs_staging)


@given(schedules(channels_of_a_pair=2), st.integers(0, 1))
def test_a_flight_record_holds_what_was_done_before(schedule: Schedule, rank: int) -> None:
    """Of an instruction that fails: the sends that have left, and the receives that are applied."""
    part = RankPart.posted(schedule, rank_program(schedule, rank), tuple(range(schedule.num_ranks)))
    done: Counter[Opcode] = Counter()
    for instruction in part.instructions:
        left, applied = (f"{done[opcode]} of" for opcode in (Opcode.WAIT_SEND, Opcode.APPLY))
        said = f"{left} {len(part.sends)} sends left, {applied} {len(part.receives)} receives applied"
        assert str(flight_record_of(part, instruction)) == said
        done[instruction.opcode] += 1


class Rendezvous:
    """All ranks of a schedule, where a send leaves when its receive is posted, in the order of its pair of ranks."""

    def __init__(self, schedule: Schedule, ahead: int) -> None:
        self.programs = programs(schedule)
        self.left = [list(instructions_of(program, ahead)) for program in self.programs]
        self.posted: Counter[tuple[int, int]] = Counter()  # receives, by sender and receiver
        self.issued: Counter[tuple[int, int]] = Counter()

    def run(self) -> bool:
        """Whether all come to their ends."""
        while any(self._go_on(rank) for rank in range(len(self.programs))):
            pass
        return not any(self.left)

    def _go_on(self, rank: int) -> bool:
        begin = len(self.left[rank])
        while self.left[rank] and self._may(rank, *self.left[rank][0]):
            opcode, index = self.left[rank].pop(0)
            if opcode is Opcode.POST_RECV:
                self.posted[self.programs[rank].receives[index].peer, rank] += 1
            elif opcode is Opcode.SEND:
                self.issued[rank, self.programs[rank].sends[index].peer] += 1
        return len(self.left[rank]) < begin

    def _may(self, rank: int, opcode: Opcode, index: int) -> bool:
        if opcode is Opcode.WAIT_SEND:
            peer = self.programs[rank].sends[index].peer
            return self.posted[rank, peer] > place(self.programs[rank].sends, index)
        if opcode is Opcode.WAIT_RECV:
            peer = self.programs[rank].receives[index].peer
            return self.issued[peer, rank] > place(self.programs[rank].receives, index)
        return True


def place(transfers: Sequence[Send] | Sequence[Receive], index: int) -> int:
    """How many before this one have the same peer."""
    return sum(transfer.peer == transfers[index].peer for transfer in transfers[:index])


def crowded_schedule(seed: int) -> Schedule:
    """More messages than are posted ahead, at any distance of steps."""
    rng = np.random.default_rng(seed)
    num_ranks, num_chunks = rng.integers(3, 7), rng.integers(1, 9)
    steps = []
    for num_rows in rng.integers(1, 5 * num_ranks, size=rng.integers(1, 12)):
        src, hop = rng.integers(num_ranks, size=num_rows), rng.integers(1, num_ranks, size=num_rows)
        columns = src, (src + hop) % num_ranks, rng.integers(num_chunks, size=num_rows)
        steps.append((*columns, rng.random(num_rows) < 0.5, rng.integers(rng.integers(1, 4), size=num_rows)))
    return Schedule.from_columns(Collective.ALL_REDUCE, "crowded", int(num_ranks), int(num_chunks), steps)


@example(111549041, 2)  # rank 2 would wait for what it sent in step 8 to leave before it sends what is of step 6
@given(st.integers(0, 2**32), AHEAD)
def test_no_rank_waits_for_ever(seed: int, ahead: int) -> None:
    """Whatever the channels: also if no message leaves before its receive is posted."""
    assert Rendezvous(crowded_schedule(seed), ahead).run()


# By the number of ranks.
POSTED = {
    "ring": {64: 2},
    "bidirectional_ring": {4: 2},
    "bidirectional_ring/16": {4: 8},
    "direct": {8: 2, 64: 4, 512: 8},
}


@pytest.mark.parametrize("name", POSTED)
def test_more_receives_are_posted_of_several_peers(name: str) -> None:
    """A sixteenth of the chunks, so that buffers take little of the tensor's memory, and few in any case."""
    for num_ranks, expected in POSTED[name].items():
        schedule = build(Collective.REDUCE_SCATTER, name, num_ranks)
        assert posted_ahead(rank_program(schedule, 0), schedule.num_chunks) == expected, num_ranks
