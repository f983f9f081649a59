"""What a rank rounds of its chunks: all that must be, which tests of the calls show, and nothing else."""

import pytest

from collectives.runtime.rounding import rounding_of
from ringsim.algorithms import ring_all_reduce, ring_reduce_scatter
from ringsim.algorithms.recursive import recursive_doubling_all_reduce
from ringsim.schedule import Schedule, rank_program


def rounded(schedule: Schedule, rank: int) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """Return the sends, as (step, chunk), whose chunk is rounded in place, and the chunks rounded at the end."""
    program = rank_program(schedule, rank)
    found = rounding_of(schedule, rank, program)
    in_place = [(send.step, send.chunk) for send, is_so in zip(program.sends, found.in_place, strict=True) if is_so]
    return in_place, found.at_end


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_in_a_ring_the_whole_sum_alone_is_rounded_where_it_is(num_ranks: int) -> None:
    """Partial sums are overwritten by the whole one."""
    for rank in range(num_ranks):
        schedule = ring_all_reduce(num_ranks)
        last_sent = {
            chunk: step
            for step, transfers in enumerate(schedule.steps)
            for src, _, chunk, *_ in transfers
            if src == rank
        }
        in_place, at_end = rounded(schedule, rank)
        assert {step for step, _ in in_place} <= set(range(num_ranks - 1, 2 * num_ranks - 2))
        assert all(last_sent[chunk] == step for step, chunk in in_place)
        assert at_end == ()


def test_other_schedules() -> None:
    """In an exchange both sides round what they add, and the last sum; a rank alone rounds what it would beside others.

    In a reduce-scatter no rank is left with what it has sent.
    """
    in_place, at_end = rounded(recursive_doubling_all_reduce(4), 0)
    assert ([step for step, _ in in_place], at_end) == ([0, 1], (0,))
    assert rounded(ring_all_reduce(1), 0) == ([], (0,))
    assert all(rounded(ring_reduce_scatter(4), rank) == ([], ()) for rank in range(4))
