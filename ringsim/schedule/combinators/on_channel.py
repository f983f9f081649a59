"""`on_channel`: the same schedule on other channels."""

from dataclasses import replace

from ringsim.schedule.combinators.derived_steps import DerivedSteps, renumbered, require_schedules
from ringsim.schedule.schedule import Schedule
from ringsim.schedule.step import Step, Steps
from ringsim.schedule.user_steps import require_count


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
