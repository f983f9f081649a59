"""The time of bytes where messages meet at a port; and a star of hosts, which is what a `Network` is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ringsim import Collective, Network, load_network, predict_time, simulate
from ringsim.algorithms import hosts_of, torus_of
from ringsim.registry import ALGORITHMS, build
from ringsim.simulation import IN_ORDER
from tests.ringsim.plain_events import COLUMNS

STAR = load_network(str(Path(__file__).parents[3] / "docs/networks/star.toml"))
LINK = Network(latency_s=2e-6, bandwidth_bytes_per_s=1.25e9)  # the same from NIC to NIC
SIZE = 2**24
NUMBERS = (4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 20, 24, 37, 62, 64)
Key = tuple[Collective, str]


def two_levels(num_groups: int, group_size: int) -> float:
    """Of n shares each rank sends 2(n - 1).

    About a train more, since the ring across begins when the train within a group has not yet ended, and shares the
    ports with it. Found by simulation.
    """
    num_ranks = num_groups * group_size
    more = 0 if min(num_groups, group_size) == 1 else num_groups + (num_groups > 5)
    return (2 * (num_ranks - 1) + more) / num_ranks


def double_tree(num_ranks: int) -> float:
    """All 2k = 8d segments, d = ceil(log2(n)), and 2(d - 1) until the first is down. Found by simulation."""
    depth = (num_ranks - 1).bit_length()
    return (8 * depth + 2 * (depth - 1)) / (8 * depth)


def double_tree_both_ways(num_ranks: int) -> float | None:
    """Twice all segments, and 4d - 6; None where the last level has few ranks and takes less. Found by simulation."""
    depth = (num_ranks - 1).bit_length()
    if 4 * num_ranks <= 5 * 2 ** (depth - 1) + 4:
        return None
    return (2 * 8 * depth + 4 * depth - 6) / (8 * depth)


TIMES_SIZE = {  # where messages meet at a port
    (Collective.ALL_REDUCE, "torus"): lambda n: two_levels(*torus_of(n)),
    (Collective.ALL_REDUCE, "hierarchical"): lambda n: two_levels(*hosts_of(n)),
    (Collective.ALL_REDUCE, "binomial_tree"): lambda n: 2 * (n - 1).bit_length(),
    (Collective.REDUCE, "binomial_tree"): lambda n: (n - 1).bit_length(),
    (Collective.ALL_REDUCE, "double_binary_tree"): double_tree_both_ways,
    (Collective.BROADCAST, "double_binary_tree"): double_tree,
    (Collective.REDUCE, "double_binary_tree"): double_tree,
}


def name_of(key: Key) -> str:
    """For the names of tests."""
    return f"{key[0].value}-{key[1]}"


@pytest.mark.parametrize("key", TIMES_SIZE, ids=name_of)
def test_what_bytes_take_where_nothing_else_takes_time(key: Key) -> None:
    """Within 0.01 %, on a `Network` without latency, all chunks being equally large."""
    for num_ranks in NUMBERS:
        schedule, times = build(*key, num_ranks), TIMES_SIZE[key](num_ranks)
        size = schedule.num_chunks * 10**6
        if times is not None:
            assert predict_time(schedule, Network(0.0, float(size)), size, runtime=IN_ORDER) == pytest.approx(
                times, rel=1e-4
            ), num_ranks


@pytest.mark.parametrize(("name", "shape"), [("torus", torus_of), ("hierarchical", hosts_of)])
def test_two_levels_as_the_rule_permits(name: str, shape: Callable[[int], tuple[int, int]]) -> None:
    """Each of n chunks 2(n - 1) times, and as many more as there are groups, which meet those within at the ports."""
    for num_ranks in NUMBERS:
        schedule = build(Collective.ALL_REDUCE, name, num_ranks)
        size = schedule.num_chunks * 10**6
        more = shape(num_ranks)[0] if min(shape(num_ranks)) > 1 else 0
        expected = (2 * (num_ranks - 1) + more) / num_ranks
        assert predict_time(schedule, Network(0.0, float(size)), size) == pytest.approx(expected, rel=1e-4), num_ranks


@pytest.mark.parametrize("key", ALGORITHMS, ids=name_of)
@pytest.mark.parametrize("num_ranks", [6, 8])
def test_a_star_is_a_uniform_network(key: Key, num_ranks: int) -> None:
    """Transfer by transfer; only the rounding of the latency differs."""
    schedule = build(*key, num_ranks)
    star, uniform = simulate(schedule, STAR, SIZE), simulate(schedule, LINK, SIZE)
    for name in COLUMNS:
        assert getattr(star, name) == pytest.approx(getattr(uniform, name), rel=1e-9)
