"""What the executor copies over shared memory is what the simulator counts."""

from typing import cast

import pytest

from collectives.runtime.instructions import RankPart, instructions_of
from collectives.runtime.shared_plan import SharedPlan, portion_bytes, shared_plan
from collectives.shared_memory import CACHE_LINE, LocalRanks
from ringsim.registry.algorithms import ALGORITHMS, build
from ringsim.schedule.collective import Collective
from ringsim.schedule.memory_passes import memory_passes
from ringsim.schedule.program import rank_program
from ringsim.schedule.schedule import Schedule

SLOT = 2**20


class AllRanks:
    """Stands in for `LocalRanks`: all ranks share memory with this one."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __contains__(self, peer: int) -> bool:
        return True


def plan_of(schedule: Schedule, rank: int) -> tuple[RankPart, SharedPlan]:
    """One rank's part, as its executor has it."""
    program = rank_program(schedule, rank)
    part = RankPart(schedule, program, tuple(program.sends), tuple(range(schedule.num_ranks)))
    return part, shared_plan(part, instructions_of(program), cast(LocalRanks, AllRanks(rank)))


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize(("collective", "name"), ALGORITHMS, ids=lambda value: getattr(value, "value", value))
def test_the_simulator_counts_the_copies_of_the_executor(collective: Collective, name: str, num_ranks: int) -> None:
    """Of each transfer, and how much of a slot is used."""
    schedule = build(collective, name, num_ranks)
    passes = memory_passes(schedule)
    taken, row = {}, 0
    for number, step in enumerate(schedule.steps):
        for transfer in step:
            taken[number, transfer.src, transfer.dst, transfer.chunk] = bool(passes.taken[row])
            row += 1
    found = {}
    for rank in range(num_ranks):
        part, plan = plan_of(schedule, rank)
        for index, receive in enumerate(part.program.receives):
            copies = plan.is_wanted[index] and (plan.sent_on[index] or not receive.reduce)
            found[receive.step, receive.peer, rank, receive.chunk] = copies
    assert found == taken
    fits = SLOT // max(passes.most_published, 1) // CACHE_LINE * CACHE_LINE
    assert portion_bytes(schedule, SLOT, on_one_host=True) == fits
