"""The formulas: what they say, that the simulator agrees, and which schedules they are not for."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsim import Collective, Network, Schedule, closed_form_s, predict_time, split
from ringsim.algorithms.hierarchical import hierarchical_all_reduce
from ringsim.algorithms.rings import ring_broadcast
from ringsim.registry import ALGORITHMS, NCCL_ALGORITHMS, build
from ringsim.simulation import IN_ORDER, RULE, Runtime, closed_form_of
from tests.ringsim.strategies import build_key, uniform_networks
from tests.ringsim.topologies import PrivateLinks

Key = tuple[Collective, str]
WITHOUT = [key for key in ALGORITHMS if key[1] in ("double_binary_tree", "bruck", *NCCL_ALGORITHMS)]
WITHOUT += [(Collective.ALL_TO_ALL, "hierarchical")]
WITHOUT += [(collective, "binomial_tree") for collective in (Collective.GATHER, Collective.SCATTER)]
FOR_POWERS_OF_TWO = [key for key in ALGORITHMS if key[1] in ("halving_doubling", "recursive_doubling")]
FOR_POWERS_OF_TWO += [(Collective.ALL_REDUCE, "binomial_tree"), (Collective.REDUCE, "binomial_tree")]
TWO_RINGS = ("bidirectional_ring", "multi_ring")
PLAIN_RINGS = {"torus": [1, 2, 3, 5, 7, 11, 13, 23], "hierarchical": [1, 2, 5, 8, 11, 23]}  # have one level
FORMULAS = [key for key in ALGORITHMS if key not in WITHOUT]
IN_ORDER_ONLY = [key for key in ALGORITHMS if key[1] == "halving_doubling"]
IN_ORDER_ONLY.append((Collective.ALL_GATHER, "recursive_doubling"))
MODES = [
    (key, runtime) for key in FORMULAS for runtime in (RULE, IN_ORDER) if runtime.in_order or key not in IN_ORDER_ONLY
]


def ranks_for(key: Key) -> st.SearchStrategy[int]:
    """Numbers of ranks for which there is a formula."""
    if key in FOR_POWERS_OF_TWO:
        return st.sampled_from([1, 2, 4, 8, 16, 32])
    if key[1] in PLAIN_RINGS:
        return st.sampled_from(PLAIN_RINGS[key[1]])
    return st.integers(1, 24)


def networks_for(key: Key, runtime: Runtime) -> st.SearchStrategy[Network]:
    """Networks for which there is a formula: in order, two rings apply in no time."""
    if key[1] not in TWO_RINGS or not runtime.in_order:
        return uniform_networks()
    return uniform_networks().map(lambda network: replace(network, reduce_bytes_per_s=math.inf, receive_overhead_s=0.0))


Case = tuple[Key, Runtime, int, Network]


def cases(modes: Sequence[tuple[Key, Runtime]] = MODES) -> st.SearchStrategy[Case]:
    """An algorithm, who executes it, a number of ranks and a network for which there is a formula."""
    triples = st.sampled_from(modes).flatmap(lambda mode: st.tuples(*map(st.just, mode), ranks_for(mode[0])))
    return triples.flatmap(lambda triple: st.tuples(*map(st.just, triple), networks_for(*triple[:2])))


@pytest.mark.parametrize(
    "mode", MODES, ids=lambda mode: f"{mode[0][0].value}-{mode[0][1]}-{'in_order' if mode[1].in_order else 'permitted'}"
)
@given(st.data(), st.integers(0, 20))
def test_the_simulator_takes_what_the_formula_says(
    mode: tuple[Key, Runtime], data: st.DataObject, chunk_bytes: int
) -> None:
    """For every n that there is a formula for, every S that the chunks divide, and every uniform network."""
    key, runtime, num_ranks, network = data.draw(cases([mode]))
    schedule = build_key(key, num_ranks)
    size = schedule.num_chunks * chunk_bytes
    expected = closed_form_s(*key, num_ranks, size, network, runtime=runtime)
    assert expected is not None
    predicted = predict_time(schedule, network, size, runtime=runtime)
    # Where ports are shared, moments closer than 1e-10 of the time are one.
    assert predicted == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("key", IN_ORDER_ONLY, ids=str)
@given(st.data(), st.integers(1, 20))
def test_what_the_rule_permits_takes_no_longer(key: Key, data: st.DataObject, chunk_bytes: int) -> None:
    """Where there is a formula for execution in order only: that is a bound, and what is sent is another."""
    _, _, num_ranks, network = data.draw(cases([(key, IN_ORDER)]))
    schedule = build_key(key, num_ranks)
    size = schedule.num_chunks * chunk_bytes
    assert num_ranks == 1 or closed_form_s(*key, num_ranks, size, network) is None
    bound = closed_form_s(*key, num_ranks, size, network, runtime=IN_ORDER)
    assert bound is not None
    halves = 2 if key[0] is Collective.ALL_REDUCE else 1
    sent_s = halves * size * (num_ranks - 1) / num_ranks / network.bandwidth_bytes_per_s
    assert sent_s * (1 - 1e-12) <= predict_time(schedule, PrivateLinks(**asdict(network)), size) <= bound * (1 + 1e-9)


def is_even(case: Case) -> bool:
    """Whether no messages of unlike sizes meet at a port, so that one of them comes late.

    In a pairwise all_to_all a rank whose messages are shorter goes on to a receiver that another one still sends to.
    """
    key, *_ = case
    return key[1] not in (*TWO_RINGS, "pairwise") and key not in FOR_POWERS_OF_TWO


@given(cases().filter(is_even), st.integers(0, 500))
def test_other_sizes_lie_between_those_that_the_chunks_divide(case: Case, size: int) -> None:
    """All chunks are at least as large as at the one, and at most as large as at the other."""
    key, runtime, num_ranks, network = case
    schedule = build_key(key, num_ranks)
    below = size // schedule.num_chunks * schedule.num_chunks
    above = -(-size // schedule.num_chunks) * schedule.num_chunks
    low, high = (closed_form_s(*key, num_ranks, whole, network, runtime=runtime) for whole in (below, above))
    assert low is not None
    assert high is not None
    predicted = predict_time(schedule, network, size, runtime=runtime)
    assert low * (1 - 1e-9) <= predicted <= high * (1 + 1e-9)


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


@pytest.mark.parametrize(("collective", "algorithm", "num_ranks", "rounds", "sendings"), TEXTBOOK)
def test_the_formulas_are_those_of_the_textbooks(
    collective: str, algorithm: str, num_ranks: int, rounds: int, sendings: float
) -> None:
    """Latency and bandwidth alone, counted by hand: 10 us a round, and 1 ms for all the data."""
    time = closed_form_s(Collective(collective), algorithm, num_ranks, 1e6, Network(10e-6, 1e9), runtime=IN_ORDER)
    assert time == pytest.approx(rounds * 10e-6 + sendings * 1e-3)


def test_a_ring_adds_once() -> None:
    """2(n-1)(alpha + S/(nB)) + (n-1)(S/n)/R for 4 ranks and 4 MB, overheads being part of alpha."""
    network = Network(10e-6, 1e9, reduce_bytes_per_s=4e9, gap_s=3e-6, receive_overhead_s=2e-6)
    time = closed_form_s(Collective.ALL_REDUCE, "ring", 4, 4e6, network)
    assert time == pytest.approx(6 * (15e-6 + 1e-3) + 3 * 0.25e-3)


PORTS, SLOW_ADDING = Network(1e-6, 1e9), Network(1e-6, 1e9, reduce_bytes_per_s=1e9)


@pytest.mark.parametrize(
    ("collective", "algorithm", "num_ranks", "network"),
    [
        (Collective.ALL_REDUCE, "double_binary_tree", 8, PORTS),
        (Collective.BROADCAST, "double_binary_tree", 1, PORTS),
        (Collective.ALL_REDUCE, "halving_doubling", 6, PORTS),
        (Collective.ALL_REDUCE, "recursive_doubling", 6, PORTS),
        (Collective.ALL_GATHER, "recursive_doubling", 9, PORTS),
        (Collective.REDUCE, "binomial_tree", 5, PORTS),
        (Collective.ALL_REDUCE, "torus", 9, PORTS),
        (Collective.ALL_REDUCE, "hierarchical", 16, PORTS),
        (Collective.ALL_REDUCE, "bidirectional_ring", 4, SLOW_ADDING),
        (Collective.ALL_REDUCE, "my_file.py:ring", 8, PORTS),
    ],
)
def test_some_have_no_formula(collective: Collective, algorithm: str, num_ranks: int, network: Network) -> None:
    """No formula: messages that meet others at a port at times that depend on latency, and algorithms of users."""
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
    network = Network(1e-6, 1e9)
    built = build(schedule.collective, schedule.algorithm, schedule.num_ranks)
    assert closed_form_of(built, network, 1e6, runtime=IN_ORDER) is not None
    assert closed_form_of(schedule, network, 1e6, runtime=IN_ORDER) is None
