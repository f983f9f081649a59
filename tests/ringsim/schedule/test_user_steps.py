"""What users hand over in place of steps and numbers, and the one line that it ends in."""

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
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "no steps": (lambda: of_transfers(None), "steps None: must be a list, with a list of transfers for each step"),
    "a number of steps": (lambda: of_transfers(7), "steps 7: must be a list, with a list of transfers for each step"),
    "a step that is none": (lambda: of_transfers([None]), "step 0: None is no list of transfers"),
    "a number as a step": (lambda: of_transfers([[], 5]), "step 1: 5 is no list of transfers"),
    "text as a step": (lambda: of_transfers(["abcd"]), "step 0: 'abcd' is no list of transfers"),
    "transfers without steps": (
        lambda: of_transfers([SEND]),
        f"step 0: {SEND} is a transfer: a step must be a list of",
    ),
    "a number as a transfer": (lambda: of_transfers([[3]]), f"step 0: 3 is no transfer, {NEEDED}"),
    "text as a transfer": (lambda: of_transfers([["0100"]]), f"step 0: '0100' is no transfer, {NEEDED}"),
    "a dict as a transfer": (lambda: of_transfers([[{"src": 0}]]), f"step 0: {{'src': 0}} is no transfer, {NEEDED}"),
    "too short a transfer": (
        lambda: of_transfers([[[0, 1, 0]]]),
        "(0, 1, 0) is no transfer: it must have src, dst, chunk, reduce, and may have",
    ),
    "lists in a transfer": (lambda: of_transfers([[[[0], 1, 0, True]]]), "step 0: src [0] is not a whole number"),
    "half a chunk": (lambda: of_transfers([[(0, 1, 0.5, True)]]), "step 0: chunk 0.5 is not a whole number"),
    "a rank as text": (lambda: of_transfers([[("0", 1, 0, True)]]), "step 0: src '0' is not a whole number"),
    "no rank": (lambda: of_transfers([[(None, 1, 0, True)]]), "step 0: src None is not a whole number"),
    "a huge chunk": (lambda: of_transfers([[(0, 1, 2**70, True)]]), "a number does not fit 64 bits"),
    "reduce as text": (lambda: of_transfers([[(0, 1, 0, "sum")]]), "step 0: reduce 'sum': must be True or False"),
    "reduce as a count": (lambda: of_transfers([[(0, 1, 0, 2)]]), "step 0: reduce 2: must be True or False"),
    "ranks with a fraction": (lambda: of_transfers([], num_ranks=2.0), "num_ranks 2.0: must be a whole number"),
    "ranks as text": (lambda: of_transfers([], num_ranks="2"), "num_ranks '2': must be a whole number"),
    "no ranks": (lambda: of_transfers([], num_ranks=0), "num_ranks 0: must be at least 1"),
    "no number of chunks": (lambda: of_transfers([], num_chunks=None), "num_chunks None: must be a whole number"),
    "a truth as chunks": (lambda: of_transfers([], num_chunks=True), "num_chunks True: must be a whole number"),
    "less than no chunks": (lambda: of_transfers([], num_chunks=-1), "num_chunks -1: must be at least 1"),
    "a collective's name": (
        lambda: of_transfers([], collective="broadcast"),
        "collective 'broadcast': must be one of Collective",
    ),
    "an algorithm's number": (lambda: of_transfers([], algorithm=3), "algorithm 3: must be a name"),
    "lists as steps": (
        lambda: Schedule(Collective.BROADCAST, "mine", 2, 1, [[SEND]]),
        "must be Steps, which Schedule.from_transfers makes of lists",
    ),
    "three columns": (lambda: of_columns([0], [1], [0]), "step 0: it has 3 columns: must have src, dst, chunk, reduce"),
    "six columns": (lambda: of_columns(0, 1, 0, True, 0, 0), "step 0: it has 6 columns: must have"),
    "no columns": (
        lambda: Schedule.from_columns(Collective.REDUCE, "mine", 2, 1, [5]),
        "5: must be the columns src, dst",
    ),
    "half a channel": (lambda: of_transfers([[(0, 1, 0, True, 0.5)]]), "step 0: channel 0.5 is not a whole number"),
    "a channel as text": (lambda: on_channel(RIGHT, "1"), "channel '1': must be a whole number"),
    "a column of fractions": (lambda: of_columns([0.5], [1], [0], [False]), "step 0: src [0.5]: must be whole numbers"),
    "a column of NaN": (lambda: of_columns([np.nan], 1, 0, True), "step 0: src [nan]: must be whole numbers"),
    "no column": (lambda: of_columns(0, None, 0, True), "step 0: dst None: must be whole numbers"),
    "a ragged column": (lambda: of_columns([[0], [0, 1]], 1, 0, True), "step 0: src [[0], [0, 1]]: must be whole"),
    "a column of huge numbers": (lambda: of_columns([2**70], 1, 0, True), "must be whole numbers"),
    "a column of other truths": (lambda: of_columns(0, 1, 0, [2]), "step 0: reduce [2]: must be True or False"),
    "columns of other lengths": (
        lambda: of_columns([0, 0], [1, 1, 1], 0, True),
        "step 0: its columns have 2, 3, 1, 1 values: each must have as many as the others, or one",
    ),
    "no schedule to merge": (lambda: merge(RIGHT, 5), "merge: 5 is no Schedule"),
    "no schedule after another": (
        lambda: then(RIGHT, None, Collective.BROADCAST, "two"),
        "then: None is no Schedule",
    ),
    "segments as text": (lambda: split(RIGHT, "2"), "segments '2': must be a whole number"),
    "half a segment": (lambda: pipeline(RIGHT, 2.5), "segments 2.5: must be a whole number"),
    "an order of fractions": (
        lambda: permute_ranks(RIGHT, [0, 1.5]),
        "order [0, 1.5]: must be whole numbers",
    ),
    "a number as an order": (lambda: permute_ranks(RIGHT, 1), "order 1: must have each rank 0..1"),
    "groups of fractions": (
        lambda: on_groups(RIGHT, [[0.5, 1]], 2, 1, Collective.BROADCAST),
        "groups [[0.5, 1]]: must be whole numbers",
    ),
    "ragged groups": (
        lambda: on_groups(RIGHT, [[0, 1], [2]], 3, 1, Collective.BROADCAST),
        "groups [[0, 1], [2]]: must be whole",
    ),
    "ranks of groups": (
        lambda: on_groups(RIGHT, [[0, 1]], 2.0, 1, Collective.BROADCAST),
        "num_ranks 2.0: must",
    ),
    "ranks of a ring as text": (lambda: ring_all_reduce("2"), "num_ranks '2': must be a whole number"),
    "ranks of an algorithm": (lambda: algorithm("ring", 2.0), "num_ranks 2.0: must be a whole"),
    "an algorithm's name": (lambda: algorithm(5, 2), "algorithm 5: must be a name, such as 'ring'"),
    "a mistyped collective": (lambda: algorithm("ring", 2, "broadcats"), "broadcast, reduce; did you mean broadcast?"),
    "no cut": (lambda: replace(RIGHT, cut=None), "cut None: must be a function as partition is"),
    "a cut of fractions": (
        lambda: verify(replace(RIGHT, cut=lambda elements, _: [0.0, elements])),
        "cut: for 0 elements in 1 chunk: bounds [0.0, 0]: must be whole numbers",
    ),
    "a cut that fails": (
        lambda: verify(replace(RIGHT, cut=lambda elements, _: np.array([0, 1 // elements]))),
        "cut: for 0 elements in 1 chunk: it raised ZeroDivisionError: integer division or modulo by zero",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_is_ours_and_one_line(mistake: str) -> None:
    """Neither a traceback nor the words of NumPy, and no value is rounded to one that would do."""
    make, message = MISTAKES[mistake]
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
