"""Tests of `ringsim.analysis.holdings`."""

import numpy as np
import pytest

from ringsim.analysis.holdings import find_phases, walk_holdings
from ringsim.registry import build
from ringsim.schedule import Collective, Ints


def phases_of(collective: str, algorithm: str, num_ranks: int, host_of_rank: Ints | None = None) -> list[tuple]:
    """Name, first and last step of each."""
    schedule = build(Collective(collective), algorithm, num_ranks)
    return [tuple(phase) for phase in find_phases(schedule, list(walk_holdings(schedule)), host_of_rank)]


@pytest.mark.parametrize(
    ("collective", "algorithm", "expected"),
    [
        ("all_reduce", "ring", [("reduce-scatter", 0, 6), ("all-gather", 7, 13)]),
        ("all_reduce", "hierarchical", [("reduce-scatter", 0, 6), ("all-gather", 7, 13)]),
        ("all_reduce", "two_shot", [("reduce-scatter", 0, 0), ("all-gather", 1, 1)]),
        ("all_reduce", "binomial_tree", [("reduce", 0, 2), ("broadcast", 3, 5)]),
        ("all_reduce", "naive_ring", [("reduce", 0, 6), ("broadcast", 7, 13)]),
        ("all_reduce", "parameter_server", [("reduce", 0, 0), ("broadcast", 1, 1)]),
        # While later segments go up the trees, earlier ones come down.
        (
            "all_reduce",
            "double_binary_tree",
            [("reduce", 0, 5), ("reduce and broadcast", 6, 27), ("broadcast", 28, 33)],
        ),
        ("all_reduce", "recursive_doubling", [("all-reduce", 0, 2)]),
        ("all_reduce", "direct", [("all-reduce", 0, 0)]),
        ("reduce_scatter", "ring", [("reduce-scatter", 0, 6)]),
        ("all_gather", "ring", [("all-gather", 0, 6)]),
        ("broadcast", "binomial_tree", [("broadcast", 0, 2)]),
        ("reduce", "binomial_tree", [("reduce", 0, 2)]),
    ],
)
def test_eight_ranks(collective: str, algorithm: str, expected: list[tuple]) -> None:
    """The words of the field, by what the steps do and where the sums appear."""
    assert phases_of(collective, algorithm, 8) == expected


def test_within_hosts_and_across_them() -> None:
    """Where ranks share hosts."""
    assert phases_of("all_reduce", "hierarchical", 16, np.arange(16) // 8) == [
        ("reduce-scatter within hosts", 0, 13),
        ("reduce-scatter across hosts", 14, 14),
        ("all-gather across hosts", 15, 15),
        ("all-gather within hosts", 16, 29),
    ]
