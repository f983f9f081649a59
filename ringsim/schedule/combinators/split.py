"""`split`: every chunk in segments that follow one another like a train."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ringsim.schedule.combinators.derived_steps import DerivedSteps, require_schedules
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import NEVER, Ints, Step, Steps, constant, only_value
from ringsim.schedule.user_steps import require_count


def split(schedule: Schedule, segments: int) -> Schedule:
    """Cut each chunk into `segments` neighbouring chunks, and each step into as many steps.

    Segment j of chunk c is chunk `c * segments + j` and goes in step `step * segments + j`. Since steps are an
    order and not a barrier, a segment goes on while the next one arrives. `partition` keeps the shares of
    the ranks where they were. For schedules in which a rank takes part in steps far apart, see `pipeline`.

    Raises ValueError for less than one segment.

        >>> from ringsim import ring_all_reduce, split
        >>> split(ring_all_reduce(4), 2)
        Schedule(all_reduce ring over 4 ranks, 8 chunks, 12 steps)
    """
    require_schedules("split", schedule)
    require_count("segments", segments)
    if segments == 1:
        return schedule
    return replace(schedule, num_chunks=schedule.num_chunks * segments, steps=SplitSteps(schedule.steps, segments))


class SplitSteps(DerivedSteps):
    """Steps that each send one segment of what a step of `whole` sends."""

    def __init__(self, whole: Steps, segments: int) -> None:
        super().__init__(whole)
        self._pieces = segments

    def __len__(self) -> int:
        return len(self._steps) * self._pieces

    @property
    def lookback(self) -> int:
        return self._steps.lookback * self._pieces

    @property
    def num_transfers(self) -> int:
        return self._steps.num_transfers * self._pieces

    def patterns(self) -> Iterable[Step]:
        return self._steps.patterns()

    def last(self, query: str, rank: Ints, chunk: Ints) -> Ints:
        return self._number(getattr(self._steps, query)(rank, chunk // self._pieces), chunk % self._pieces)

    def step(self, index: int) -> Step:
        step = self._steps.step(index // self._pieces)
        segment = index % self._pieces
        return replace(
            step,
            chunk=step.chunk * self._pieces + segment,
            data_dependency=self._number(step.data_dependency, segment),
            buffer_dependency=self._number(step.buffer_dependency, segment),
        )

    def _number(self, step: Ints, segment: Ints | int) -> Ints:
        only = only_value(step)
        if only is not None and isinstance(segment, int):
            return constant(NEVER if only == NEVER else only * self._pieces + segment, len(step))
        return np.where(step == NEVER, NEVER, step * self._pieces + segment)
