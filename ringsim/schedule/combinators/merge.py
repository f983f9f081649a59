"""`merge`: schedules side by side, each on its own chunks."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from ringsim.schedule.combinators.derived_steps import MadeSteps, renumbered, require_schedules
from ringsim.schedule.combinators.relabel import PermutedSteps
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import NEVER, Copies, Ints, Relay, ScheduleError, Step, Steps


def merge(first: Schedule, *others: Schedule, algorithm: str | None = None) -> Schedule:
    """Run schedules of the same collective, ranks and chunks at once, each on its own share of the data.

    Chunk c of the i-th of k becomes chunk `k * c + i`, so that a rank owns what it owned, and channels likewise. Steps
    alternate. By the rule of execution the schedules do not wait for each other; a rank that executes in order applies
    what they bring one after the other.
    algorithm: the name of the result; without it that of the first.

    Raises ScheduleError if the schedules do not fit.

        >>> from ringsim import merge, ring_all_reduce
        >>> merge(ring_all_reduce(4), ring_all_reduce(4, direction=-1), algorithm="both_ways")
        Schedule(all_reduce both_ways over 4 ranks, 8 chunks, 12 steps)
    """
    schedules = [first, *others]
    require_schedules("merge", *schedules)
    shapes = [(one.collective, one.num_ranks, one.num_chunks) for one in schedules]
    for other, shape in zip(schedules, shapes, strict=True):
        if shape != shapes[0]:
            raise ScheduleError(
                f"merge: {first} has {first.num_chunks} chunks, {other} has {other.num_chunks}; "
                "collective, ranks and chunks must agree"
            )
    if any(other.partition is not first.partition for other in others):
        raise ScheduleError(f"merge: {first} and another divide a tensor differently; all must divide it alike")
    steps = MergedSteps([schedule.steps for schedule in schedules])
    num_chunks = first.num_chunks * len(schedules)
    return replace(first, algorithm=algorithm or first.algorithm, num_chunks=num_chunks, steps=steps)


class MergedSteps(MadeSteps):
    """The steps of several schedules, alternating: step 0 of each, then step 1 of each that has one, ..."""

    def __init__(self, parts: list[Steps]) -> None:
        self._parts = parts
        part = np.repeat(np.arange(len(parts)), [len(steps) for steps in parts])
        step = np.concatenate([np.arange(len(steps)) for steps in parts])
        turns = np.lexsort((part, step))
        self._part, self._step = part[turns], step[turns]
        self._channels = [renumbered(len(parts), i) for i in range(len(parts))]
        # The number here of each step of each part; the one more at the end is what index NEVER gives.
        self._numbers = [np.append(np.flatnonzero(self._part == i), NEVER) for i in range(len(parts))]

    def __len__(self) -> int:
        return len(self._step)

    @property
    def lookback(self) -> int:
        return max(self._reach(steps, numbers[:-1]) for steps, numbers in zip(self._parts, self._numbers, strict=True))

    @staticmethod
    def _reach(steps: Steps, numbers: Ints) -> int:
        """Return the most that `steps.lookback` can become; exact if the parts are equally long."""
        back = min(steps.lookback, max(len(numbers) - 1, 0))
        return int((numbers[back:] - numbers[: len(numbers) - back]).max(initial=0))

    @property
    def num_transfers(self) -> int:
        return sum(part.num_transfers for part in self._parts)

    @property
    def num_channels(self) -> int:
        return len(self._parts) * max(part.num_channels for part in self._parts)

    def patterns(self) -> Iterator[Step]:
        for part, steps in enumerate(self._parts):
            yield from (self._placed(step, part) for step in steps.patterns())

    def _placed(self, step: Step, part: int) -> Step:
        """Return a step of schedule number `part`, with the chunks and channels that it has in the merged schedule."""
        chunk = step.chunk * len(self._parts) + part
        return replace(step, chunk=chunk, channel=self._channels[part](step.channel))

    @cached_property
    def relay(self) -> Relay | None:
        relays = [relay for steps in self._parts if (relay := steps.relay)]
        if len(relays) < len(self._parts) or len({relay.reduces for relay in relays}) > 1:
            return None
        first = np.cumsum([0, *(len(relay.after) for relay in relays)])
        return Relay(
            src=np.concatenate([relay.src for relay in relays]),
            dst=np.concatenate([relay.dst for relay in relays]),
            channel=np.concatenate([self._channels[i](relay.channel) for i, relay in enumerate(relays)]),
            after=np.concatenate([start + relay.after for start, relay in zip(first, relays, strict=False)]),
            reduces=relays[0].reduces,
        )

    @cached_property
    def copies(self) -> Copies | None:
        """The copies of each schedule that was merged several times, each time with its ranks in another order."""
        families: dict[int, list[int]] = {}
        permuted = [steps for steps in self._parts if isinstance(steps, PermutedSteps)]
        for number, steps in enumerate(permuted):
            families.setdefault(id(steps.original), []).append(number)
        if len(permuted) < len(self._parts) or len(families) == len(self._parts):
            return None
        orders = [np.array([permuted[number].new_rank for number in numbers]) for numbers in families.values()]
        return Copies(
            MergedSteps([self._parts[numbers[0]] for numbers in families.values()]),
            tuple(np.array(numbers) for numbers in families.values()),
            tuple(order[:, np.argsort(order[0])] for order in orders),
        )

    def last(self, query: str, rank: Ints, chunk: Ints) -> Ints:
        last_steps = np.full_like(rank, NEVER)
        for i, (steps, numbers) in enumerate(zip(self._parts, self._numbers, strict=True)):
            mine = chunk % len(self._parts) == i
            last_steps[mine] = numbers[getattr(steps, query)(rank[mine], chunk[mine] // len(self._parts))]
        return last_steps

    def step(self, index: int) -> Step:
        part = int(self._part[index])
        step, numbers = self._parts[part].step(int(self._step[index])), self._numbers[part]
        return replace(
            self._placed(step, part),
            data_dependency=numbers[step.data_dependency],
            buffer_dependency=numbers[step.buffer_dependency],
        )
