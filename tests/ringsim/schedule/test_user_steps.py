"""Wrong values that users hand over in place of steps and numbers, and the one line in which they are refused."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from syrupy.assertion import SnapshotAssertion

from ringsim import Network, Schedule, ScheduleError, Transfer, merge, on_channel, on_groups, predict_time, split, then
from ringsim.registry import algorithm, build
from ringsim.schedule import Collective, partition, permute_ranks, pipeline, rank_program, verify
from tests.refusals import said_by

SEND = Transfer(0, 1, 0, False)
RING, DIRECT = build(Collective.ALL_REDUCE, "ring", 3), build(Collective.ALL_REDUCE, "direct", 3)
UNEVEN = Schedule.from_transfers(Collective.ALL_GATHER, "uneven", 2, 3, [])
RIGHT = Schedule.from_transfers(Collective.BROADCAST, "mine", 2, 1, [[SEND]])


def of_transfers(steps: Any, **changes: Any) -> Schedule:
    """A broadcast over two ranks, with whatever is wrong about it."""
    given = {"collective": Collective.BROADCAST, "algorithm": "mine", "num_ranks": 2, "num_chunks": 1} | changes
    return Schedule.from_transfers(**given, steps=steps)


def of_columns(*columns: Any) -> Schedule:
    """The same from the columns of one step."""
    return Schedule.from_columns(Collective.BROADCAST, "mine", 2, 1, [columns])


def ring_on(groups: list[list[int]], first_chunk: list[int] | None = None) -> Schedule:
    """The ring on groups of 7 ranks and 5 chunks."""
    return on_groups(RING, groups, 7, 5, Collective.ALL_REDUCE, first_chunk)


MISTAKES: list[Callable[[], object]] = [
    lambda: of_transfers(None),
    lambda: of_transfers(["abcd"]),
    lambda: of_transfers([SEND]),
    lambda: of_transfers([[3]]),
    lambda: of_transfers([[[0, 1, 0]]]),
    lambda: of_transfers([[[[0], 1, 0, True]]]),
    lambda: of_transfers([[("0", 1, 0, True)]]),
    lambda: of_transfers([[(0, 1, 2**70, True)]]),
    lambda: of_transfers([[(0, 1, 0, "sum")]]),
    lambda: of_transfers([], num_ranks=2.0),
    lambda: of_transfers([], num_ranks=0),
    lambda: of_transfers([], num_chunks=-1),
    lambda: of_transfers([], collective="broadcast"),
    lambda: of_transfers([], algorithm=3),
    lambda: Schedule(Collective.BROADCAST, "mine", 2, 1, [[SEND]]),
    lambda: of_columns([0], [1], [0]),
    lambda: Schedule.from_columns(Collective.REDUCE, "mine", 2, 1, [5]),
    lambda: on_channel(RIGHT, "1"),
    lambda: of_columns([0.5], [1], [0], [False]),
    lambda: of_columns([[0], [0, 1]], 1, 0, True),
    lambda: of_columns(0, 1, 0, [2]),
    lambda: of_columns([0, 0], [1, 1, 1], 0, True),
    lambda: merge(RIGHT, 5),
    lambda: then(RIGHT, None, Collective.BROADCAST, "two"),
    lambda: split(RIGHT, "2"),
    lambda: permute_ranks(RIGHT, [0, 1.5]),
    lambda: permute_ranks(RIGHT, 1),
    lambda: on_groups(RIGHT, [[0.5, 1]], 2, 1, Collective.BROADCAST),
    lambda: on_groups(RIGHT, [[0, 1]], 2.0, 1, Collective.BROADCAST),
    lambda: algorithm("ring", 2.0),
    lambda: algorithm(5, 2),
    lambda: algorithm("ring", 2, "broadcats"),
    lambda: replace(RIGHT, partition=None),
    lambda: verify(replace(RIGHT, partition=lambda elements, _: [0.0, elements])),
    lambda: verify(replace(RIGHT, partition=lambda elements, _: {}[elements])),
    lambda: then(RING, DIRECT, Collective.ALL_REDUCE, "both"),
    lambda: split(RING, 0),
    lambda: pipeline(RING, 0),
    lambda: on_channel(RING, -1),
    lambda: permute_ranks(RING, [0, 1]),
    lambda: permute_ranks(RING, [1, 2, 3]),
    lambda: permute_ranks(build(Collective.BROADCAST, "ring", 3), [1, 0, 2]),
    lambda: permute_ranks(UNEVEN, [1, 0]),
    lambda: merge(RING, build(Collective.ALL_REDUCE, "ring", 4)),
    lambda: merge(RING, DIRECT),
    lambda: ring_on([[0, 1]]),
    lambda: ring_on([[0, 1, 2], [2, 3, 4]]),
    lambda: ring_on([[0, 1, 2], [3, 4, 5]], [0]),
    lambda: ring_on([[0, 1, -1]]),
    lambda: ring_on([[0, 1, 2]], [3]),
    lambda: of_transfers([[SEND], [Transfer(2, 0, 0, True)]]),
    lambda: of_transfers([[SEND], [Transfer(0, 1, 1, True)]]),
    lambda: of_transfers([[SEND], [Transfer(1, 1, 0, True)]]),
    lambda: of_columns([0, 1, 7], [1, 1, 1], 0, True),
    lambda: partition(-1, 2),
    lambda: partition(4, 0),
    lambda: partition(2**62, 4),
    lambda: rank_program(RING, 3),
    lambda: predict_time(RING, Network.uniform(1e-5, 1e9), 10, element_bytes=4),
    lambda: predict_time(RING, Network.uniform(1e-5, 1e9), -4),
    lambda: Network.uniform(-1.0, 1e9),
    lambda: Network.uniform(math.nan, 1e9),
    lambda: Network.uniform(0.0, 0.0),
    lambda: Network.uniform(0.0, 1e9, -1.0),
]


def test_the_message_is_ours_and_one_line(snapshot: SnapshotAssertion) -> None:
    """Neither a traceback nor the words of NumPy, and no value is rounded to one that would do."""
    said = [said_by((ValueError, ScheduleError), make) for make in MISTAKES]
    assert not [message for message in said if "\n" in message]
    assert said == snapshot


def test_what_may_be_gone_through_is_as_good_as_a_list() -> None:
    """Generators, tuples, arrays, and NumPy's own numbers."""
    row = (np.int64(0), 1, np.int32(0), np.False_)
    for steps in (([row],), [np.array([[0, 1, 0, 0]])], ((iter(row) for _ in range(1)) for _ in range(1))):
        assert [list(step) for step in of_transfers(steps).steps] == [[SEND]]
    assert [list(step) for step in of_columns([0], 1, np.array([0]), False).steps] == [[SEND]]
    assert [list(step) for step in of_columns([], [], [], []).steps] == [[]]
