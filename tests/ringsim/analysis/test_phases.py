"""Tests of `ringsim.analysis.phases`."""

import numpy as np
import pytest

from ringsim.analysis.holdings import walk_holdings
from ringsim.analysis.phases import find_phases
from ringsim.registry import build
from ringsim.schedule import Collective, Ints


def phases_of(collective: str, algorithm: str, num_ranks: int, host_of_rank: Ints | None = None) -> list[tuple]:
    """Name, first and last step of each."""
    schedule = build(Collective(collective), algorithm, num_ranks)
    return [tuple(phase) for phase in find_phases(schedule, list(walk_holdings(schedule)), host_of_rank)]


@pytest.mark.parametrize(
    ("collective", "algorithm", "expected"),
    [
        ("all_reduce", "ring", [("reduce-scatter", 0, 2), ("all-gather", 3, 5)]),
        ("all_reduce", "two_shot", [("reduce-scatter", 0, 0), ("all-gather", 1, 1)]),
        ("all_reduce", "binomial_tree", [("reduce", 0, 1), ("broadcast", 2, 3)]),
        ("all_reduce", "naive_ring", [("reduce", 0, 2), ("broadcast", 3, 5)]),
        ("all_reduce", "recursive_doubling", [("all-reduce", 0, 1)]),
        ("all_reduce", "direct", [("all-reduce", 0, 0)]),
        ("reduce_scatter", "ring", [("reduce-scatter", 0, 2)]),
        ("all_gather", "ring", [("all-gather", 0, 2)]),
        ("broadcast", "binomial_tree", [("broadcast", 0, 1)]),
        ("reduce", "binomial_tree", [("reduce", 0, 1)]),
    ],
)
def test_four_ranks(collective: str, algorithm: str, expected: list[tuple]) -> None:
    """The words of the field, by what the steps do and where the sums appear."""
    assert phases_of(collective, algorithm, 4) == expected


def test_a_pipeline_adds_and_copies_side_by_side() -> None:
    """While later segments go up the trees, earlier ones come down."""
    names = [name for name, _, _ in phases_of("all_reduce", "double_binary_tree", 8)]
    assert names == ["reduce", "reduce and broadcast", "broadcast"]


def test_within_hosts_and_across_them() -> None:
    """Where ranks share hosts."""
    assert phases_of("all_reduce", "hierarchical", 16, np.arange(16) // 8) == [
        ("reduce-scatter within hosts", 0, 13),
        ("reduce-scatter across hosts", 14, 14),
        ("all-gather across hosts", 15, 15),
        ("all-gather within hosts", 16, 29),
    ]
