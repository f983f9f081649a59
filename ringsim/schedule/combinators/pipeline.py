"""`pipeline`: every chunk in segments, each a step behind the one before it."""

from dataclasses import replace

import numpy as np

from ringsim.schedule.combinators.derived_steps import DerivedSteps, require_schedules
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import COLUMNS, NEVER, Ints, Step, Steps
from ringsim.schedule.user_steps import require_count


def pipeline(schedule: Schedule, segments: int) -> Schedule:
    """Cut each chunk into `segments` neighbouring chunks, each of which starts one step after the one before it.

    Segment j of chunk c is chunk `c * segments + j`; what the whole did in a step, segment j does in `step + j`: a
    wave, `num_steps + segments - 1` steps long. `split` puts all segments of a step before those of the next. A rank
    that executes in order applies them in that order, so where it takes part in steps far apart (up a tree and down
    again) its later segments would delay the way back of the first. A wave does not. The columns of the whole are kept.

    Raises ValueError for less than one segment.

        >>> from ringsim import algorithm, pipeline
        >>> pipeline(algorithm("binomial_tree", 8, "broadcast"), 4)
        Schedule(broadcast binomial_tree over 8 ranks, 4 chunks, 6 steps)
    """
    require_schedules("pipeline", schedule)
    require_count("segments", segments)
    if segments == 1:
        return schedule
    return replace(schedule, num_chunks=schedule.num_chunks * segments, steps=PipelineSteps(schedule.steps, segments))


class PipelineSteps(DerivedSteps):
    """Steps in which segment 0 does what `whole` does in that step, segment 1 what it does in the step before, ..."""

    def __init__(self, whole: Steps, segments: int) -> None:
        super().__init__(whole)
        self._pieces = segments
        # The rows of all steps of the whole in one, since a step here is a window on them.
        steps = list(whole)
        self._first_row = np.cumsum([0, *(len(step) for step in steps)])
        self._step = np.repeat(np.arange(len(steps)), np.diff(self._first_row))
        empty = np.empty(0, dtype=np.int64)
        none = Step(empty, empty, empty, empty.astype(np.bool_), empty, empty, empty)
        self._rows = Step(*(np.concatenate([getattr(step, name) for step in [none, *steps]]) for name in COLUMNS))

    def __len__(self) -> int:
        return len(self._steps) + self._pieces - 1 if len(self._steps) else 0

    @property
    def num_transfers(self) -> int:
        return self._steps.num_transfers * self._pieces

    def patterns(self) -> tuple[Step, ...]:
        return (self._rows,)

    def last(self, query: str, rank: Ints, chunk: Ints) -> Ints:
        return _later(getattr(self._steps, query)(rank, chunk // self._pieces), chunk % self._pieces)

    def step(self, index: int) -> Step:
        first, last = max(0, index - self._pieces + 1), min(index, len(self._steps) - 1)
        window = slice(self._first_row[first], self._first_row[last + 1])
        segment = index - self._step[window]
        rows = self._rows.rows(window)
        return replace(
            rows,
            chunk=rows.chunk * self._pieces + segment,
            data_dependency=_later(rows.data_dependency, segment),
            buffer_dependency=_later(rows.buffer_dependency, segment),
        )


def _later(step: Ints, by: Ints) -> Ints:
    return np.where(step == NEVER, NEVER, step + by)
