"""The formulas: what they say, that the simulator agrees, and which schedules they are not for."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringsim import Collective, Network, Schedule, closed_form_s, predict_time, split
from ringsim.algorithms import NCCL_ALGORITHMS, hosts_of, torus_of
from ringsim.algorithms.hierarchical import hierarchical_all_reduce
from ringsim.algorithms.rings import ring_broadcast
from ringsim.registry import ALGORITHMS, build
from ringsim.simulation import IN_ORDER, RULE, closed_form_of
from tests.ringsim.strategies import build_key, uniform_networks
from tests.ringsim.topologies import with_costs

Key = tuple[Collective, str]
WITHOUT = [key for key in ALGORITHMS if key[1] in ("double_binary_tree", "bruck", *NCCL_ALGORITHMS)]
WITHOUT += [(Collective.ALL_TO_ALL, "hierarchical")]
WITHOUT += [(collective, "binomial_tree") for collective in (Collective.GATHER, Collective.SCATTER)]
FOR_POWERS_OF_TWO = [key for key in ALGORITHMS if key[1] in ("halving_doubling", "recursive_doubling")]
FOR_POWERS_OF_TWO += [(Collective.ALL_REDUCE, "binomial_tree"), (Collective.REDUCE, "binomial_tree")]
TWO_RINGS = ("bidirectional_ring", "multi_ring")
PLAIN_RINGS = {"torus": [1, 2, 3, 5, 7, 11], "hierarchical": [1, 2, 5, 8, 11]}  # have one level
FORMULAS = [key for key in ALGORITHMS if key not in WITHOUT]
IN_ORDER_ONLY = [key for key in ALGORITHMS if key[1] == "halving_doubling"]
IN_ORDER_ONLY.append((Collective.ALL_GATHER, "recursive_doubling"))


def ranks_for(key: Key) -> st.SearchStrategy[int]:
    """Numbers of ranks for which there is a formula."""
    if key in FOR_POWERS_OF_TWO:
        return st.sampled_from([1, 2, 4, 8, 16])
    if key[1] in PLAIN_RINGS:
        return st.sampled_from(PLAIN_RINGS[key[1]])
    return st.sampled_from([*range(1, 9), 13])  # the formulas are polynomials of it, and times grow with its square


@pytest.mark.parametrize("key", FORMULAS, ids=lambda key: f"{key[0].value}-{key[1]}")
@settings(max_examples=settings.default.max_examples // 2)
@given(st.data(), st.integers(0, 20))
def test_the_simulator_takes_what_the_formula_says(key: Key, data: st.DataObject, chunk_bytes: int) -> None:
    """For every n that there is a formula for, every S that the chunks divide, and every uniform network."""
    num_ranks = data.draw(ranks_for(key))
    schedule = build_key(key, num_ranks)
    size = schedule.num_chunks * chunk_bytes
    for runtime in (RULE, IN_ORDER):
        network = data.draw(uniform_networks())
        if runtime.in_order and key[1] in TWO_RINGS:  # where applying takes no time
            network = with_costs(network, reduce_bytes_per_s=math.inf, receive_overhead_s=0.0)
        expected = closed_form_s(*key, num_ranks, size, network, runtime=runtime)
        if not runtime.in_order and key in IN_ORDER_ONLY:
            assert expected is None
            continue
        assert expected is not None
        predicted = predict_time(schedule, network, size, runtime=runtime)
        # Where ports are shared, moments closer than 1e-10 of the time are one.
        assert predicted == pytest.approx(expected, rel=1e-9, abs=1e-15)


TEXTBOOK = [  # rounds of latency, and sendings of the whole data one after another, where reducing is free
    ("all_reduce", "ring", 4, 6, 6 / 4),
    ("reduce_scatter", "ring", 4, 3, 3 / 4),
    ("all_gather", "ring", 4, 3, 3 / 4),
    ("all_reduce", "recursive_doubling", 8, 3, 3),
    ("all_reduce", "halving_doubling", 8, 6, 14 / 8),
    ("reduce_scatter", "halving_doubling", 8, 3, 7 / 8),
    ("all_gather", "recursive_doubling", 8, 3, 7 / 8),
    ("broadcast", "binomial_tree", 8, 3, 3),
    ("reduce", "binomial_tree", 8, 3, 3),
    ("broadcast", "ring", 4, 3, 1 + 2 / 16),
    ("all_reduce", "naive_ring", 4, 6, 6),
    ("all_reduce", "parameter_server", 5, 2, 8),
    ("all_reduce", "two_shot", 5, 2, 8 / 5),
    ("all_reduce", "direct", 8, 1, 7),
    ("all_reduce", "bidirectional_ring", 4, 6, 6 / 4),
    ("reduce_scatter", "direct", 8, 1, 7 / 8),
    ("broadcast", "direct", 8, 1, 7),
]


def test_the_formulas_are_those_of_the_textbooks() -> None:
    """Latency and bandwidth alone, counted by hand: 10 us a round, and 1 ms for all the data."""
    network = Network.uniform(10e-6, 1e9)
    for collective, algorithm, num_ranks, rounds, sendings in TEXTBOOK:
        time = closed_form_s(Collective(collective), algorithm, num_ranks, 1e6, network, runtime=IN_ORDER)
        assert time == pytest.approx(rounds * 10e-6 + sendings * 1e-3), (collective, algorithm)


def test_the_times_without_formula() -> None:
    """The table at the head of closed_form.py: in order and without latency, within 0.01 %."""
    for n in (12, 22, 42):
        d, (rows, _), (hosts, _) = (n - 1).bit_length(), torus_of(n), hosts_of(n)
        for collective, algorithm, multiple in (
            (Collective.REDUCE, "binomial_tree", d),
            (Collective.ALL_REDUCE, "binomial_tree", 2 * d),
            (Collective.ALL_REDUCE, "torus", 2 * (n - 1) / n + (rows + (rows > 5)) / n),
            (Collective.ALL_REDUCE, "hierarchical", 2 * (n - 1) / n + (hosts + (hosts > 5)) / n),
            (Collective.BROADCAST, "double_binary_tree", 1 + (d - 1) / (4 * d)),
            (Collective.REDUCE, "double_binary_tree", 1 + (d - 1) / (4 * d)),
            (Collective.ALL_REDUCE, "double_binary_tree", 2 + (2 * d - 3) / (4 * d)),
        ):
            schedule = build_key((collective, algorithm), n)
            size = 1000 * schedule.num_chunks
            time_s = predict_time(schedule, Network.uniform(0.0, 1e9), size, runtime=IN_ORDER)
            assert time_s == pytest.approx(multiple * size / 1e9, rel=1e-4), (collective, algorithm, n)


def test_a_ring_adds_once() -> None:
    """2(n-1)(alpha + S/(nB)) + (n-1)(S/n)/R for 4 ranks and 4 MB, overheads being part of alpha."""
    network = Network.uniform(10e-6, 1e9, reduce_bytes_per_s=4e9, gap_s=3e-6, receive_overhead_s=2e-6)
    time = closed_form_s(Collective.ALL_REDUCE, "ring", 4, 4e6, network)
    assert time == pytest.approx(6 * (15e-6 + 1e-3) + 3 * 0.25e-3)


def test_some_have_no_formula() -> None:
    """Messages that meet others at a port at times that depend on latency, and algorithms of users."""
    ports, slow_adding = Network.uniform(1e-6, 1e9), Network.uniform(1e-6, 1e9, reduce_bytes_per_s=1e9)
    for collective, algorithm, num_ranks, network in (
        *((*key, num_ranks, ports) for key in WITHOUT for num_ranks in (1, 8)),
        *((*key, 6, ports) for key in FOR_POWERS_OF_TWO),
        (Collective.ALL_REDUCE, "torus", 9, ports),
        (Collective.ALL_REDUCE, "hierarchical", 16, ports),
        (Collective.ALL_REDUCE, "bidirectional_ring", 4, slow_adding),
        (Collective.ALL_REDUCE, "my_file.py:ring", 8, ports),
    ):
        assert closed_form_s(collective, algorithm, num_ranks, 1e6, network, runtime=IN_ORDER) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: ring_broadcast(4, segments=2),
        lambda: split(build(Collective.ALL_REDUCE, "ring", 4), 2),
        lambda: hierarchical_all_reduce(8, ranks_per_host=4),
        lambda: Schedule.from_transfers(Collective.ALL_REDUCE, "ring", 4, 4, []),
    ],
)
def test_a_name_alone_makes_no_formula(make: Callable[[], Schedule]) -> None:
    """The schedule must be as `build` makes it, or the formula would be another one's."""
    schedule = make()
    network = Network.uniform(1e-6, 1e9)
    built = build(schedule.collective, schedule.algorithm, schedule.num_ranks)
    assert closed_form_of(built, network, 1e6, runtime=IN_ORDER) is not None
    assert closed_form_of(schedule, network, 1e6, runtime=IN_ORDER) is None
