"""All built-in algorithms: proved, right on numbers, as costly as the literature says, and not below the bounds."""

from collections.abc import Callable
from fractions import Fraction
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, Schedule, Transfer
from ringsim.algorithms.hierarchical import hierarchical_all_reduce
from ringsim.algorithms.nccl import (
    nccl_ring_all_gather,
    nccl_ring_all_reduce,
    nccl_ring_reduce_scatter,
    nccl_tree_all_reduce,
    nvls_all_reduce,
    rail_orders,
)
from ringsim.algorithms.rings import multi_ring_all_reduce, ring_broadcast
from ringsim.algorithms.tree import double_binary_tree_all_reduce, double_binary_tree_broadcast
from ringsim.analysis.costs import cost_of, sent_bound, steps_bound
from ringsim.registry import ALGORITHMS, build
from ringsim.schedule import replay, verify
from ringsim.schedule.collective import owners
from tests.refusals import refused, said_by
from tests.ringsim.strategies import every_algorithm

ALL_REDUCES = [name for collective, name in ALGORITHMS if collective is Collective.ALL_REDUCE]


@every_algorithm
def test_all_are_proved(collective: Collective, algorithm: str) -> None:
    """Every built-in keeps its contract and the bounds, for one rank, powers of two and their neighbours.

    If one beat a bound, either the bound or the proof would be wrong.
    """
    for num_ranks in (*range(1, 10), 12, 13, 16, 17):
        schedule = build(collective, algorithm, num_ranks)
        assert (schedule.collective, schedule.algorithm, schedule.num_ranks) == (collective, algorithm, num_ranks)
        assert verify(schedule) == (schedule.num_steps, schedule.num_transfers, 0, None)
        cost = cost_of(schedule)
        assert cost.sent >= cost.sent_bound - 1e-12


@example((Collective.ALL_REDUCE, "nccl_tree"), 65)
@example((Collective.ALL_REDUCE, "halving_doubling"), 64)
@example((Collective.ALL_REDUCE, "torus"), 121)
@given(st.sampled_from(list(ALGORITHMS)), st.integers(10, 40))
def test_all_are_proved_for_more_ranks(key: tuple[Collective, str], num_ranks: int) -> None:
    """The same for numbers of ranks that nobody chose."""
    verify(build(*key, num_ranks))


@every_algorithm
def test_as_many_transfers_as_are_claimed(collective: Collective, algorithm: str) -> None:
    """Before its table is made, and of its rows."""
    for num_ranks in (1, 2, 3, 5, 8, 12):
        schedule = build(collective, algorithm, num_ranks)
        claimed, table = (schedule.num_steps, schedule.num_transfers), schedule.steps.table
        assert claimed == (len(list(schedule.steps)), len(table))
        assert (np.diff(table.step) >= 0).all()
        assert table.step.max(initial=0) < max(schedule.num_steps, 1)


