"""`RateSchedule`: by which factor the learning rate of a step is multiplied; it follows from the step alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainers.tasks.config import require_at_least

LR_SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """A linear warm-up, then the whole rate, or a decay to 0 along half a cosine (Loshchilov and Hutter 2017, eq. 5).

    name: one of LR_SCHEDULES. num_steps: of the whole run.

    Raises ValueError for another name, and for a warm-up that is not shorter than the run.
    """

    name: str = "constant"
    warmup_steps: int = 0
    num_steps: int = 1

    def __post_init__(self) -> None:
        check_schedule(self.name, self.warmup_steps)
        if self.warmup_steps and self.warmup_steps >= self.num_steps:
            raise ValueError(
                f"--warmup-steps {self.warmup_steps}: must be less than the {self.num_steps} steps of the run"
            )

    @property
    def is_constant(self) -> bool:
        """Whether every step has the whole rate."""
        return self.name == "constant" and not self.warmup_steps

    def factor(self, step: int) -> float:
        """Of `step`, which counts from 0.

        >>> [RateSchedule("cosine", warmup_steps=2, num_steps=6).factor(step) for step in (0, 1, 2, 4)]
        [0.5, 1.0, 1.0, 0.5]
        """
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.name == "constant":
            return 1.0
        done = min(1.0, (step - self.warmup_steps) / (self.num_steps - self.warmup_steps))
        return round((1 + math.cos(math.pi * done)) / 2, 12)


class ScheduledRates:
    """Gives an optimizer the rates of a schedule; one that is constant leaves them as they are.

    Made before a checkpoint is loaded: the rates of the groups are then the task's own.

    Raises ValueError for an optimizer without a learning rate.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], schedule: RateSchedule) -> None:
        self._schedule = schedule
        if not schedule.is_constant and any("lr" not in group for group in groups):
            raise ValueError("--lr-schedule, --warmup-steps: the task's optimizer has no learning rate, called lr")
        # A rate may be a tensor, which an optimizer may change in its place.
        self._whole = [] if schedule.is_constant else [group["lr"] * 1 for group in groups]

    def set(self, groups: Sequence[dict[str, Any]], step: int) -> None:
        """Let the optimizer with these groups take `step` with its rate."""
        factor = self._schedule.factor(step)
        for group, whole in zip(groups, self._whole, strict=False):  # there are none if it is constant
            group["lr"] = whole * factor


def check_schedule(name: str, warmup_steps: int) -> None:
    """Raise ValueError for a name that there is not, and for fewer than no steps."""
    if name not in LR_SCHEDULES:
        raise ValueError(f"--lr-schedule {name}: must be one of {', '.join(LR_SCHEDULES)}")
    require_at_least(0, warmup_steps=warmup_steps)
