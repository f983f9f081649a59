"""What a rank does, one instruction after the other."""

from hypothesis import given

from collectives.runtime.instructions import POSTED_AHEAD, Opcode, instructions_of, num_staging_buffers
from ringsim import Collective, Schedule
from ringsim.registry import build
from ringsim.schedule.program import RankProgram, rank_program
from tests.ringsim.strategies import schedules


def programs(schedule: Schedule) -> list[RankProgram]:
    """Of all its ranks."""
    return [rank_program(schedule, rank) for rank in range(schedule.num_ranks)]


@given(schedules())
def test_each_instruction_is_given_once_and_in_order(schedule: Schedule) -> None:
    """A receive is posted, waited for, applied and posted again; a send is issued, and waited for before the end."""
    for program in programs(schedule):
        instructions = instructions_of(program)
        assert len(set(instructions)) == len(instructions) == 4 * len(program.receives) + 2 * len(program.sends)
        at = {instruction: position for position, instruction in enumerate(instructions)}
        for index in range(len(program.receives)):
            opcodes = Opcode.POST_RECV, Opcode.WAIT_RECV, Opcode.APPLY, Opcode.REPOST_RECV
            positions = [at[opcode, index] for opcode in opcodes]  # type: ignore[index]
            assert positions == sorted(positions)
        for index in range(len(program.sends)):
            assert at[Opcode.SEND, index] < at[Opcode.WAIT_SEND, index]  # type: ignore[index]
        for opcode in (Opcode.POST_RECV, Opcode.APPLY, Opcode.SEND):
            indices = [index for other, index in instructions if other is opcode]
            assert indices == sorted(indices)


@given(schedules())
def test_nothing_is_overwritten_while_it_is_sent(schedule: Schedule) -> None:
    """Rule 4: before a chunk is written, and before anything may land in it, the sends that read it have left."""
    for program in programs(schedule):
        left: set[int] = set()
        for opcode, index in instructions_of(program):
            if opcode is Opcode.WAIT_SEND:
                left.add(index)
            if opcode is Opcode.APPLY:
                receive = program.receives[index]
                before = [i for i, send in enumerate(program.sends) if send.step <= receive.buffer_dependency]
                assert left.issuperset(before)
            if opcode is Opcode.POST_RECV and not program.receives[index].lands_apart:
                receive = program.receives[index]
                reading = [
                    i
                    for i, send in enumerate(program.sends)
                    if send.chunk == receive.chunk and send.step <= receive.sent_in
                ]
                assert left.issuperset(reading)


@given(schedules())
def test_staging_buffers_suffice(schedule: Schedule) -> None:
    """Never are more receives that need a staging buffer posted and not yet applied than there are such buffers."""
    for program in programs(schedule):
        used = most = 0
        for opcode, index in instructions_of(program):
            if program.receives and program.receives[min(index, len(program.receives) - 1)].lands_apart:
                used += (opcode is Opcode.POST_RECV) - (opcode is Opcode.APPLY)
            most = max(most, used)
        assert most <= num_staging_buffers(program)


def test_a_rank_of_a_ring_of_two() -> None:
    """It says where both chunks may land before it sends, and waits for a send only where it must."""
    (program, _) = programs(build(Collective.ALL_REDUCE, "ring", 2))
    assert [f"{opcode.name.lower()} {index}" for opcode, index in instructions_of(program)] == [
        "post_recv 0",
        "send 0",
        "wait_send 0",
        "post_recv 1",
        "wait_recv 0",
        "apply 0",
        "send 1",
        "repost_recv 0",
        "wait_recv 1",
        "apply 1",
        "repost_recv 1",
        "wait_send 1",
    ]
    assert POSTED_AHEAD == 2
