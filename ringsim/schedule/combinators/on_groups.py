"""`on_groups`: one schedule done by several groups of ranks at once, each on its chunks."""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ringsim.schedule.collective import Collective
from ringsim.schedule.combinators.derived_steps import DerivedSteps, Remembered, require_schedules
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import NEVER, Ints, Relay, ScheduleError, Step, constant, only_value
from ringsim.schedule.user_steps import require_count, whole_numbers


def on_groups(
    schedule: Schedule,
    groups: npt.ArrayLike,
    num_ranks: int,
    num_chunks: int,
    collective: Collective,
    first_chunk: Sequence[int] | Ints | None = None,
) -> Schedule:
    """Let every group of ranks do `schedule` in the same steps, within a schedule of more ranks and chunks.

    groups: (num_groups, schedule.num_ranks), the rank that does in each group what rank i does; no rank
    twice. The chunks of group g are a run from `first_chunk[g]` on; from 0 without it.

    Raises ScheduleError if the groups overlap or do not fit into `num_ranks` and `num_chunks`.

        >>> from ringsim import Collective, on_groups, ring_reduce_scatter
        >>> on_groups(ring_reduce_scatter(2), [[0, 1], [2, 3]], 4, 2, Collective.REDUCE_SCATTER)
        Schedule(reduce_scatter ring over 4 ranks, 2 chunks, 1 step)
    """
    require_schedules("on_groups", schedule)
    require_count("num_ranks", num_ranks)
    ranks = np.atleast_2d(whole_numbers("groups", groups))
    start = np.zeros(len(ranks), np.int64) if first_chunk is None else whole_numbers("first_chunk", first_chunk)
    members = np.unique(ranks)
    if ranks.shape[1] != schedule.num_ranks or len(members) != ranks.size or len(start) != len(ranks):
        raise ScheduleError(f"on_groups: {schedule}: each group must have {schedule.num_ranks} different ranks")
    if members[0] < 0 or members[-1] >= num_ranks or start.min() < 0 or start.max() + schedule.num_chunks > num_chunks:
        raise ScheduleError(f"on_groups: {schedule}: not within {num_ranks} ranks and {num_chunks} chunks")
    steps = GroupedSteps(schedule, ranks, start, num_ranks)
    return Schedule(collective, schedule.algorithm, num_ranks, num_chunks, steps, schedule.partition)


class GroupedSteps(DerivedSteps):
    """Steps that hold the transfers of every group, one group after the other."""

    def __init__(self, schedule: Schedule, ranks: Ints, first_chunk: Ints, num_ranks: int) -> None:
        super().__init__(schedule.steps)
        self._num_chunks = schedule.num_chunks
        self._ranks = ranks
        self._first_chunk = first_chunk
        self._group = np.full(num_ranks, NEVER, dtype=np.int64)  # NEVER: in none
        self._place = np.zeros(num_ranks, dtype=np.int64)
        self._group[ranks] = np.arange(len(ranks))[:, None]
        self._place[ranks] = np.arange(ranks.shape[1])
        self._tiled_channel = Remembered(lambda channel: _tiled(channel, len(ranks)))
        self._in_groups = Remembered(lambda places: ranks[:, places].ravel())

    @property
    def num_transfers(self) -> int:
        return self._steps.num_transfers * len(self._ranks)

    @cached_property
    def relay(self) -> Relay | None:
        relay, num_groups = self._steps.relay, len(self._ranks)
        if relay is None:
            return None
        first = np.arange(num_groups)[:, None] * len(relay.after)
        src, dst, channel = (
            self._in_groups(relay.src), self._in_groups(relay.dst), self._tiled_channel(relay.channel)
        )  # fmt: skip
        return Relay(src, dst, channel, (first + relay.after).ravel(), relay.reduces)

    def last(self, query: str, rank: Ints, chunk: Ints) -> Ints:
        group = self._group[rank]
        own_chunk = chunk - self._first_chunk[group]
        inside = (group != NEVER) & (own_chunk >= 0) & (own_chunk < self._num_chunks)
        steps = np.full_like(rank, NEVER)
        steps[inside] = getattr(self._steps, query)(self._place[rank[inside]], own_chunk[inside])
        return steps

    def patterns(self) -> Iterator[Step]:
        return map(self._in_all_groups, self._steps.patterns())

    def step(self, index: int) -> Step:
        return self._in_all_groups(self._steps.step(index))

    def _in_all_groups(self, step: Step) -> Step:
        num_groups = len(self._ranks)
        return Step(
            self._in_groups(step.src),
            self._in_groups(step.dst),
            (self._first_chunk[:, None] + step.chunk).ravel(),
            np.tile(step.reduce, num_groups),
            self._tiled_channel(step.channel),
            _tiled(step.data_dependency, num_groups),
            _tiled(step.buffer_dependency, num_groups),
        )


def _tiled(column: Ints, times: int) -> Ints:
    value = only_value(column)
    return np.tile(column, times) if value is None else constant(value, len(column) * times)
