"""The ring generators."""

import numpy as np
import pytest

from ringsim import Collective, Schedule, build, ring_reduce_scatter, verify
from ringsim.algorithms import ALGORITHMS

ALL = [pytest.param(*key, id=f"{key[0].value}-{key[1]}") for key in ALGORITHMS]


def listed(schedule: Schedule) -> Schedule:
    """The same transfers, with the columns worked out from a table instead of claimed by the generator."""
    rows = [list(step) for step in schedule.steps]
    return Schedule.from_transfers(
        schedule.collective, schedule.algorithm, schedule.num_ranks, schedule.num_chunks, rows
    )


@pytest.mark.parametrize(("collective", "algorithm"), ALL)
@pytest.mark.parametrize("num_ranks", [*range(1, 18), 31, 33])
def test_rings_are_proved(collective: Collective, algorithm: str, num_ranks: int) -> None:
    """Every built-in keeps its contract, for one rank, powers of two and everything between."""
    schedule = build(collective, algorithm, num_ranks)
    proof = verify(schedule)
    assert proof.num_transfers == schedule.num_transfers
    assert proof.num_steps == len(schedule.steps)


@pytest.mark.parametrize(("collective", "algorithm"), ALL)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 8])
def test_columns_that_rings_claim_are_those_of_a_table(collective: Collective, algorithm: str, num_ranks: int) -> None:
    """Lazily computed `ready_after` and `last_write` equal what a table of ranks x chunks gives."""
    lazy = build(collective, algorithm, num_ranks)
    table = listed(lazy)
    for a, b in zip(lazy.steps, table.steps, strict=True):
        assert a.ready_after.tolist() == b.ready_after.tolist()
    rank, chunk = (grid.ravel() for grid in np.meshgrid(np.arange(num_ranks), np.arange(lazy.num_chunks)))
    assert lazy.steps.last_write(rank, chunk).tolist() == table.steps.last_write(rank, chunk).tolist()


@pytest.mark.parametrize("num_ranks", [2, 4, 7])
def test_every_rank_sends_the_least_it_can(num_ranks: int) -> None:
    """All-reduce: 2(n-1) steps, and in each of them every rank sends one chunk of n and receives one."""
    schedule = build(Collective.ALL_REDUCE, "ring", num_ranks)
    assert (schedule.num_steps, schedule.num_chunks) == (2 * (num_ranks - 1), num_ranks)
    for step in schedule.steps:
        assert sorted(step.src.tolist()) == sorted(step.dst.tolist()) == list(range(num_ranks))
        assert sorted(step.chunk.tolist()) == list(range(num_ranks))


def test_the_table_in_the_docstring() -> None:
    """The worked example for four ranks is what the generator gives."""
    sent = [[transfer.chunk for transfer in step] for step in ring_reduce_scatter(4).steps]
    assert sent == [[3, 0, 1, 2], [2, 3, 0, 1], [1, 2, 3, 0]]


def test_unknown_algorithms_and_no_ranks_are_refused() -> None:
    """The message names what there is."""
    with pytest.raises(ValueError) as error:  # noqa: PT011  the message is compared below
        build(Collective.BROADCAST, "tree", 4)
    assert str(error.value) == (
        "algorithm 'tree': broadcast has ring, binomial_tree, double_binary_tree, direct; "
        "or give your own as FILE.py:FUNCTION"
    )
    with pytest.raises(ValueError, match="^num_ranks 0: must be at least 1$"):
        build(Collective.ALL_REDUCE, "ring", 0)


def test_a_large_ring_is_not_materialised() -> None:
    """65,536 ranks: any step is there at once, and waits for the step before it only."""
    schedule = build(Collective.ALL_REDUCE, "ring", 65536)
    assert (schedule.num_steps, schedule.steps.lookback) == (131070, 1)
    assert (schedule.steps[100_000].ready_after == 99_999).all()
    assert (schedule.steps[65535].ready_after == 65534).all()  # the all-gather's first step
