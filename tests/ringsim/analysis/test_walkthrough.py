"""A schedule in words: its steps, phases and their rules, and its costs compared with the bounds."""

import re
from typing import Any

import numpy as np
import pytest

from ringsim import Network
from ringsim.analysis.holdings import find_phases, walk_holdings
from ringsim.analysis.walkthrough import tell_step, walk_through
from ringsim.registry import ALGORITHMS, build
from ringsim.schedule import Collective, Ints, Schedule, permute_ranks

NETWORK = Network(latency_s=10e-6, bandwidth_bytes_per_s=1e9)


def sentences(schedule: Schedule) -> list[str]:
    """One for each step."""
    return [tell_step(schedule, held)[0] for held in walk_holdings(schedule)]


def walkthrough_of(algorithm: str, num_ranks: int, collective: str = "all_reduce") -> dict[str, Any]:
    """On a network where all pairs are alike."""
    return walk_through(build(Collective(collective), algorithm, num_ranks), NETWORK, 2**20)


def test_a_ring_of_four() -> None:
    """By one formula for all ranks, and what it adds up to."""
    assert sentences(build(Collective.ALL_REDUCE, "ring", 4)) == [
        "every rank r sends chunk (r - 1) mod 4 to rank (r + 1) mod 4, which adds its contribution: 2 of 4",
        "every rank r sends chunk (r - 2) mod 4 to rank (r + 1) mod 4, which adds its contribution: 3 of 4",
        "every rank r sends chunk (r - 3) mod 4 to rank (r + 1) mod 4, which adds its contribution: 4 of 4, complete",
        "every rank r sends chunk r to rank (r + 1) mod 4, which copies it: 4 of 4, complete",
        "every rank r sends chunk (r - 1) mod 4 to rank (r + 1) mod 4, which copies it: 4 of 4, complete",
        "every rank r sends chunk (r - 2) mod 4 to rank (r + 1) mod 4, which copies it: 4 of 4, complete",
    ]


TREE = (
    "rank 1 sends all of the data to rank 0, rank 3 sends all of the data to rank 2, rank 5 sends all of the data to "
)
TREE += "rank 4, rank 7 sends all of the data to rank 6; each receiver adds its contribution: 2 of 8"


@pytest.mark.parametrize(
    ("algorithm", "num_ranks", "step", "expected"),
    [
        (
            "ring",
            2,
            0,
            "every rank r sends chunk (r - 1) mod 2 to the other, which adds its contribution: 2 of 2, comp",
        ),
        ("binomial_tree", 8, 0, TREE),
        ("binomial_tree", 8, 2, "rank 0 adds chunk 0 from rank 4 to its own sum: 8 of 8, complete"),
        ("binomial_tree", 8, 3, "rank 4 copies chunk 0 from rank 0: 8 of 8, complete"),
        ("halving_doubling", 8, 0, "every rank r sends 4 chunks to rank r xor 1, which adds its contribution: 2 of 8"),
        ("two_shot", 8, 0, "every rank r sends chunk s to every other rank s; each receiver adds it to its sum"),
        (
            "two_shot",
            8,
            1,
            "every rank r sends chunk r to every other rank s; each receiver copies it: 8 of 8, complete",
        ),
        ("two_shot/2", 3, 1, "every rank r sends a part of the data to every other rank s"),
        ("direct", 8, 0, "every rank r sends all of the data to every other rank s; each receiver adds it to its sum"),
        ("parameter_server", 8, 0, "ranks 1 to 7 send all of the data to rank 0, which adds it to its sum"),
        ("parameter_server", 8, 1, "rank 0 sends all of the data to ranks 1 to 7; each receiver copies it"),
    ],
)
def test_the_patterns_of_steps(algorithm: str, num_ranks: int, step: int, expected: str) -> None:
    """Rings, trees, bits that differ, all to all, all to one; sender by sender where there is no rule."""
    assert sentences(build(Collective.ALL_REDUCE, algorithm, num_ranks))[step].startswith(expected)


def test_ranks_in_other_places_follow_no_formula() -> None:
    """They are named."""
    schedule = permute_ranks(build(Collective.ALL_REDUCE, "ring", 4), [0, 2, 1, 3])
    assert sentences(schedule)[0].startswith("rank 0 sends chunk 3 to rank 2, rank 1 sends chunk 1 to rank 3, rank 2 ")


@pytest.mark.parametrize(
    ("collective", "algorithm", "num_ranks", "step", "example"),
    [
        ("all_reduce", "ring", 4, 0, "rank 0: chunk 3, rank 1: chunk 0, rank 2: chunk 1, rank 3: chunk 2"),
        ("all_gather", "recursive_doubling", 4, 0, ""),
        (
            "all_gather",
            "recursive_doubling",
            4,
            1,
            "rank 0: chunks 0 and 2, rank 1: chunks 1 and 3, rank 2: chunks 0 and",
        ),
        ("reduce_scatter", "bidirectional_ring", 9, 0, "rank 0: chunk 16, rank 1: chunk 0, rank 2: chunk 2, rank 3: "),
    ],
)
def test_chunks_are_listed(collective: str, algorithm: str, num_ranks: int, step: int, example: str) -> None:
    """Where the sentence gives a rule for them, or only their number."""
    schedule = build(Collective(collective), algorithm, num_ranks)
    told = tell_step(schedule, list(walk_holdings(schedule))[step])[1]
    assert told.startswith(example)
    assert bool(told) == bool(example)


