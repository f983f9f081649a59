"""Tests of `ringsim.analysis.sentences`: what a step does, in words."""

import re

import pytest

from ringsim.analysis.holdings import walk_holdings
from ringsim.analysis.sentences import tell_step, transfer_sentence
from ringsim.registry import ALGORITHMS, build
from ringsim.schedule import Collective, Schedule, permute_ranks


def sentences(schedule: Schedule) -> list[str]:
    """One for each step."""
    return [tell_step(schedule, held).sentence for held in walk_holdings(schedule)]


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


def test_the_transfers_of_a_ring() -> None:
    """Each with its count."""
    schedule = build(Collective.ALL_REDUCE, "ring", 4)
    steps = list(walk_holdings(schedule))
    assert transfer_sentence(schedule, steps[1], 2) == "rank 3 adds its contribution to chunk 0 from rank 2: 3 of 4"
    complete = "rank 0 adds its contribution to chunk 0 from rank 3: 4 of 4, complete"
    assert transfer_sentence(schedule, steps[2], 3) == complete
    assert transfer_sentence(schedule, steps[3], 0) == "rank 1 copies chunk 0 from rank 0: 4 of 4, complete"


def test_a_tree_of_eight() -> None:
    """Sender by sender."""
    assert sentences(build(Collective.ALL_REDUCE, "binomial_tree", 8)) == [
        "rank 1 sends all of the data to rank 0, rank 3 sends all of the data to rank 2, rank 5 sends all of the data "
        "to rank 4, rank 7 sends all of the data to rank 6; each receiver adds its contribution: 2 of 8",
        "rank 2 sends all of the data to rank 0, rank 6 sends all of the data to rank 4; each receiver adds it to its "
        "sum: 4 of 8",
        "rank 0 adds chunk 0 from rank 4 to its own sum: 8 of 8, complete",
        "rank 4 copies chunk 0 from rank 0: 8 of 8, complete",
        "rank 0 sends all of the data to rank 2, rank 4 sends all of the data to rank 6; each receiver copies it: 8 of "
        "8, complete",
        "rank 0 sends all of the data to rank 1, rank 2 sends all of the data to rank 3, rank 4 sends all of the data "
        "to rank 5, rank 6 sends all of the data to rank 7; each receiver copies it: 8 of 8, complete",
    ]


def test_a_broadcast_adds_nothing_up() -> None:
    """There is only one share."""
    assert sentences(build(Collective.BROADCAST, "binomial_tree", 4)) == [
        "rank 2 copies chunk 0 from rank 0",
        "rank 0 sends all of the data to rank 1, rank 2 sends all of the data to rank 3; each receiver copies it",
    ]
    assert sentences(build(Collective.BROADCAST, "direct", 4)) == [
        "rank 0 sends all of the data to ranks 1 to 3; each receiver copies it"
    ]


@pytest.mark.parametrize(
    ("algorithm", "step", "expected"),
    [
        ("halving_doubling", 0, "every rank r sends 4 chunks to rank r xor 1, which adds its contribution: 2 of 8"),
        ("two_shot", 0, "every rank sends chunk r to rank r, for every other rank r; each receiver adds it to its sum"),
        ("two_shot", 1, "every rank r sends chunk r to every other rank, which copies it: 8 of 8, complete"),
        ("direct", 0, "every rank sends all of the data to every other rank; each receiver adds it to its sum"),
        ("parameter_server", 0, "ranks 1 to 7 send all of the data to rank 0, which adds it to its sum"),
    ],
)
def test_other_patterns(algorithm: str, step: int, expected: str) -> None:
    """Bits that differ, all to all, all to one."""
    assert sentences(build(Collective.ALL_REDUCE, algorithm, 8))[step] == expected


def test_the_chunks_of_each_rank_are_listed_where_no_formula_names_them() -> None:
    """In every step in which a rank sends several, or one by no rule; and of a few ranks one step ahead."""
    schedule = build(Collective.ALL_GATHER, "recursive_doubling", 4)
    assert [tell_step(schedule, held).example for held in walk_holdings(schedule)] == [
        "",
        "rank 0: chunks 0 and 2, rank 1: chunks 1 and 3, rank 2: chunks 0 and 2, rank 3: chunks 1 and 3",
    ]
    schedule = build(Collective.ALL_REDUCE, "ring/2", 3)
    first = next(iter(walk_holdings(schedule)))
    assert tell_step(schedule, first).example == "rank 0: chunk 4, rank 1: chunk 0, rank 2: chunk 2"
    schedule = build(Collective.REDUCE_SCATTER, "bidirectional_ring", 9)
    first = next(iter(walk_holdings(schedule)))
    assert tell_step(schedule, first).example.startswith("rank 0: chunk 16, rank 1: chunk 0, rank 2: chunk 2, rank 3: ")
    schedule = build(Collective.ALL_REDUCE, "two_shot/2", 3)
    *_, last = walk_holdings(schedule)
    assert tell_step(schedule, last).sentence.startswith("every rank sends a part of the data to every other rank")
    assert tell_step(schedule, last).example == (
        "rank 0 sends chunk 1 to ranks 1 and 2, rank 1 sends chunk 3 to ranks 0 and 2, rank 2 sends chunk 5 to ranks 0 "
        "and 1"
    )


def test_a_ring_of_two_has_no_arithmetic() -> None:
    """There is only one other rank."""
    first = sentences(build(Collective.ALL_REDUCE, "ring", 2))[0]
    assert first == "every rank r sends chunk (r - 1) mod 2 to the other, which adds its contribution: 2 of 2, complete"


@pytest.mark.parametrize(("collective", "algorithm"), sorted(ALGORITHMS, key=str))
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 6, 8, 13])
def test_every_step_of_every_algorithm_has_a_short_sentence(
    collective: Collective, algorithm: str, num_ranks: int
) -> None:
    """In one line, without a full stop; of up to eight ranks all chunks are named in it or below it."""
    schedule = build(collective, algorithm, num_ranks)
    for held in walk_holdings(schedule):
        _, sentence, example = tell_step(schedule, held)
        assert 10 < len(sentence) < 330
        assert "\n" not in sentence
        assert not sentence.endswith(".")
        named = re.search(r"chunks? [\d(r]|all of the data|nothing is sent", f"{sentence} {example}")
        assert named or num_ranks > 8


def test_ranks_in_other_places_follow_no_formula() -> None:
    """They are named."""
    schedule = permute_ranks(build(Collective.ALL_REDUCE, "ring", 4), [0, 2, 1, 3])
    assert sentences(schedule)[0] == (
        "rank 0 sends chunk 3 to rank 2, rank 1 sends chunk 1 to rank 3, rank 2 sends chunk 0 to rank 1, rank 3 sends "
        "chunk 2 to rank 0; each receiver adds its contribution: 2 of 4"
    )
