"""Wrong values that users hand over in place of steps and numbers, and the one line in which they are refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ringsim import (
    Collective,
    Schedule,
    ScheduleError,
    Transfer,
    algorithm,
    merge,
    on_channel,
    on_groups,
    permute_ranks,
    pipeline,
    ring_all_reduce,
    split,
    then,
    verify,
)

SEND = Transfer(0, 1, 0, False)
RIGHT = Schedule.from_transfers(Collective.BROADCAST, "mine", 2, 1, [[SEND]])


def of_transfers(steps: Any, **changes: Any) -> Schedule:
    """A broadcast over two ranks, with whatever is wrong about it."""
    given = {"collective": Collective.BROADCAST, "algorithm": "mine", "num_ranks": 2, "num_chunks": 1} | changes
    return Schedule.from_transfers(**given, steps=steps)


def of_columns(*columns: Any) -> Schedule:
    """The same from the columns of one step."""
    return Schedule.from_columns(Collective.BROADCAST, "mine", 2, 1, [columns])


NEEDED = "which has src, dst, chunk, reduce, channel; a step is a list of transfers"
MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: of_transfers(None), "steps None: must be a list, with a list of transfers for each step"),
    (lambda: of_transfers([None]), "step 0: None is no list of transfers"),
    (lambda: of_transfers(["abcd"]), "step 0: 'abcd' is no list of transfers"),
    (lambda: of_transfers([SEND]), f"step 0: {SEND} is a transfer: a step must be a list of"),
    (lambda: of_transfers([[3]]), f"step 0: 3 is no transfer, {NEEDED}"),
    (lambda: of_transfers([[{"src": 0}]]), f"step 0: {{'src': 0}} is no transfer, {NEEDED}"),
    (lambda: of_transfers([[[0, 1, 0]]]), "(0, 1, 0) is no transfer: it must have src, dst, chunk, reduce, "),
    (lambda: of_transfers([[[[0], 1, 0, True]]]), "step 0: src [0] is not a whole number"),
    (lambda: of_transfers([[(0, 1, 0.5, True)]]), "step 0: chunk 0.5 is not a whole number"),
    (lambda: of_transfers([[("0", 1, 0, True)]]), "step 0: src '0' is not a whole number"),
    (lambda: of_transfers([[(None, 1, 0, True)]]), "step 0: src None is not a whole number"),
    (lambda: of_transfers([[(0, 1, 2**70, True)]]), "a number does not fit 64 bits"),
    (lambda: of_transfers([[(0, 1, 0, "sum")]]), "step 0: reduce 'sum': must be True or False"),
    (lambda: of_transfers([[(0, 1, 0, 2)]]), "step 0: reduce 2: must be True or False"),
    (lambda: of_transfers([], num_ranks=2.0), "num_ranks 2.0: must be a whole number"),
    (lambda: of_transfers([], num_ranks=0), "num_ranks 0: must be at least 1"),
    (lambda: of_transfers([], num_chunks=None), "num_chunks None: must be a whole number"),
    (lambda: of_transfers([], num_chunks=-1), "num_chunks -1: must be at least 1"),
    (lambda: of_transfers([], collective="broadcast"), "collective 'broadcast': must be one of Collective"),
    (lambda: of_transfers([], algorithm=3), "algorithm 3: must be a name"),
    (lambda: Schedule(Collective.BROADCAST, "mine", 2, 1, [[SEND]]), "must be Steps, which Schedule."),
    (lambda: of_columns([0], [1], [0]), "it has 3 columns: must have src, dst, chunk, reduce"),
    (lambda: of_columns(0, 1, 0, True, 0, 0), "step 0: it has 6 columns: must have"),
    (lambda: Schedule.from_columns(Collective.REDUCE, "mine", 2, 1, [5]), "5: must be the columns src, dst"),
    (lambda: of_transfers([[(0, 1, 0, True, 0.5)]]), "step 0: channel 0.5 is not a whole number"),
    (lambda: on_channel(RIGHT, "1"), "channel '1': must be a whole number"),
    (lambda: of_columns([0.5], [1], [0], [False]), "step 0: src [0.5]: must be whole numbers"),
    (lambda: of_columns([np.nan], 1, 0, True), "step 0: src [nan]: must be whole numbers"),
    (lambda: of_columns(0, None, 0, True), "step 0: dst None: must be whole numbers"),
    (lambda: of_columns([[0], [0, 1]], 1, 0, True), "step 0: src [[0], [0, 1]]: must be whole"),
    (lambda: of_columns([2**70], 1, 0, True), "must be whole numbers"),
    (lambda: of_columns(0, 1, 0, [2]), "step 0: reduce [2]: must be True or False"),
    (lambda: of_columns([0, 0], [1, 1, 1], 0, True), "columns have 2, 3, 1, 1 values: each must have as many as"),
    (lambda: merge(RIGHT, 5), "merge: 5 is no Schedule"),
    (lambda: then(RIGHT, None, Collective.BROADCAST, "two"), "then: None is no Schedule"),
    (lambda: split(RIGHT, "2"), "segments '2': must be a whole number"),
    (lambda: pipeline(RIGHT, 2.5), "segments 2.5: must be a whole number"),
    (lambda: permute_ranks(RIGHT, [0, 1.5]), "order [0, 1.5]: must be whole numbers"),
    (lambda: permute_ranks(RIGHT, 1), "order 1: must have each rank 0..1"),
    (lambda: on_groups(RIGHT, [[0.5, 1]], 2, 1, Collective.BROADCAST), "groups [[0.5, 1]]: must be whole numbers"),
    (lambda: on_groups(RIGHT, [[0, 1], [2]], 3, 1, Collective.BROADCAST), "groups [[0, 1], [2]]: must be whole"),
    (lambda: on_groups(RIGHT, [[0, 1]], 2.0, 1, Collective.BROADCAST), "num_ranks 2.0: must"),
    (lambda: ring_all_reduce("2"), "num_ranks '2': must be a whole number"),
    (lambda: algorithm("ring", 2.0), "num_ranks 2.0: must be a whole"),
    (lambda: algorithm(5, 2), "algorithm 5: must be a name, such as 'ring'"),
    (lambda: algorithm("ring", 2, "broadcats"), "scatter, all_to_all; did you mean broadcast?"),
    (lambda: replace(RIGHT, partition=None), "partition None: must be a function as partition is"),
    (
        lambda: verify(replace(RIGHT, partition=lambda elements, _: [0.0, elements])),
        "bounds [0.0, 0]: must be whole numbers",
    ),
    (
        lambda: verify(replace(RIGHT, partition=lambda elements, _: np.array([0, 1 // elements]))),
        "partition: for 0 elements in 1 chunk: it raised ZeroDivisionError: ",
    ),
]


@pytest.mark.parametrize(("make", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_the_message_is_ours_and_one_line(make: Callable[[], object], message: str) -> None:
    """Neither a traceback nor the words of NumPy, and no value is rounded to one that would do."""
    with pytest.raises((ValueError, ScheduleError)) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_may_be_gone_through_is_as_good_as_a_list() -> None:
    """Generators, tuples, arrays, and NumPy's own numbers."""
    row = (np.int64(0), 1, np.int32(0), np.False_)
    for steps in (([row],), [np.array([[0, 1, 0, 0]])], ((iter(row) for _ in range(1)) for _ in range(1))):
        assert [list(step) for step in of_transfers(steps).steps] == [[SEND]]
    assert [list(step) for step in of_columns([0], 1, np.array([0]), False).steps] == [[SEND]]
    assert [list(step) for step in of_columns([], [], [], []).steps] == [[]]
