"""Phases of a schedule, their rules, and why there are so many steps and bytes."""

from functools import reduce

import numpy as np
import pytest

from ringsim import Network
from ringsim.analysis.holdings import find_phases, walk_holdings
from ringsim.analysis.walkthrough import Walkthrough, walk_through
from ringsim.registry import build
from ringsim.schedule import Collective, Ints

NETWORK = Network(latency_s=10e-6, bandwidth_bytes_per_s=1e9)


def walkthrough_of(algorithm: str, num_ranks: int, collective: str = "all_reduce", size: int = 2**20) -> Walkthrough:
    """On a network where all pairs are alike."""
    return walk_through(build(Collective(collective), algorithm, num_ranks), NETWORK, size)


def test_the_rule_of_a_ring() -> None:
    """One formula for all steps of both phases, and why it is that."""
    scatter, gather = walkthrough_of("ring", 4).phases
    assert scatter.rule == (
        "in step s = 1 to 3 rank r sends chunk (r - s) mod 4 to rank (r + 1) mod 4: after the first step, the chunk "
        "that it received and added its contribution to in the step before"
    )
    assert gather.rule == (
        "in step s = 4 to 6 rank r sends chunk (r - s) mod 4 to rank (r + 1) mod 4: the chunk that it received in the "
        "step before"
    )
    assert scatter.steps[0].example == "rank 0: chunk 3, rank 1: chunk 0, rank 2: chunk 1, rank 3: chunk 2"


@pytest.mark.parametrize("num_ranks", [3, 4, 7, 8])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_the_formula_is_right(collective: str, num_ranks: int) -> None:
    """It gives the chunk of every transfer."""
    schedule = build(Collective(collective), "ring", num_ranks)
    for phase in walk_through(schedule, NETWORK, 1000).phases:
        formula = phase.rule.partition("sends chunk ")[2].partition(" to rank")[0].replace("mod", "%")
        for told in phase.steps:
            for src, _, chunk, *_ in schedule.steps[told.number]:
                assert chunk == eval(formula, {"r": src, "s": told.number + 1})


def test_only_a_ring_has_that_rule() -> None:
    """A tree has none, nor has a ring backwards through chunks of its own."""
    assert [phase.rule for phase in walkthrough_of("binomial_tree", 8).phases] == ["", ""]
    assert [phase.rule for phase in walkthrough_of("torus", 8).phases] == ["", ""]


def test_the_cost_of_a_ring_is_the_bound() -> None:
    """Steps and bytes, and what no algorithm can undercut."""
    assert walkthrough_of("ring", 4).costs == (
        "6 steps, 3 of reduce-scatter, 3 of all-gather; an algorithm in which a rank sends to one other in a step "
        "needs at least 2, since the number of ranks that hold a contribution at most doubles in each step",
        "in a ring a chunk moves by one rank per step: n - 1 = 3 steps until a chunk is complete, and 3 more until it "
        "has reached all other ranks",
        "the busiest sender sends 1.5 MiB, 1.5 times the data; every algorithm needs at least "
        "2(n - 1)/n = 1.5 times (Patarasuk and Yuan 2009), which equals this bound",
    )


def test_the_cost_of_a_tree_is_above_it() -> None:
    """The root sends to each of its children."""
    costs = walkthrough_of("binomial_tree", 8).costs
    assert len(costs) == 2
    assert costs[1] == (
        "the busiest sender sends 3 MiB, 3 times the data; every algorithm needs at least "
        "2(n - 1)/n = 1.75 times (Patarasuk and Yuan 2009), which is 1.71 times the bound"
    )


def test_one_rank_and_too_many() -> None:
    """Nothing to send; and too much to look at each share."""
    assert walkthrough_of("ring", 1).costs == ("a single rank has nothing to send",)
    told = walkthrough_of("ring", 300)
    assert [phase[:3] for phase in told.phases] == [("reduce-scatter", 0, 298), ("all-gather", 299, 597)]
    steps = {"s = 1 to 3": "s = 1 to 299", "s = 4 to 6": "s = 300 to 598"}
    assert [phase.rule for phase in told.phases] == [
        reduce(lambda rule, step: rule.replace(*step), steps.items(), phase.rule.replace("mod 4", "mod 300"))
        for phase in walkthrough_of("ring", 4).phases
    ]
    sentences = [step.sentence for step in told.phases[0].steps]
    assert len(sentences) == 3
    assert (
        sentences[2]
        == "every rank r sends chunk (r - 3) mod 300 to rank (r + 1) mod 300, which adds its contribution: 4 of 300"
    )
    assert told.skipped == (
        "only the first 3 steps are listed, because the contributions of 300 ranks in 300 chunks are too many to "
        "examine: use fewer ranks to see all"
    )
    assert told.costs[-1].endswith("which equals this bound")
    assert [phase.name for phase in walkthrough_of("two_shot", 300).phases] == ["the first steps"]
    assert walkthrough_of("ring", 5000).phases == ()


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
