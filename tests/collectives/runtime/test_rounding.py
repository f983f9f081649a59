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


def test_what_is_only_overwritten_or_not_left_here_is_not_rounded_in_place() -> None:
    """In a reduce-scatter no rank is left with what it has sent."""
    assert all(rounded(ring_reduce_scatter(4), rank) == ([], ()) for rank in range(4))


def test_in_an_exchange_both_sides_round_what_they_add_and_the_last_sum() -> None:
    """Both add the same two; after the last step nobody sends the sum."""
    in_place, at_end = rounded(recursive_doubling_all_reduce(4), 0)
    assert [step for step, _ in in_place] == [0, 1]
    assert at_end == (0,)


def test_a_rank_alone_rounds_what_it_has() -> None:
    """It holds what it would hold beside others."""
    assert rounded(ring_all_reduce(1), 0) == ([], (0,))
