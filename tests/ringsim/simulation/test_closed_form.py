"""The formulas: what they say, that the simulator agrees, and which schedules they are not for."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringsim import Collective, Network, Schedule, closed_form_s, predict_time, split
from ringsim.algorithms.chain import ring_broadcast
from ringsim.algorithms.hierarchical import hierarchical_all_reduce
from ringsim.registry import build
from ringsim.registry.algorithms import ALGORITHMS
from ringsim.simulation.closed_form import closed_form_of
from tests.ringsim.strategies import build_key, networks

Key = tuple[Collective, str]
WITHOUT = [key for key in ALGORITHMS if key[1] in ("double_binary_tree", "nccl_ring", "nccl_tree", "nvls")]
FOR_POWERS_OF_TWO = [key for key in ALGORITHMS if key[1] == "halving_doubling"]
FOR_POWERS_OF_TWO.append((Collective.ALL_GATHER, "recursive_doubling"))
TWO_RINGS = ("bidirectional_ring", "multi_ring")  # share a link between two ranks
FOR_ANY = [key for key in ALGORITHMS if key not in WITHOUT + FOR_POWERS_OF_TWO]
TWO_LEVELS = [key for key in ALGORITHMS if key[1] in ("torus", "hierarchical")]
IN_ORDER_ONLY = FOR_POWERS_OF_TWO + TWO_LEVELS
CASES = [(key, in_order) for key in FOR_ANY + FOR_POWERS_OF_TWO for in_order in (False, True)]
CASES = [(key, in_order) for key, in_order in CASES if in_order or key not in IN_ORDER_ONLY]


def ranks_for(key: Key) -> st.SearchStrategy[int]:
    """Numbers of ranks for which there is a formula."""
    if key in FOR_POWERS_OF_TWO:
        return st.sampled_from([1, 2, 4, 8, 16, 32])
    return st.integers(1, 24).filter(lambda num_ranks: num_ranks != 2 or key[1] not in TWO_RINGS)


def cases() -> st.SearchStrategy[tuple[Key, bool, int]]:
    """An algorithm, whether it is executed in order, and a number of ranks for which there is a formula."""
    return st.sampled_from(CASES).flatmap(lambda case: st.tuples(*map(st.just, case), ranks_for(case[0])))


@pytest.mark.parametrize(
    ("key", "in_order"),
    [
        pytest.param(key, in_order, id=f"{key[0].value}-{key[1]}-{'in_order' if in_order else 'permitted'}")
        for key, in_order in CASES
    ],
)
@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 20), networks())
def test_the_simulator_takes_what_the_formula_says(
    key: Key, in_order: bool, data: st.DataObject, chunk_bytes: int, network: Network
) -> None:
    """For every n that there is a formula for, every S that the chunks divide, and every uniform network."""
    schedule = build_key(key, data.draw(ranks_for(key)))
    size = schedule.num_chunks * chunk_bytes
    expected = closed_form_s(*key, schedule.num_ranks, size, network, in_order=in_order)
    assert expected is not None
    predicted = predict_time(schedule, network, size, in_order=in_order)
    assert predicted == pytest.approx(expected, rel=1e-12, abs=1e-15)


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(0, 500), networks())
def test_other_sizes_lie_between_those_that_the_chunks_divide(
    case: tuple[Key, bool, int], size: int, network: Network
) -> None:
    """All chunks are at least as large as at the one, and at most as large as at the other."""
    key, in_order, num_ranks = case
    schedule = build_key(key, num_ranks)
    below = size // schedule.num_chunks * schedule.num_chunks
    above = -(-size // schedule.num_chunks) * schedule.num_chunks
    low, high = (closed_form_s(*key, num_ranks, whole, network, in_order=in_order) for whole in (below, above))
    assert low is not None
    assert high is not None
    predicted = predict_time(schedule, network, size, in_order=in_order)
    assert low * (1 - 1e-12) <= predicted <= high * (1 + 1e-12)


@pytest.mark.parametrize("key", IN_ORDER_ONLY, ids=str)
@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 20), networks())
def test_what_the_rule_permits_takes_no_longer(
    key: Key, data: st.DataObject, chunk_bytes: int, network: Network
) -> None:
    """Where there is a formula for execution in order only: it is a bound, and what all rounds send is another."""
    schedule = build_key(key, data.draw(ranks_for(key)))
    size = schedule.num_chunks * chunk_bytes
    assert closed_form_s(*key, schedule.num_ranks, size, network) is None
    bound = closed_form_s(*key, schedule.num_ranks, size, network, in_order=True)
    assert bound is not None
    sent = size * (schedule.num_ranks - 1) / schedule.num_ranks / network.bandwidth_bytes_per_s
    halves = 2 if key[0] is Collective.ALL_REDUCE else 1
    in_two_levels = key in TWO_LEVELS  # one of whose two channels may send while the other does
    predicted = predict_time(schedule, network, size)
    assert (0 if in_two_levels else halves * sent) <= predicted * (1 + 1e-12) <= bound * (1 + 1e-9)


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
    ("all_reduce", "parameter_server", 5, 2, 2),
    ("all_reduce", "two_shot", 5, 2, 2 / 5),
]


@pytest.mark.parametrize(("collective", "algorithm", "num_ranks", "rounds", "sendings"), TEXTBOOK)
def test_the_formulas_are_those_of_the_textbooks(
    collective: str, algorithm: str, num_ranks: int, rounds: int, sendings: float
) -> None:
    """Latency and bandwidth alone, counted by hand: 10 us a round, and 1 ms for all the data."""
    time = closed_form_s(Collective(collective), algorithm, num_ranks, 1e6, Network(10e-6, 1e9), in_order=True)
    assert time == pytest.approx(rounds * 10e-6 + sendings * 1e-3)


def test_a_ring_adds_once() -> None:
    """2(n-1)(alpha + S/(nB)) + (n-1)(S/n)/R for 4 ranks and 4 MB, overheads being part of alpha."""
    network = Network(10e-6, 1e9, reduce_bytes_per_s=4e9, gap_s=3e-6, receive_overhead_s=2e-6)
    time = closed_form_s(Collective.ALL_REDUCE, "ring", 4, 4e6, network)
    assert time == pytest.approx(6 * (15e-6 + 1e-3) + 3 * 0.25e-3)


@pytest.mark.parametrize(
    ("collective", "algorithm", "num_ranks"),
    [
        (Collective.ALL_REDUCE, "double_binary_tree", 8),
        (Collective.BROADCAST, "double_binary_tree", 1),
        (Collective.ALL_REDUCE, "halving_doubling", 6),
        (Collective.ALL_GATHER, "recursive_doubling", 9),
        (Collective.ALL_REDUCE, "bidirectional_ring", 2),
        (Collective.ALL_REDUCE, "my_file.py:ring", 8),
    ],
)
def test_some_have_no_formula(collective: Collective, algorithm: str, num_ranks: int) -> None:
    """Double trees, folded gathering, two rings on one link, and what nobody here has made."""
    for in_order in (False, True):
        assert closed_form_s(collective, algorithm, num_ranks, 1e6, Network(1e-6, 1e9), in_order=in_order) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: ring_broadcast(4, segments=2),
        lambda: split(build(Collective.ALL_REDUCE, "ring", 4), 2),
        lambda: hierarchical_all_reduce(24, ranks_per_host=4),
        lambda: Schedule.from_transfers(Collective.ALL_REDUCE, "ring", 4, 4, []),
    ],
)
def test_a_name_alone_makes_no_formula(make: Callable[[], Schedule]) -> None:
    """The schedule must be as `build` makes it, or the formula would be another one's."""
    schedule = make()
    network = Network(1e-6, 1e9)
    built = build(schedule.collective, schedule.algorithm, schedule.num_ranks)
    assert closed_form_of(built, network, 1e6, in_order=True) is not None
    assert closed_form_of(schedule, network, 1e6, in_order=True) is None
