"""What a rank does, line by line."""

from hypothesis import given

from collectives.runtime.instructions import POSTED_AHEAD, Do, num_apart, script_of
from ringsim import Collective, Schedule
from ringsim.registry import build
from ringsim.schedule.program import RankProgram, rank_program
from tests.ringsim.strategies import schedules


def programs(schedule: Schedule) -> list[RankProgram]:
    """Of all its ranks."""
    return [rank_program(schedule, rank) for rank in range(schedule.num_ranks)]


@given(schedules())
def test_each_word_is_said_once_and_in_order(schedule: Schedule) -> None:
    """A receive is posted, awaited, applied and freed; a send is issued, and waited for before the end."""
    for program in programs(schedule):
        lines = script_of(program)
        assert len(set(lines)) == len(lines) == 4 * len(program.receives) + 2 * len(program.sends)
        at = {line: position for position, line in enumerate(lines)}
        for index in range(len(program.receives)):
            words = [at[do, index] for do in (Do.POST, Do.ARRIVE, Do.APPLY, Do.FREE)]  # type: ignore[index]
            assert words == sorted(words)
        for index in range(len(program.sends)):
            assert at[Do.SEND, index] < at[Do.LEAVE, index]  # type: ignore[index]
        for do in (Do.POST, Do.APPLY, Do.SEND):
            said = [which for word, which in lines if word is do]
            assert said == sorted(said)


@given(schedules())
def test_nothing_is_overwritten_while_it_is_sent(schedule: Schedule) -> None:
    """Rule 4: before a chunk is written, and before anything may land in it, the sends that read it have left."""
    for program in programs(schedule):
        left: set[int] = set()
        for do, which in script_of(program):
            if do is Do.LEAVE:
                left.add(which)
            if do is Do.APPLY:
                receive = program.receives[which]
                before = [i for i, send in enumerate(program.sends) if send.step <= receive.buffer_dependency]
                assert left.issuperset(before)
            if do is Do.POST and not program.receives[which].lands_apart:
                receive = program.receives[which]
                reading = [
                    i
                    for i, send in enumerate(program.sends)
                    if send.chunk == receive.chunk and send.step <= receive.sent_in
                ]
                assert left.issuperset(reading)


@given(schedules())
def test_places_suffice(schedule: Schedule) -> None:
    """Never are more receives that land apart posted and not yet applied than there are places for."""
    for program in programs(schedule):
        used = most = 0
        for do, which in script_of(program):
            if program.receives and program.receives[min(which, len(program.receives) - 1)].lands_apart:
                used += (do is Do.POST) - (do is Do.APPLY)
            most = max(most, used)
        assert most <= num_apart(program)


def test_a_rank_of_a_ring_of_two() -> None:
    """It says where both chunks may land before it sends, and waits for a send only where it must."""
    (program, _) = programs(build(Collective.ALL_REDUCE, "ring", 2))
    assert [f"{do.name.lower()} {which}" for do, which in script_of(program)] == [
        "post 0",
        "send 0",
        "leave 0",
        "post 1",
        "arrive 0",
        "apply 0",
        "send 1",
        "free 0",
        "arrive 1",
        "apply 1",
        "free 1",
        "leave 1",
    ]
    assert POSTED_AHEAD == 2
