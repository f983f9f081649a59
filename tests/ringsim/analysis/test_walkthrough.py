"""A schedule in words: its steps, phases and their rules, and its costs compared with the bounds."""

import re

import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Network, load_network, permute_ranks
from ringsim.analysis.contributions import iterate_contributions
from ringsim.analysis.walkthrough import describe_step, walk_through
from ringsim.registry import ALGORITHMS, build

NETWORK = Network.uniform(latency_s=10e-6, bandwidth_bytes_per_s=1e9)
HOSTS = load_network("dgx-h100-cluster")


ALL_REDUCES = ("ring", "naive_ring", "two_shot", "binomial_tree", "halving_doubling", "direct", "recursive_doubling",
               "parameter_server", "torus")  # fmt: skip
SHOWN = [
    *(f"all_reduce {algorithm} 8" for algorithm in ALL_REDUCES),
    "all_reduce ring 1",
    "all_reduce ring 2",
    "all_reduce ring 300",  # has costs alone
    "all_reduce two_shot/2 3",
    "all_reduce double_binary_tree 8",  # while later segments go up the trees, earlier ones come down
    "all_reduce hierarchical 16",
    "all_gather recursive_doubling 4",
    "reduce_scatter bidirectional_ring 9",
    "broadcast binomial_tree 8",
    "reduce binomial_tree 8",
]


@pytest.mark.parametrize("shown", SHOWN)
def test_in_words(shown: str, snapshot: SnapshotAssertion) -> None:
    """Rings, trees, bits that differ, all to all, all to one; sender by sender where there is no rule.

    One rank sends nothing; where ranks share hosts, phases are within hosts or across them.
    """
    collective, algorithm, num_ranks = shown.split()
    assert in_words(collective, algorithm, int(num_ranks)) == snapshot


def in_words(collective: str, algorithm: str, num_ranks: int) -> str:
    """All that is told of it, but for the steps in the middle of a phase."""
    network = HOSTS if algorithm == "hierarchical" else NETWORK
    told = walk_through(build(Collective(collective), algorithm, num_ranks), network, 2**20)
    lines = [told["goal"], *(told["skipped"],) * bool(told["skipped"])]
    for phase in told["phases"]:
        lines.append(f"{phase['name']}, steps {phase['first']} to {phase['last']}: {phase['rule'] or 'no rule'}")
        for step in {step["number"]: step for step in (phase["steps"][0], phase["steps"][-1])}.values():
            lines.append(f"  step {step['number']}: {step['sentence']} ({step['example'] or 'no example'})")
    return "\n".join([*lines, *told["costs"]])


def test_ranks_in_other_places_follow_no_formula() -> None:
    """They are named."""
    schedule = permute_ranks(build(Collective.ALL_REDUCE, "ring", 4), [0, 2, 1, 3])
    sentence, _ = describe_step(schedule, next(iter(iterate_contributions(schedule))))
    assert sentence.startswith("rank 0 sends chunk 3 to rank 2, rank 1 sends chunk 1 to rank 3, rank 2 ")


def test_every_step_of_every_algorithm_has_a_short_sentence() -> None:
    """In one line, without a full stop."""
    for collective, algorithm in ALGORITHMS:
        for num_ranks in (1, 2, 3, 8):
            schedule = build(collective, algorithm, num_ranks)
            for held in iterate_contributions(schedule):
                sentence, _ = describe_step(schedule, held)
                assert 10 < len(sentence) < 330, algorithm
                assert not re.search(r"\n|\.$", sentence), algorithm


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
