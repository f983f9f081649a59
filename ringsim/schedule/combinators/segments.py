"""Every chunk in segments: `split`, which follow one another like a train, and `pipeline`, each a step behind."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ringsim.schedule.combinators.derived_steps import DerivedSteps, require_schedules
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import COLUMNS, NEVER, Ints, Step, Steps, constant, only_value
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
    return _in_segments("split", schedule, segments, SplitSteps)


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
    return _in_segments("pipeline", schedule, segments, PipelineSteps)


def _in_segments(combinator: str, schedule: Schedule, segments: int, kind: "type[SegmentedSteps]") -> Schedule:
    require_schedules(combinator, schedule)
    require_count("segments", segments)
    if segments == 1:
        return schedule
    return replace(schedule, num_chunks=schedule.num_chunks * segments, steps=kind(schedule.steps, segments))


class SegmentedSteps(DerivedSteps):
    """Steps that send what those of `whole` send, each chunk in segments, of which each has its own steps."""

    def __init__(self, whole: Steps, segments: int) -> None:
        super().__init__(whole)
        self._pieces = segments

    @property
    def num_transfers(self) -> int:
        return self._steps.num_transfers * self._pieces

    def last(self, query: str, rank: Ints, chunk: Ints) -> Ints:
        return self._number(super().last(query, rank, chunk // self._pieces), chunk % self._pieces)

    def _segment(self, rows: Step, segment: Ints | int) -> Step:
        """Return what sends a segment of the chunks of these rows of the whole; it waits for the same segment."""
        return replace(
            rows,
            chunk=rows.chunk * self._pieces + segment,
            data_dependency=self._number(rows.data_dependency, segment),
            buffer_dependency=self._number(rows.buffer_dependency, segment),
        )

    @abstractmethod
    def _number(self, step: Ints, segment: Ints | int) -> Ints:
        """Return the numbers here of what a segment does in steps of the whole; NEVER stays what it is."""


class SplitSteps(SegmentedSteps):
    """Steps that each send one segment of what a step of `whole` sends."""

    def __len__(self) -> int:
        return len(self._steps) * self._pieces

    @property
    def lookback(self) -> int:
        return self._steps.lookback * self._pieces

    def patterns(self) -> Iterable[Step]:
        return self._steps.patterns()

    def step(self, index: int) -> Step:
        number, segment = divmod(index, self._pieces)
        return self._segment(self._steps.step(number), segment)

    def _number(self, step: Ints, segment: Ints | int) -> Ints:
        only = only_value(step)
        if only is not None and isinstance(segment, int):
            return constant(NEVER if only == NEVER else only * self._pieces + segment, len(step))
        return np.where(step == NEVER, NEVER, step * self._pieces + segment)


class PipelineSteps(SegmentedSteps):
    """Steps in which segment 0 does what `whole` does in that step, segment 1 what it does in the step before, ..."""

    def __init__(self, whole: Steps, segments: int) -> None:
        super().__init__(whole, segments)
        # The rows of all steps of the whole in one, since a step here is a window on them.
        steps = list(whole)
        self._first_row = np.cumsum([0, *(len(step) for step in steps)])
        self._step = np.repeat(np.arange(len(steps)), np.diff(self._first_row))
        empty = np.empty(0, dtype=np.int64)
        none = Step(empty, empty, empty, empty.astype(np.bool_), empty, empty, empty)
        self._rows = Step(*(np.concatenate([getattr(step, name) for step in [none, *steps]]) for name in COLUMNS))

    def __len__(self) -> int:
        return len(self._steps) + self._pieces - 1 if len(self._steps) else 0

    def patterns(self) -> tuple[Step, ...]:
        return (self._rows,)

    def step(self, index: int) -> Step:
        first, last = max(0, index - self._pieces + 1), min(index, len(self._steps) - 1)
        window = slice(self._first_row[first], self._first_row[last + 1])
        return self._segment(self._rows.rows(window), index - self._step[window])

    def _number(self, step: Ints, segment: Ints | int) -> Ints:
        return np.where(step == NEVER, NEVER, step + segment)
