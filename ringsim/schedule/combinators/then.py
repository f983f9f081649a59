"""`then`: one schedule after another."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np

from ringsim.schedule.collective import Collective
from ringsim.schedule.combinators.derived_steps import MadeSteps, require_schedules
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import NEVER, Ints, ScheduleError, Step, Steps, constant, only_value


def then(
    first: Schedule, second: Schedule, collective: Collective, algorithm: str, *, lookback: int | None = None
) -> Schedule:
    """Run `first`, and after it `second`, on the same ranks and chunks.

    No barrier stands between them: a transfer of `second` waits only for what `first` wrote into its chunk, and
    for the sends that `first.steps.last_send` names. (A ring's reduce-scatter names none: after it only what
    takes the chunks from their owners is right. `verify` refuses anything else.)
    `lookback` is that of the result (see `Steps.lookback`), where the caller knows it; without it every
    step of `second` is looked at.

    Raises ScheduleError if the two do not have the same ranks and chunks.

        >>> from ringsim import Collective, ring_all_gather, ring_reduce_scatter, then
        >>> then(ring_reduce_scatter(4), ring_all_gather(4), Collective.ALL_REDUCE, "mine")
        Schedule(all_reduce mine over 4 ranks, 4 chunks, 6 steps)
    """
    require_schedules("then", first, second)
    if (first.num_ranks, first.num_chunks) != (second.num_ranks, second.num_chunks):
        raise ScheduleError(
            f"then: {first} has {first.num_chunks} chunks, {second} has {second.num_chunks}; both must agree"
        )
    if first.partition is not second.partition:
        raise ScheduleError(f"then: {first} and {second} divide a tensor differently; both must divide it alike")
    steps = ThenSteps(first.steps, second.steps, lookback)
    return Schedule(collective, algorithm, first.num_ranks, first.num_chunks, steps, first.partition)


class ThenSteps(MadeSteps):
    """The steps of one schedule followed by those of another, computed when asked for."""

    def __init__(self, first: Steps, second: Steps, lookback: int | None = None) -> None:
        self._first = first
        self._second = second
        self._lookback = lookback

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    @property
    def lookback(self) -> int:
        if self._lookback is None:
            of_second = (self.step(index).reach(index) for index in range(len(self._first), len(self)))
            self._lookback = max(self._first.lookback, max(of_second, default=0))
        return self._lookback

    @property
    def num_transfers(self) -> int:
        return self._first.num_transfers + self._second.num_transfers

    @property
    def num_channels(self) -> int:
        return max(self._first.num_channels, self._second.num_channels)

    def patterns(self) -> Iterator[Step]:
        return chain(self._first.patterns(), self._second.patterns())

    def last(self, query: str, rank: Ints, chunk: Ints) -> Ints:
        return self._resolve(getattr(self._second, query)(rank, chunk), getattr(self._first, query), rank, chunk)

    def _resolve(self, in_second: Ints, last_in_first: Callable[[Ints, Ints], Ints], rank: Ints, chunk: Ints) -> Ints:
        """Return step numbers of `second` as numbers of the whole, and those of `first` where `second` has none."""
        only = only_value(in_second)
        if only == NEVER:
            return last_in_first(rank, chunk)
        if only is not None:
            return constant(only + len(self._first), len(in_second))
        return np.where(in_second == NEVER, last_in_first(rank, chunk), in_second + len(self._first))

    def step(self, index: int) -> Step:
        if index < len(self._first):
            return self._first.step(index)
        step = self._second.step(index - len(self._first))
        data_dependency = self._resolve(step.data_dependency, self._first.last_write, step.src, step.chunk)
        buffer_dependency = self._resolve(step.buffer_dependency, self._first.last_send, step.dst, step.chunk)
        return replace(step, data_dependency=data_dependency, buffer_dependency=buffer_dependency)
