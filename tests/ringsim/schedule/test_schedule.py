"""Schedules written out, and their steps."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import numpy as np
import pytest

from ringsim import Collective, Schedule, Transfer, merge, permute_ranks
from ringsim.algorithms import ALGORITHMS
from ringsim.registry import build
from ringsim.schedule import Steps, same_transfers
from tests.ringsim.strategies import listed


def written_out(*steps: list[Transfer]) -> Schedule:
    """A schedule over three ranks and two chunks."""
    return listed(*steps, num_ranks=3, num_chunks=2)


def test_steps_behave_as_a_sequence() -> None:
    """Indexing past the end fails and slices give steps, so that loops and `reversed` work."""
    schedule = written_out([Transfer(0, 1, 0, True)], [Transfer(1, 2, 1, False)])
    assert [list(step) for step in schedule.steps] == [[(0, 1, 0, True, 0)], [(1, 2, 1, False, 0)]]
    assert [list(step) for step in reversed(schedule.steps)] == [[(1, 2, 1, False, 0)], [(0, 1, 0, True, 0)]]
    assert len(schedule.steps[:1]) == 1
    with pytest.raises(IndexError, match="step 2 of 2"):
        schedule.steps[2]


def changed_at_the_end(schedule: Schedule) -> Schedule:
    """The last transfer copies what it added, or adds what it copied."""
    steps = [list(step) for step in schedule.steps]
    steps[-1][-1] = steps[-1][-1]._replace(reduce=not steps[-1][-1].reduce)
    return Schedule.from_transfers(schedule.collective, "changed", schedule.num_ranks, schedule.num_chunks, steps)


@pytest.mark.parametrize("algorithm", ["ring", "bidirectional_ring", "halving_doubling", "direct"])
def test_transfers_are_compared_to_the_last(algorithm: str) -> None:
    """Of rings, which have no table, and of others."""
    make = partial(build, Collective.ALL_REDUCE, algorithm, 8)
    steps, table = make().steps, Steps.listed(len(make().steps), make().steps.table)
    assert same_transfers(steps, make().steps)
    assert same_transfers(steps, table)
    for other in (changed_at_the_end(make()), permute_ranks(make(), [1, 0, *range(2, 8)]), merge(make(), make())):
        assert not same_transfers(steps, other.steps)


def test_columns_are_broadcast_and_read_row_by_row() -> None:
    """Arrays of any shapes that go together give the transfers that lists of them do."""
    ranks = np.arange(3)
    columns = [(ranks[:, None], (ranks[:, None] + 1) % 3, [0, 1], True, [2, 3]), ([], 0, 0, False)]
    by_columns = Schedule.from_columns(Collective.ALL_REDUCE, "mine", 3, 2, columns)
    rows = [[(src, (src + 1) % 3, chunk, True, 2 + chunk) for src in range(3) for chunk in range(2)], []]
    assert [list(step) for step in by_columns.steps] == rows


def test_columns_do_not_change_with_the_arrays_they_came_from() -> None:
    """A generator may fill the same array anew for the next step."""
    src = np.array([0])
    schedule = Schedule.from_columns(Collective.ALL_REDUCE, "mine", 3, 1, [(src, 2, 0, True)])
    src[0] = 1
    assert list(schedule.steps[0]) == [(0, 2, 0, True, 0)]


@pytest.mark.parametrize("name", ["ring", "hierarchical", "halving_doubling"])
def test_a_schedule_is_pickled_before_and_after_its_table_is_made(name: str) -> None:
    """So it can be sent to another process: a relay as its rule, and the others as their table."""
    made, schedule = (ALGORITHMS[Collective.ALL_REDUCE, name](4) for _ in range(2))
    made.steps.table  # noqa: B018  # now it is made
    for sent in (pickle.loads(pickle.dumps(each)) for each in (made, schedule)):
        assert [list(step) for step in sent.steps] == [list(step) for step in schedule.steps]


def test_threads_that_ask_for_a_table_at_once_get_the_same() -> None:
    """The table is made once, and the function that makes it is let go."""
    steps, together = ALGORITHMS[Collective.ALL_REDUCE, "halving_doubling"](64).steps, Barrier(4)

    def asked(_: int) -> int:
        together.wait()
        return len(steps.table)

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(asked, range(4))) == {steps.num_transfers}