def held_before_and_after(schedule: Schedule, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random buffers (rank, element), what they must be after, and where that is looked at."""
    num_ranks, num_chunks = schedule.num_ranks, schedule.num_chunks
    before = rng.integers(-(2**40), 2**40, (num_ranks, 2 * num_chunks))
    ranks, owner = np.arange(num_ranks)[:, None], np.repeat(owners(num_ranks, num_chunks), 2)
    everywhere = np.ones(before.shape, dtype=np.bool_)
    sender, receiver = np.divmod(np.repeat(owners(num_ranks**2, num_chunks), 2), num_ranks)
    element = np.arange(len(owner))
    copied = {
        Collective.ALL_GATHER: before[owner, element],
        Collective.GATHER: before[owner, element],
        Collective.BROADCAST: before[0],
        Collective.SCATTER: before[0],
        Collective.ALL_TO_ALL: before[sender, element],
    }
    where = {
        Collective.REDUCE_SCATTER: ranks == owner,
        Collective.SCATTER: ranks == owner,
        Collective.REDUCE: everywhere & (ranks == 0),
        Collective.GATHER: everywhere & (ranks == 0),
        Collective.ALL_TO_ALL: ranks == receiver,
    }
    after = copied.get(schedule.collective, before.sum(0))
    return before, np.broadcast_to(after, before.shape), where.get(schedule.collective, everywhere)


@every_algorithm
def test_numbers_come_out_right(collective: Collective, algorithm: str) -> None:
    """Replayed on random numbers, each collective gives what numpy gives for it."""
    for num_ranks in (1, 2, 3, 6, 8, 13):
        schedule = build(collective, algorithm, num_ranks)
        before, after, where = held_before_and_after(schedule, np.random.default_rng(num_ranks))
        buffers = before.copy()
        replay(schedule, list(buffers))
        assert (buffers[where] == after[where]).all(), num_ranks


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
def test_ranks_agree_on_the_last_bit_except_in_the_one_shot(algorithm: str) -> None:
    """All ranks have the same floating-point sum; only where each adds the others to its own they cannot."""
    schedule = build(Collective.ALL_REDUCE, algorithm, 6)
    buffers = np.random.default_rng(0).normal(size=(6, 100)).astype(np.float32)
    replay(schedule, list(buffers))
    assert (buffers == buffers[0]).all() == (algorithm != "direct")


def most_sent(schedule: Schedule) -> Fraction:
    """Return the chunks that the busiest rank sends, as a multiple of the whole data."""
    sent = sum((np.bincount(step.src, minlength=schedule.num_ranks) for step in schedule.steps), np.zeros(1, int))
    return Fraction(int(sent.max()) * schedule.collective.num_tensors(schedule.num_ranks), schedule.num_chunks)


def shares(times: int) -> Callable[[int], Fraction]:
    """(n - 1)/n of the data, `times` over: the least that any algorithm can do."""
    return lambda n: times * Fraction(n - 1, n)


def set_bits(num_ranks: int) -> Fraction:
    """Bruck's blocks of a rank, each sent once for each bit that is set in the distance to where it goes."""
    return Fraction(sum(distance.bit_count() for distance in range(num_ranks)), num_ranks)


COSTS = [  # the algorithm, for which ranks, its steps and what the busiest rank sends
    ("all_reduce", "ring", [2, 7, 8], lambda n: 2 * (n - 1), shares(2)),
    ("all_reduce", "gloo_ring", [2, 7, 8], lambda n: 4 * (n - 1), shares(2)),
    ("all_reduce", "bidirectional_ring", [2, 7, 8], lambda n: 4 * (n - 1), shares(2)),
    ("all_reduce", "multi_ring", [2, 7, 8], lambda n: 4 * (n - 1), shares(2)),
    ("all_reduce", "recursive_doubling", [2, 8, 32], log2, log2),
    ("all_reduce", "recursive_doubling", [3, 9, 31], lambda n: int(log2(n)) + 2, lambda n: int(log2(n)) + 1),
    ("all_reduce", "halving_doubling", [2, 8, 32], lambda n: 2 * log2(n), shares(2)),
    ("all_reduce", "halving_doubling", [6], lambda _: 2 * 2 + 2, lambda _: Fraction(3, 2) + 1),
    ("all_reduce", "binomial_tree", [2, 5, 8, 9], lambda n: 2 * ceil(log2(n)), lambda n: ceil(log2(n))),
    ("all_reduce", "double_binary_tree", [4, 8, 32], lambda n: 2 * (6 * log2(n) - 1), lambda _: 2),
    ("all_reduce", "direct", [2, 7, 8], lambda _: 1, lambda n: n - 1),
    ("all_reduce", "two_shot", [2, 7, 8], lambda _: 2, shares(2)),
    ("all_reduce", "torus", [16], lambda _: 2 * (3 * 4 + 3), shares(2)),
    ("all_reduce", "torus", [12], lambda _: 2 * (3 * 3 + 2), shares(2)),  # 3 rows, 4 columns
    ("all_reduce", "torus", [7], lambda _: 2 * 6, shares(2)),
    ("all_reduce", "hierarchical", [24], lambda _: 2 * (7 * 3 + 2), shares(2)),
    ("all_reduce", "nccl_ring", [16, 24], lambda n: 8 * 2 * (n - 1), shares(2)),
    ("all_reduce", "nccl_ring", [2, 7], lambda n: n * 2 * (n - 1), shares(2)),
    ("all_reduce", "nccl_tree", [8], lambda _: 16 * (2 * 7 + 28 - 1), shares(2)),
    ("all_reduce", "nccl_tree", [16], lambda _: 16 * (2 * 8 + 4 * 8 - 1), shares(2)),
    ("all_reduce", "nccl_tree", [64], lambda _: 16 * (2 * 10 + 4 * 10 - 1), lambda _: 2),
    ("all_reduce", "nvls", [2, 7, 8], lambda n: n * 33, shares(2)),
    ("all_reduce", "nvls", [16], lambda _: 8 * 2 * 35, shares(2)),
    ("all_reduce", "nvls", [64], lambda _: 8 * 2 * (2 + 2 * 3 + 31), lambda _: 2),
    ("all_reduce", "parameter_server", [2, 7, 8], lambda _: 2, lambda n: n - 1),
    ("all_reduce", "naive_ring", [3, 7, 8], lambda n: 2 * (n - 1), lambda _: 2),
    ("reduce_scatter", "ring", [2, 7, 8], lambda n: n - 1, shares(1)),
    ("reduce_scatter", "bidirectional_ring", [2, 7, 8], lambda n: 2 * (n - 1), shares(1)),
    ("reduce_scatter", "multi_ring", [2, 7, 8], lambda n: 2 * (n - 1), shares(1)),
    ("reduce_scatter", "nccl_ring", [7, 16], lambda n: min(n, 8) * (n - 1), shares(1)),
    ("reduce_scatter", "halving_doubling", [2, 8, 32], log2, shares(1)),
    ("reduce_scatter", "direct", [2, 7, 8], lambda _: 1, shares(1)),
    ("all_gather", "ring", [2, 7, 8], lambda n: n - 1, shares(1)),
    ("all_gather", "gloo_ring", [2, 7, 8], lambda n: 2 * (n - 1), shares(1)),
    ("all_gather", "bidirectional_ring", [2, 7, 8], lambda n: 2 * (n - 1), shares(1)),
    ("all_gather", "multi_ring", [2, 7, 8], lambda n: 2 * (n - 1), shares(1)),
    ("all_gather", "nccl_ring", [7, 16], lambda n: min(n, 8) * (n - 1), shares(1)),
    ("all_gather", "recursive_doubling", [2, 8, 32], log2, shares(1)),
    ("all_gather", "halving_doubling", [2, 8, 32], log2, shares(1)),
    ("all_gather", "direct", [2, 7, 8], lambda _: 1, shares(1)),
    ("broadcast", "ring", [2, 7, 8], lambda n: 4 * n + n - 2, lambda _: 1),
    ("broadcast", "binomial_tree", [2, 5, 8, 9], lambda n: ceil(log2(n)), lambda n: ceil(log2(n))),
    ("broadcast", "double_binary_tree", [4, 8, 32], lambda n: 2 * (5 * log2(n) - 1), lambda _: 1),
    ("broadcast", "direct", [2, 7, 8], lambda _: 1, lambda n: n - 1),
    ("reduce", "ring", [2, 7, 8], lambda n: 4 * n + n - 2, lambda _: 1),
    ("reduce", "binomial_tree", [2, 5, 8, 9], lambda n: ceil(log2(n)), lambda _: 1),
    ("reduce", "double_binary_tree", [4, 8, 32], lambda n: 2 * (5 * log2(n) - 1), lambda _: 1),
    ("reduce", "direct", [2, 7, 8], lambda _: 1, lambda _: 1),
    ("gather", "binomial_tree", [2, 4, 8], log2, lambda _: Fraction(1, 2)),
    ("gather", "binomial_tree", [5, 9], lambda n: ceil(log2(n)), lambda n: Fraction(n // 2, n)),
    ("gather", "direct", [2, 7, 8], lambda _: 1, lambda n: Fraction(1, n)),
    ("scatter", "binomial_tree", [2, 5, 8, 9], lambda n: ceil(log2(n)), shares(1)),
    ("scatter", "direct", [2, 7, 8], lambda _: 1, shares(1)),
    ("all_to_all", "pairwise", [2, 7, 8], lambda n: n - 1, shares(1)),
    ("all_to_all", "direct", [2, 7, 8], lambda _: 1, shares(1)),
    ("all_to_all", "bruck", [2, 4, 8], log2, lambda n: Fraction(int(log2(n)), 2)),
    ("all_to_all", "bruck", [3, 7, 9], lambda n: ceil(log2(n)), set_bits),
    ("all_to_all", "hierarchical", [24], lambda _: 7 + 2, lambda _: Fraction(7, 8) + Fraction(2, 3)),
    ("all_to_all", "hierarchical", [2, 7, 8], lambda n: n - 1, shares(1)),  # one host
]


@pytest.mark.parametrize(("collective", "algorithm", "rank_counts", "num_steps", "sent"), COSTS)
def test_steps_and_bytes_are_the_known_ones(
    collective: str,
    algorithm: str,
    rank_counts: list[int],
    num_steps: Callable[[int], float],
    sent: Callable[[int], Fraction],
) -> None:
    """As many steps, and as much sent by the busiest rank, as each docstring says."""
    for num_ranks in rank_counts:
        schedule = build(Collective(collective), algorithm, num_ranks)
        assert (schedule.num_steps, most_sent(schedule)) == (num_steps(num_ranks), sent(num_ranks)), num_ranks


def test_no_algorithm_is_without_its_cost() -> None:
    """Whoever registers an algorithm says what it costs."""
    assert {(Collective(collective), name) for collective, name, *_ in COSTS} == set(ALGORITHMS)


@pytest.mark.parametrize("num_ranks", [*range(2, 19), 31, 32, 33, 65])
def test_no_rank_passes_on_in_both_trees(num_ranks: int) -> None:
    """No rank passes on in both trees, is deeper than in a binomial tree, or has three children."""
    passed_on: list[set[int]] = [set(), set()]
    schedule = double_binary_tree_broadcast(num_ranks, segments=1)
    for step in schedule.steps:
        assert np.bincount(step.src).max() <= 2
        passed_on[int(step.chunk[0])] |= set(step.src.tolist()) - {0}
    assert not passed_on[0] & passed_on[1]
    assert schedule.num_steps <= 2 * ceil(log2(num_ranks))


def test_gloo_ring_runs_to_the_left_in_two_segments() -> None:
    """Step by step for three ranks: what Gloo sends, first segment before second."""
    schedule = build(Collective.ALL_REDUCE, "gloo_ring", 3)
    sent = [[2, 4, 0], [3, 5, 1], [4, 0, 2], [5, 1, 3], [0, 2, 4], [1, 3, 5], [2, 4, 0], [3, 5, 1]]  # by ranks 0, 1, 2
    assert [list(step) for step in schedule.steps] == [
        [
            Transfer(0, 2, chunks[0], index < 4),
            Transfer(1, 0, chunks[1], index < 4),
            Transfer(2, 1, chunks[2], index < 4),
        ]
        for index, chunks in enumerate(sent)
    ]


def test_rings_of_rings_use_different_links() -> None:
    """A mirror uses the other direction of each link; four strides of eight ranks use four times the links of one."""
    for algorithm, ways in (("bidirectional_ring", 2), ("multi_ring", 2)):
        hops = {transfer[:2] for step in build(Collective.ALL_REDUCE, algorithm, 8).steps for transfer in step}
        assert len(hops) == ways * 8
    schedule = multi_ring_all_reduce(8, num_rings=4)
    verify(schedule)
    assert len({transfer[:2] for step in schedule.steps for transfer in step}) == 4 * 8


def test_the_orders_of_nccl_s_rings_are_those_it_prints() -> None:
    """Channels 0 and 1 of three hosts of eight, as in github.com/NVIDIA/nccl/issues/1671 after the rings alternate."""
    first, second = rail_orders([8, 8, 8])[:2].tolist()
    assert first == [0, 7, 6, 5, 4, 3, 2, 1, 9, 10, 11, 12, 13, 14, 15, 8, 16, 23, 22, 21, 20, 19, 18, 17]
    assert second == [1, 2, 3, 4, 5, 6, 7, 0, 8, 15, 14, 13, 12, 11, 10, 9, 17, 18, 19, 20, 21, 22, 23, 16]


@pytest.mark.parametrize("make", [nccl_ring_all_reduce, nccl_ring_reduce_scatter, nccl_ring_all_gather])
@pytest.mark.parametrize(
    "hosts",
    [[2] * 2, [4] * 4, [3] * 3, [5] * 2, [8] * 5, [1] * 4, [8, 4], [8, 1], [8, 8, 5], [7, 6], [2, 3, 1], [3, 8]],
)
def test_each_nic_carries_one_ring_in_and_one_out(make: Callable[..., Schedule], hosts: list[int]) -> None:
    """As many rings as the smallest host has ranks; an even number of them, over as many hosts, changes no rails."""
    schedule = make(sum(hosts), hosts)
    verify(schedule)
    host, place = (
        np.array(column) for column in zip(*[(h, p) for h, m in enumerate(hosts) for p in range(m)], strict=True)
    )
    crossing = {(t.src, t.dst, t.channel) for step in schedule.steps for t in step if host[t.src] != host[t.dst]}
    for end in (0, 1):
        ranks = [hop[end] for hop in crossing]
        assert len(set(ranks)) == len(ranks) == min(hosts) * len(hosts)
    if min(hosts) % 2 == 0 and len(hosts) % 2 == 0:
        assert all(place[src] == place[dst] for src, dst, _ in crossing)


@pytest.mark.parametrize("make", [nccl_tree_all_reduce, nvls_all_reduce])
@pytest.mark.parametrize("hosts", [[8], [4] * 2, [3] * 3, [2] * 5, [1] * 6, [16] * 2, [8, 4], [8, 8, 1], [2, 5, 3]])
def test_trees_stay_on_their_rails(make: Callable[..., Schedule], hosts: list[int]) -> None:
    """For hosts of any size; and no NIC sends more than twice its share, (h - 1) times where that is less."""
    schedule = make(sum(hosts), segments=2, ranks_per_host=hosts)
    verify(schedule)
    host, place = (
        np.array(column) for column in zip(*[(h, p) for h, m in enumerate(hosts) for p in range(m)], strict=True)
    )
    crossing = [t for step in schedule.steps for t in step if host[t.src] != host[t.dst]]
    assert all(place[t.src] == place[t.dst] for t in crossing)
    sent = np.bincount([t.src for t in crossing], minlength=1).max(initial=0)
    assert Fraction(int(sent), schedule.num_chunks) <= Fraction(min(2, len(hosts) - 1), min(hosts))


@every_algorithm
def test_no_ranks_are_refused(collective: Collective, algorithm: str) -> None:
    """The message names the value, whatever the algorithm would have made of it."""
    for num_ranks in (0, -1):
        with refused(f"num_ranks {num_ranks}: must be at least 1"):
            build(collective, algorithm, num_ranks)


WRONG: list[Callable[[], Schedule]] = [
    lambda: hierarchical_all_reduce(12, 5),
    lambda: hierarchical_all_reduce(12, 0),
    lambda: nccl_ring_all_reduce(12, 0),
    lambda: nccl_tree_all_reduce(12, None, [8, 3]),
    lambda: nvls_all_reduce(12, segments=0),
    lambda: multi_ring_all_reduce(8, 0),
    lambda: ring_broadcast(8, 0),
    lambda: double_binary_tree_all_reduce(8, 0),
]


def test_parameters_that_do_not_fit_are_refused(snapshot: SnapshotAssertion) -> None:
    """The message names the parameter, the value and the rule."""
    assert [said_by(ValueError, make) for make in WRONG] == snapshot


def test_a_large_ring_is_not_materialised() -> None:
    """65,536 ranks: any step is there at once, and every rank passes on what came in the step before."""
    n = 65536
    schedule, rank = build(Collective.ALL_REDUCE, "ring", n), np.arange(n)
    assert (schedule.num_steps, schedule.num_transfers) == (131070, 131070 * n)
    for index in (1, n - 1, 100_000):  # of which one is the all-gather's first
        before, step = schedule.steps[index - 1], schedule.steps[index]
        assert (before.dst[(rank - 1) % n] == step.src).all()
        assert (before.chunk[(rank - 1) % n] == step.chunk).all()
        assert step.reduce.tolist() == [index < n - 1] * n


def test_bounds_by_hand() -> None:
    """Four ranks: an all-reduce must send six quarters; a broadcast all of it; news reaches four in two steps."""
    assert [sent_bound(c, 4) for c in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST)] == [
        1.5,
        0.75,
        1,
    ]
    assert [steps_bound(n) for n in (1, 2, 3, 4, 5, 8, 9)] == [0, 1, 2, 2, 3, 3, 4]
    assert sent_bound(Collective.REDUCE, 1) == 0.0
