"""Hosts with one NIC each on one switch: where textbooks count messages, and what a rank sends shares its NIC."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ringsim import Collective, Network, closed_form_s, load_network, predict_time
from ringsim.registry import build

STAR = load_network(str(Path(__file__).parents[3] / "docs/networks/star.toml"))
LINK = Network(latency_s=2e-6, bandwidth_bytes_per_s=1.25e9)  # the same from NIC to NIC
SIZE = 2**24
POWERS_OF_TWO, ANY = (4, 8, 16, 32, 64), (4, 5, 6, 7, 8, 12, 23, 48)
ONE_BY_ONE = [  # in which a rank sends one message at a time, and receives one
    *(("all_reduce", name, ANY) for name in ("ring", "gloo_ring", "naive_ring")),
    *(("all_reduce", name, POWERS_OF_TWO) for name in ("recursive_doubling", "halving_doubling", "binomial_tree")),
    ("reduce_scatter", "ring", ANY),
    ("reduce_scatter", "halving_doubling", POWERS_OF_TWO),
    ("all_gather", "ring", ANY),
    ("all_gather", "recursive_doubling", POWERS_OF_TWO),
    ("broadcast", "ring", ANY),
    ("broadcast", "binomial_tree", ANY),
    ("reduce", "ring", ANY),
    ("reduce", "binomial_tree", POWERS_OF_TWO),
]


@pytest.mark.parametrize(("collective", "algorithm", "numbers"), ONE_BY_ONE, ids=str)
def test_the_formula_of_one_message_at_a_time_holds(collective: str, algorithm: str, numbers: tuple[int, ...]) -> None:
    """Within 0.1 %, although whatever is sent at the same time would share the NICs."""
    for num_ranks in numbers:
        schedule = build(Collective(collective), algorithm, num_ranks)
        expected = closed_form_s(Collective(collective), algorithm, num_ranks, SIZE, LINK, in_order=True)
        assert predict_time(schedule, STAR, SIZE) == pytest.approx(expected, rel=1e-3), num_ranks


@pytest.mark.parametrize(
    ("collective", "algorithm", "copies"),
    [
        ("all_reduce", "bidirectional_ring", lambda n: 2 * (n - 1) / n),
        ("all_reduce", "multi_ring", lambda n: 2 * (n - 1) / n),
        ("all_reduce", "two_shot", lambda n: 2 * (n - 1) / n),
        ("all_reduce", "direct", lambda n: n - 1),
        ("reduce_scatter", "direct", lambda n: (n - 1) / n),
        ("all_gather", "direct", lambda n: (n - 1) / n),
        ("broadcast", "direct", lambda n: n - 1),
        ("reduce", "direct", lambda n: n - 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("num_ranks", [4, 7, 16, 48])
def test_messages_side_by_side_take_what_their_bytes_take(
    collective: str, algorithm: str, copies: Callable[[int], float], num_ranks: int
) -> None:
    """All on channels of their own: the busiest NIC is full all the time."""
    schedule = build(Collective(collective), algorithm, num_ranks)
    expected = copies(num_ranks) * SIZE / LINK.bandwidth_bytes_per_s
    latencies = schedule.num_steps * LINK.latency_s
    assert expected * (1 - 1e-9) <= predict_time(schedule, STAR, SIZE) <= (expected + latencies) * (1 + 1e-3)
