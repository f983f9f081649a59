"""`on_channel`: the same schedule on other channels."""

from dataclasses import replace

from ringsim.schedule.combinators.operands import require_schedules
from ringsim.schedule.combinators.remember import Remembered
from ringsim.schedule.schedule import Ints, Schedule, Step, Steps, constant, only_value
from ringsim.schedule.user_steps import require_count


def on_channel(schedule: Schedule, channel: int) -> Schedule:
    """`schedule` with what was on channel c on channel `c + channel`, independent of schedules on the lower ones.

    Raises ValueError for a negative number.

        >>> from ringsim import on_channel, ring_all_reduce
        >>> on_channel(ring_all_reduce(3), 1).steps[0].channel.tolist()
        [1, 1, 1]
    """
    require_schedules("on_channel", schedule)
    require_count("channel", channel, least=0)
    return replace(schedule, steps=ChannelSteps(schedule.steps, channel)) if channel else schedule


class ChannelSteps(Steps):
    """Steps with higher numbers of channels."""

    def __init__(self, steps: Steps, channel: int) -> None:
        self._steps = steps
        self._channel = channel
        self._moved = Remembered(lambda column: _plus(channel, column))

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def lookback(self) -> int:
        return self._steps.lookback

    @property
    def num_transfers(self) -> int:
        return self._steps.num_transfers

    @property
    def num_channels(self) -> int:
        return self._steps.num_channels + self._channel

    def last_write(self, rank: Ints, chunk: Ints) -> Ints:
        return self._steps.last_write(rank, chunk)

    def last_send(self, rank: Ints, chunk: Ints) -> Ints:
        return self._steps.last_send(rank, chunk)

    def step(self, index: int) -> Step:
        step = self._steps.step(index)
        return replace(step, channel=self._moved(step.channel))


def _plus(more: int, column: Ints) -> Ints:
    only = only_value(column)
    return column + more if only is None else constant(only + more, len(column))
