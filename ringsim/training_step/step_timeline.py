"""`StepTimeline`: the times of all that happens in a training step: computations, calls, and waits for calls."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, Self

from ringsim.traces import TracedStep


class CallSpan(NamedTuple):
    """A call of a step: when it could begin, begins and ends, in seconds from the start of the step.

    protocol: None where the library of the backend is not known to choose one.
    channels: of a GPU, each of which occupies a multiprocessor meanwhile; 0 if they are not known.
    """

    ready_s: float
    begin_s: float
    end_s: float
    algorithm: str
    protocol: str | None
    channels: int

    @property
    def under_way_s(self) -> float:
        """Seconds from begin to end; 0 if it never begins."""
        return self.end_s - self.begin_s if math.isfinite(self.begin_s) else 0.0


class Wait(NamedTuple):
    """Computing waits for a call, of which nothing hides this part. call: its index in the step's `calls`."""

    call: int
    begin_s: float
    end_s: float


class Computation(NamedTuple):
    """A computation. event: its index in the step's `events`."""

    event: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """A traced step with the times of all that happens in it, in seconds from its start.

    calls: of each of the step's calls. done_s: when computations and waits up to each of the step's events are over.
    step_s: infinite if a call never ends. slowed_s: by which computations are longer since calls are under way.
    """

    step: TracedStep
    computations: tuple[Computation, ...]
    calls: tuple[CallSpan, ...]
    waits: tuple[Wait, ...]
    done_s: tuple[float, ...]
    step_s: float
    slowed_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """Seconds of all computations."""
        return sum(end_s - begin_s for _, begin_s, end_s in self.computations)

    @property
    def exposed_s(self) -> float:
        """Seconds in which nothing is computed, since a call is waited for."""
        return self.step_s - self.compute_s

    @property
    def communication_s(self) -> float:
        """Seconds in which at least one call is under way."""
        return covered_s((call.begin_s, call.end_s) for call in self.calls)

    def require_end(self) -> None:
        """Raise ValueError for a step that never ends."""
        if math.isinf(self.step_s):
            raise ValueError("the step never ends, as something fails: there is nothing to draw")

    def exposed_by_call(self) -> list[float]:
        """Return for each call the seconds for which it is waited."""
        exposed_s = [0.0] * len(self.calls)
        for call, begin_s, end_s in self.waits:
            exposed_s[call] += end_s - begin_s
        return exposed_s


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that are in at least one of some spans of time."""
    total_s, until_s = 0.0, -math.inf
    for begin_s, end_s in sorted(spans):
        total_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


class MeanStep(NamedTuple):
    """The times of a step, in seconds, in the mean of some steps; see `StepTimeline`."""

    step_s: float
    compute_s: float
    slowed_s: float
    exposed_s: float
    communication_s: float

    @classmethod
    def of(cls, timelines: Sequence[StepTimeline]) -> Self:
        """Return the mean of these steps."""
        return cls(*(fmean(getattr(timeline, name) for timeline in timelines) for name in cls._fields))


def typical_of(timelines: Sequence[StepTimeline]) -> int:
    """Return the index of the step of which as many are shorter as are longer, of those with the most calls."""
    most = max(len(timeline.calls) for timeline in timelines)
    busiest = [index for index, timeline in enumerate(timelines) if len(timeline.calls) == most]
    return sorted(busiest, key=lambda index: timelines[index].step_s)[(len(busiest) - 1) // 2]
