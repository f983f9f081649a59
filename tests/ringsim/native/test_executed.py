"""Which schedule is executed for a name and a size."""

import pytest

from ringsim.algorithms.rings import gloo_ring_all_reduce
from ringsim.native.executed import executed_schedule, gloo_pieces
from ringsim.registry.algorithms import build
from ringsim.schedule.collective import Collective
from ringsim.schedule.partition import gloo_partition, partition

MIB = 2**20


@pytest.mark.parametrize(("size_bytes", "pieces"), [(0, 2), (8 * MIB, 2), (8 * MIB + 1, 3), (16 * MIB, 4)])
def test_gloo_s_ring_depends_on_the_size(size_bytes: int, pieces: int) -> None:
    """At least two pieces of each of four chunks, of at most 1 MiB, and cut where Gloo cuts."""
    asked = (Collective.ALL_REDUCE, "gloo_ring", 4, size_bytes)
    schedule, cut = executed_schedule(*asked)
    assert gloo_pieces(*asked) == pieces
    assert (schedule.algorithm, schedule.num_chunks, cut) == ("gloo_ring", 4 * pieces, gloo_partition)
    assert schedule.num_steps == gloo_ring_all_reduce(4, pieces).num_steps


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [(Collective.ALL_REDUCE, "ring/4"), (Collective.ALL_GATHER, "gloo_ring"), (Collective.REDUCE, "binomial_tree")],
)
def test_others_do_not(collective: Collective, algorithm: str) -> None:
    """They are what `build` makes."""
    for size_bytes in (0, 64 * MIB):
        assert gloo_pieces(collective, algorithm, 4, size_bytes) == 0
        schedule, cut = executed_schedule(collective, algorithm, 4, size_bytes)
        assert [list(step) for step in schedule.steps] == [list(step) for step in build(collective, algorithm, 4).steps]
        assert cut is partition
