"""The cost of algorithms, of which none beats a bound."""

import pytest

from ringsim import Collective
from ringsim.analysis.cost import cost_of, sent_bound, steps_bound
from ringsim.registry import build
from ringsim.registry.algorithms import ALGORITHMS


@pytest.mark.parametrize(("collective", "algorithm"), [pytest.param(*k, id=f"{k[0].value}-{k[1]}") for k in ALGORITHMS])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 6, 8, 13, 16])
def test_no_algorithm_beats_the_bound(collective: Collective, algorithm: str, num_ranks: int) -> None:
    """If one did, either the bound or the proof of the algorithm would be wrong."""
    cost = cost_of(build(collective, algorithm, num_ranks))
    assert cost.sent >= cost.sent_bound - 1e-12


def test_bounds_by_hand() -> None:
    """Four ranks: an all-reduce must send six quarters; a broadcast all of it; news reaches four in two steps."""
    assert [sent_bound(c, 4) for c in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST)] == [
        1.5,
        0.75,
        1,
    ]
    assert [steps_bound(n) for n in (1, 2, 3, 4, 5, 8, 9)] == [0, 1, 2, 2, 3, 3, 4]
    assert sent_bound(Collective.REDUCE, 1) == 0.0


def test_the_busiest_rank_counts() -> None:
    """With everything at rank 0 it sends to all others; of a binomial tree's broadcast the root sends log2 n times."""
    assert cost_of(build(Collective.ALL_REDUCE, "parameter_server", 8)).sent == 7.0
    assert cost_of(build(Collective.BROADCAST, "binomial_tree", 8)).sent == 3.0