@pytest.mark.parametrize(("collective", "algorithm"), sorted(ALGORITHMS, key=str))
def test_every_step_of_every_algorithm_has_a_short_sentence(collective: Collective, algorithm: str) -> None:
    """In one line, without a full stop."""
    for num_ranks in (1, 2, 3, 8):
        for sentence in sentences(build(collective, algorithm, num_ranks)):
            assert 10 < len(sentence) < 330
            assert not re.search(r"\n|\.$", sentence)


def test_the_rule_of_a_ring() -> None:
    """One formula for all steps of both phases, and why it is that; other algorithms have none."""
    scatter, gather = walkthrough_of("ring", 4)["phases"]
    assert scatter["rule"] == (
        "in step s = 1 to 3 rank r sends chunk (r - s) mod 4 to rank (r + 1) mod 4: after the first step, the chunk "
        "that it received and added its contribution to in the step before"
    )
    assert gather["rule"] == (
        "in step s = 4 to 6 rank r sends chunk (r - s) mod 4 to rank (r + 1) mod 4: the chunk that it received in the "
        "step before"
    )
    for algorithm in ("binomial_tree", "torus"):
        assert [phase["rule"] for phase in walkthrough_of(algorithm, 8)["phases"]] == ["", ""]


@pytest.mark.parametrize("num_ranks", [3, 4, 7, 8])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_the_formula_is_right(collective: str, num_ranks: int) -> None:
    """It gives the chunk of every transfer."""
    schedule = build(Collective(collective), "ring", num_ranks)
    for phase in walk_through(schedule, NETWORK, 1000)["phases"]:
        formula = phase["rule"].partition("sends chunk ")[2].partition(" to rank")[0].replace("mod", "%")
        for told in phase["steps"]:
            for src, _, chunk, *_ in schedule.steps[told["number"]]:
                assert chunk == eval(formula, {"r": src, "s": told["number"] + 1})


def test_costs_beside_the_bounds() -> None:
    """A ring sends as little as possible, a tree more; one rank sends nothing; a huge schedule has costs alone."""
    assert walkthrough_of("ring", 4)["costs"] == (
        "6 steps, 3 of reduce-scatter, 3 of all-gather; an algorithm in which a rank sends to one other in a step "
        "needs at least 2, since the number of ranks that hold a contribution at most doubles in each step",
        "in a ring a chunk moves by one rank per step: n - 1 = 3 steps until a chunk is complete, and 3 more until it "
        "has reached all other ranks",
        "the busiest sender sends 1.5 MiB, 1.5 times the data; every algorithm needs at least "
        "2(n - 1)/n = 1.5 times (Patarasuk and Yuan 2009), which equals this bound",
    )
    assert walkthrough_of("binomial_tree", 8)["costs"][1] == (
        "the busiest sender sends 3 MiB, 3 times the data; every algorithm needs at least "
        "2(n - 1)/n = 1.75 times (Patarasuk and Yuan 2009), which is 1.71 times the bound"
    )
    assert walkthrough_of("ring", 1)["costs"] == ("a single rank has nothing to send",)
    told = walkthrough_of("ring", 300)
    assert told["phases"] == []
    assert told["skipped"].startswith("no step is listed, because the contributions of 300 ranks in 300 chunks")
    assert told["costs"][-1].endswith("which equals this bound")


def phases_of(collective: str, algorithm: str, num_ranks: int, host_of_rank: Ints | None = None) -> list[tuple]:
    """Name, first and last step of each."""
    schedule = build(Collective(collective), algorithm, num_ranks)
    return [tuple(phase) for phase in find_phases(schedule, list(walk_holdings(schedule)), host_of_rank)]


HALVES, TREES = ("reduce-scatter", "all-gather"), ("reduce", "broadcast")


@pytest.mark.parametrize(
    ("collective", "algorithm", "names", "ends"),
    [
        ("all_reduce", "ring", HALVES, [6, 13]),
        ("all_reduce", "two_shot", HALVES, [0, 1]),
        ("all_reduce", "binomial_tree", TREES, [2, 5]),
        ("all_reduce", "naive_ring", TREES, [6, 13]),
        # While later segments go up the trees, earlier ones come down.
        ("all_reduce", "double_binary_tree", ("reduce", "reduce and broadcast", "broadcast"), [5, 27, 33]),
        ("all_reduce", "recursive_doubling", ("all-reduce",), [2]),
        ("reduce_scatter", "ring", HALVES[:1], [6]),
        ("all_gather", "ring", HALVES[1:], [6]),
        ("broadcast", "binomial_tree", TREES[1:], [2]),
        ("reduce", "binomial_tree", TREES[:1], [2]),
    ],
)
def test_phases_of_eight_ranks(collective: str, algorithm: str, names: tuple[str, ...], ends: list[int]) -> None:
    """The words of the field, by what the steps do and where the sums appear."""
    firsts = [0, *(end + 1 for end in ends[:-1])]
    assert phases_of(collective, algorithm, 8) == list(zip(names, firsts, ends, strict=True))


def test_within_hosts_and_across_them() -> None:
    """Where ranks share hosts."""
    assert phases_of("all_reduce", "hierarchical", 16, np.arange(16) // 8) == [
        ("reduce-scatter within hosts", 0, 13),
        ("reduce-scatter across hosts", 14, 14),
        ("all-gather across hosts", 15, 15),
        ("all-gather within hosts", 16, 29),
    ]
