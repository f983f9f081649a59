"""From the steps that the ranks recorded to the time of a step: what they wait for, and how long, on a network."""

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Self

from msgspec.structs import replace

from ringsim.traces import TracedStep, TraceEvent, TraceEventKind
from ringsim.training_step import GroupCalls, simulate_step
from trainers.comparison.report import StepPrediction, over_periods
from trainers.loop.train_step import StepMoments


class RecordedStep(NamedTuple):
    """A step that a rank recorded, from its first moment to its last.

    moments: as of `StepMoments`, each as the index of the first event after it; 0 is the first.
    """

    step: TracedStep
    moments: tuple[int, ...]

    @classmethod
    def cut_from(cls, step: TracedStep, computed_s: Sequence[float]) -> Self:
        """Cut the computations of a step in two at its moments, and leave out what is not between these.

        computed_s: for each moment how many seconds of the step have been computed before it, in ascending order.
        """
        events: list[TraceEvent] = []
        moments: list[int] = []
        total_s = 0.0
        for event in step.events:
            left_s = event.seconds
            while len(moments) < len(computed_s) and computed_s[len(moments)] < total_s + left_s:
                before_s = max(computed_s[len(moments)] - total_s, 0.0)
                events.append(replace(event, seconds=before_s))
                moments.append(len(events))
                total_s, left_s = total_s + before_s, left_s - before_s
            events.append(replace(event, seconds=left_s))
            total_s += left_s
        moments += [len(events)] * (len(computed_s) - len(moments))
        begin, end = moments[0], moments[-1]
        return cls(replace(step, events=tuple(events[begin:end])), tuple(moment - begin for moment in moments))

    def parts(self) -> list[tuple[Sequence[TraceEvent], list[int]]]:
        """Return the events up to each call at which a rank waits for the others, and those after the last.

        Each with the moments in it, as indices of its events.
        """
        events, calls = self.step.events, self.step.calls
        ends = [
            index + 1
            for index, event in enumerate(events)
            if event.kind is TraceEventKind.WAIT
            or (event.kind is TraceEventKind.CALL and not calls[event.call].is_async)
        ]
        moments: list[list[int]] = [[] for _ in range(len(ends) + 1)]
        for moment in self.moments:
            part = bisect_right(ends, moment)
            moments[part].append(moment - (ends[part - 1] if part else 0))
        limits = pairwise([0, *ends, len(events)])
        return [(events[begin:end], of_part) for (begin, end), of_part in zip(limits, moments, strict=True)]


def together(ranks: Sequence[RecordedStep], typical: int) -> RecordedStep:
    """Return the step as the ranks take it together, in which none waits for another but for messages.

    At a call all ranks wait for the last one to come there, so that up to each call the slowest rank counts. After the
    last call nobody waits: there it is the rank `typical`.
    """
    events: list[TraceEvent] = []
    moments: list[int] = []
    *parts, last = zip(*(rank.parts() for rank in ranks), strict=True)
    slowest = [max(part, key=lambda one: sum(event.seconds for event in one[0])) for part in parts]
    for of_part, moments_of_part in (*slowest, last[typical]):
        moments += [len(events) + moment for moment in moments_of_part]
        events += of_part
    calls = (
        replace(call[0], local_s=max(of_rank.local_s for of_rank in call))
        for call in zip(*(rank.step.calls for rank in ranks), strict=True)
    )
    return RecordedStep(TracedStep(tuple(events), tuple(calls)), tuple(moments))


def predict_steps(
    ranks: Sequence[Sequence[RecordedStep]], groups: Sequence[GroupCalls], pace: float, period: int
) -> StepPrediction:
    """Return the medians over the steps, as a report has them of steps that were measured.

    ranks: the steps of each, in which each computed at the same time as the others. groups: those of the calls.
    pace: as of `simulate_step`. period: steps of which one communicates.
    """
    steps, calling = [], 0
    for number, of_ranks in enumerate(zip(*ranks, strict=True)):
        recorded = together(of_ranks, typical=number % len(of_ranks))
        timeline = simulate_step(recorded.step, groups, lambda event, _: event.seconds, pace=pace, number=calling)
        calling += bool(recorded.step.calls)
        times_s = (0.0, *timeline.done_s)
        steps.append(StepMoments(*(times_s[moment] for moment in recorded.moments)))
    sync_s, step_s = (
        over_periods(times_s, period) for times_s in zip(*((s.sync_s, s.step_s) for s in steps), strict=True)
    )
    return StepPrediction(statistics.median(sync_s), statistics.median(step_s))
