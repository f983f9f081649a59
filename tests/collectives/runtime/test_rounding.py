"""What a rank rounds of its chunks: all that must be, which tests of the calls show, and nothing else."""

import pytest

from collectives.runtime.rounding import rounding_of
from ringsim import Schedule
from ringsim.algorithms import ring_all_reduce, ring_reduce_scatter
from ringsim.algorithms.recursive import recursive_doubling_all_reduce
from ringsim.schedule import rank_program


@pytest.mark.parametrize(
    ("schedule", "in_place", "at_end"),
    [
        (ring_all_reduce(4), {(3, 0), (4, 3), (5, 2)}, ()),  # partial sums are overwritten by the whole one
        (ring_reduce_scatter(4), set(), ()),  # no rank is left with what it has sent
        (recursive_doubling_all_reduce(4), {(0, 0), (1, 0)}, (0,)),  # both sides round what they add, and the last sum
        (ring_all_reduce(1), set(), (0,)),  # as beside others
    ],
    ids=str,
)
def test_what_rank_0_rounds(schedule: Schedule, in_place: set[tuple[int, int]], at_end: tuple[int, ...]) -> None:
    """The sends, as (step, chunk), whose chunk is rounded in place, and the chunks rounded at the end."""
    program = rank_program(schedule, 0)
    found = rounding_of(schedule, 0, program)
    sends = zip(program.sends, found.in_place, strict=True)
    assert ({(send.step, send.chunk) for send, is_rounded in sends if is_rounded}, found.at_end) == (in_place, at_end)
