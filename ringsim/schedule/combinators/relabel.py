"""Combinators that rename: the same schedule with its ranks in other places, or on other channels."""

from __future__ import annotations  # so that help() shows the names of array types, not what they stand for

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ringsim.schedule.collective import Collective
from ringsim.schedule.combinators.derived_steps import DerivedSteps, Remembered, renumbered, require_schedules
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import Ints, Relay, ScheduleError, Step, Steps
from ringsim.schedule.user_steps import require_count, whole_numbers


def permute_ranks(schedule: Schedule, order: Sequence[int] | npt.NDArray[np.integer]) -> Schedule:
    """Let rank `order[i]` do what rank i does in `schedule`; so a ring goes order[0], order[1], ...

    Where shares of the data belong to ranks, as in reduce_scatter and all_gather, or to pairs of them, as in
    all_to_all, the chunks of rank i become those of rank `order[i]`, so that the contract still holds. In the others
    chunks keep their numbers.

    Raises ValueError if `order` is not a permutation of the ranks, or moves the root, and ScheduleError if ranks own
    different numbers of chunks.

        >>> from ringsim import permute_ranks, ring_all_reduce
        >>> [transfer.src for transfer in permute_ranks(ring_all_reduce(4), [0, 2, 1, 3]).steps[0]]
        [0, 2, 1, 3]
    """
    require_schedules("permute_ranks", schedule)
    new_rank = whole_numbers("order", order)
    if new_rank.ndim != 1 or not np.array_equal(np.sort(new_rank), np.arange(schedule.num_ranks)):
        raise ValueError(f"order {new_rank.tolist()}: must have each rank 0..{schedule.num_ranks - 1} once")
    if schedule.collective.has_root and new_rank[0] != 0:
        raise ValueError(f"order {new_rank.tolist()}: must begin with rank 0, the root of {schedule.collective.value}")
    num_shares = schedule.collective.num_shares(schedule.num_ranks)
    if schedule.num_chunks % num_shares:
        raise ScheduleError(
            f"permute_ranks: {schedule} has {schedule.num_chunks} chunks; must be a multiple of its ranks"
            f"{' squared' * (num_shares > schedule.num_ranks)}"
        )
    shares = np.arange(schedule.num_chunks).reshape(num_shares, -1)
    new_chunk = shares[_permuted_shares(schedule.collective, new_rank)].ravel()
    return replace(schedule, steps=PermutedSteps(schedule.steps, new_rank, new_chunk))


def _permuted_shares(collective: Collective, new_rank: Ints) -> Ints:
    """Return the number that each share of the data has once the ranks are permuted."""
    if collective is Collective.ALL_TO_ALL:
        return (len(new_rank) * new_rank[:, np.newaxis] + new_rank).ravel()
    return new_rank if collective.num_shares(2) > 1 else np.zeros(1, np.int64)


class PermutedSteps(DerivedSteps):
    """Steps with other numbers for ranks and chunks."""

    def __init__(self, steps: Steps, new_rank: Ints, new_chunk: Ints) -> None:
        super().__init__(steps)
        self.original, self.new_rank = steps, new_rank
        self._old_rank = np.argsort(new_rank)
        self._new_chunk, self._old_chunk = new_chunk, np.argsort(new_chunk)
        self._relabelled = Remembered(lambda ranks: new_rank[ranks])

    def patterns(self) -> Iterator[Step]:
        return map(self._permuted, self._steps.patterns())

    @cached_property
    def relay(self) -> Relay | None:
        relay = self._steps.relay
        return relay and replace(relay, src=self._relabelled(relay.src), dst=self._relabelled(relay.dst))

    def last(self, query: str, rank: Ints, chunk: Ints) -> Ints:
        return super().last(query, self._old_rank[rank], self._old_chunk[chunk])

    def step(self, index: int) -> Step:
        return self._permuted(self._steps.step(index))

    def _permuted(self, step: Step) -> Step:
        src, dst = self._relabelled(step.src), self._relabelled(step.dst)
        return replace(step, src=src, dst=dst, chunk=self._new_chunk[step.chunk])


def on_channel(schedule: Schedule, channel: int) -> Schedule:
    """Move what is on channel c to channel `c + channel`, independent of schedules on lower channels.

    Raises ValueError for a negative number.

        >>> from ringsim import on_channel, ring_all_reduce
        >>> on_channel(ring_all_reduce(3), 1).steps[0].channel.tolist()
        [1, 1, 1]
    """
    require_schedules("on_channel", schedule)
    require_count("channel", channel, least=0)
    return replace(schedule, steps=ChannelSteps(schedule.steps, channel)) if channel else schedule


class ChannelSteps(DerivedSteps):
    """Steps with higher numbers of channels."""

    def __init__(self, steps: Steps, channel: int) -> None:
        super().__init__(steps)
        self._channel = channel
        self._renumbered = renumbered(1, channel)

    @property
    def num_channels(self) -> int:
        return self._steps.num_channels + self._channel

    def step(self, index: int) -> Step:
        step = self._steps.step(index)
        return replace(step, channel=self._renumbered(step.channel))
