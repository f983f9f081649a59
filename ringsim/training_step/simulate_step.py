"""`simulate_step`: the timeline of a traced step whose collectives go over a network.

On a CPU the program waits: immediately for a synchronous call, later for an asynchronous one. If a rank has fewer than
two cores, its computing and communicating threads share them fairly: while both work, each advances at `pace`.

On a GPU the program only issues work, and runs ahead. Computations are one stream, and the calls of a group another:

- a call begins when the computations' stream has finished all earlier events; on a stream of the program's own, when
the events for which that stream was made to wait have ended;
- a kernel or a call begins when the CPU has issued it, which does so one after the other;
- a computation is slower while calls are under way, whose channels occupy multiprocessors;
- computations wait for a synchronous call at the call, for an asynchronous one where the program waits, and for a call
on its own stream where the program makes the computations' stream wait.

All ranks are assumed to be alike. Calls of different groups share nothing unless the groups are mirrored.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from math import isclose
from statistics import fmean
from typing import NamedTuple, Self

from ringsim.simulation import Span
from ringsim.traces import TraceCall, TracedStep, TraceEvent, TraceEventKind
from ringsim.training_step.group_calls import GroupCalls, PlannedCall


class CallSpan(NamedTuple):
    """The earliest possible begin, the begin and the end of a call, in seconds from the start of the step.

    protocol, channels: as in `PlannedCall`.
    """

    ready_s: float
    begin_s: float
    end_s: float
    algorithm: str
    protocol: str | None
    channels: int

    @property
    def under_way_s(self) -> float:
        """0 if it never begins."""
        return self.end_s - self.begin_s if math.isfinite(self.begin_s) else 0.0


class Wait(NamedTuple):
    """Exposed communication: the computing thread waits. call: index in the step's `calls`."""

    call: int
    begin_s: float
    end_s: float


class Computation(NamedTuple):
    """A computation. event: index in the step's `events`."""

    event: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """A traced step with the times of its events, in seconds from its start.

    calls: one for each of the step. done_s: end of the computations and waits up to each event.
    step_s: infinite if a call never ends. slowed_s: by which calls under way lengthen the computations.
    issuing_s: in which computations wait for the CPU to issue a call.
    """

    step: TracedStep
    computations: tuple[Computation, ...]
    calls: tuple[CallSpan, ...]
    waits: tuple[Wait, ...]
    done_s: tuple[float, ...]
    step_s: float
    slowed_s: float = 0.0
    issuing_s: float = 0.0

    @property
    def compute_s(self) -> float:
        return sum(end_s - begin_s for _, begin_s, end_s in self.computations)

    @property
    def exposed_s(self) -> float:
        """Exposed communication: seconds without computing, after the CPU has issued the call."""
        return self.step_s - self.compute_s - self.issuing_s

    @property
    def communication_s(self) -> float:
        """Seconds with at least one call under way."""
        return covered_s((call.begin_s, call.end_s) for call in self.calls)

    def require_end(self) -> None:
        """Raise ValueError if the step never ends."""
        if math.isinf(self.step_s):
            raise ValueError("the step never ends, as something fails: there is nothing to draw")

    def exposed_by_call(self) -> list[float]:
        exposed_s = [0.0] * len(self.calls)
        for call, begin_s, end_s in self.waits:
            exposed_s[call] += end_s - begin_s
        return exposed_s


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of the spans."""
    total_s, until_s = 0.0, -math.inf
    for begin_s, end_s in sorted(spans):
        total_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


class MeanStep(NamedTuple):
    """The mean times of several steps, see `StepTimeline`."""

    step_s: float
    compute_s: float
    slowed_s: float
    issuing_s: float
    exposed_s: float
    communication_s: float

    @classmethod
    def of(cls, timelines: Sequence[StepTimeline]) -> Self:
        return cls(*(fmean(getattr(timeline, name) for timeline in timelines) for name in cls._fields))


def typical_of(timelines: Sequence[StepTimeline]) -> int:
    """Return the index of the step with the median time, among the steps with the most calls."""
    most = max(len(timeline.calls) for timeline in timelines)
    busiest = [index for index, timeline in enumerate(timelines) if len(timeline.calls) == most]
    return sorted(busiest, key=lambda index: timelines[index].step_s)[(len(busiest) - 1) // 2]


Seconds = Callable[[TraceEvent, int], float]  # of a computation while calls occupy this number of multiprocessors
IssueSeconds = Callable[[TraceEvent], float]  # of the CPU
MAX_PASSES = 100
GOLDEN_RATIO, SILVER_RATIO = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1


def simulate_step(
    step: TracedStep,
    groups: Sequence[GroupCalls],
    seconds: Seconds,
    *,
    issue_s: IssueSeconds = lambda _: 0.0,
    on_gpu: bool = False,
    pace: float = 1.0,
    number: int = 0,
) -> StepTimeline:
    """Return the timeline of a step.

    on_gpu: whether streams execute computations and calls.
    issue_s: of the CPU for a computation or a call; only used on a GPU.
    pace: see `pace_together`; only used on a CPU.
    number: of the step among the steps with calls; it determines which calls are late.

    Raises ValueError for a call that cannot be simulated, such as send.
    """
    if not on_gpu:
        return _CpuRun(step, groups, seconds, pace, number).timeline()
    # A call that begins later in the program may be under way earlier, so that a computation is timed before it is
    # known. What is right up to a moment is right until a little later in the next pass.
    timeline = _GpuRun(step, groups, seconds, issue_s, ()).timeline()
    for _ in range(MAX_PASSES):
        last, timeline = timeline, _GpuRun(step, groups, seconds, issue_s, timeline.calls).timeline()
        if all(isclose(one.begin_s, other.begin_s) and isclose(one.end_s, other.end_s) for one, other in
               zip(last.calls, timeline.calls, strict=True)):  # fmt: skip
            break
    return timeline


class _Queue:
    """The calls of one group, in order."""

    def __init__(self, group: GroupCalls, algorithm: str) -> None:
        self._group, self._algorithm = group, algorithm
        self._runtime = group.carrier(algorithm).runtime
        self._together: dict[int, PlannedCall] = {}  # by index: the calls made since none was under way
        self._spans: list[Span] = []  # of the first of these, as many as are known

    def add(self, index: int, planned: PlannedCall) -> None:
        is_known = len(self._spans) == len(self._together)
        if is_known and all(span.end_s <= planned.call.ready_s for span in self._spans):
            self._together, self._spans = {}, []
        self._together[index] = planned

    def spans(self) -> Iterable[tuple[int, Span]]:
        """Return the index and times of the calls that may not have ended when the last one was made."""
        if len(self._spans) < len(self._together):
            self._spans = self._timed()
        return zip(self._together, self._spans, strict=True)

    def _timed(self) -> list[Span]:
        if self._group.depends_on_the_clock(self._algorithm) or (
            self._runtime.num_workers > 1 and len(self._together) > 1
        ):
            calls = [planned.call for planned in self._together.values()]
            begun = list(takewhile(lambda call: math.isfinite(call.ready_s), calls))
            never = [Span(math.inf, math.inf)] * (len(calls) - len(begun))
            return self._group.queued(begun, self._runtime) + never
        spans = self._spans
        for planned in list(self._together.values())[len(spans) :]:
            begin_s = max(planned.call.ready_s, spans[-1].end_s if spans else 0.0)
            spans.append(Span(begin_s, begin_s + self._group.alone_s(planned, self._algorithm)))
        return spans


class _Issued(NamedTuple):
    queue: _Queue
    planned: PlannedCall


class _CpuRun:
    """A step during its simulation; `now_s`: the time that the computations have reached.

    Calls have their own clock, which falls behind while they share cores with computations.
    """

    def __init__(
        self, step: TracedStep, groups: Sequence[GroupCalls], seconds: Seconds, pace: float = 1.0, number: int = 0
    ) -> None:
        self.step, self.groups, self.seconds, self._number = step, groups, seconds, number
        self.now_s = 0.0
        self.slowed_s = self.issuing_s = 0.0
        self.done_s: list[float] = []  # when computations and waits up to each event are over
        self._pace, self._behind_s = pace, 0.0  # by which the clock of the calls is behind
        # Moments at which calls begin and end to share cores: by their clock, in ascending order, and in the step.
        self._moments = [(0.0, 0.0)]
        self._computed_s = math.inf  # since the last call; unknown at the start of the step
        self._queues: dict[tuple[int, bool], _Queue] = {}
        self._issued: list[_Issued] = []  # each call
        self._known: dict[int, Span] = {}  # by call
        self._computations: list[Computation] = []
        self._waits: list[Wait] = []

    def compute(self, index: int) -> None:
        event = self.step.events[index]
        alone_s = self.seconds(event, 0)
        if math.isfinite(self.now_s) and alone_s > 0:
            begin_s = self.now_s
            self.advance(event, alone_s)
            self._computations.append(Computation(index, begin_s, self.now_s))
            self._computed_s += alone_s

    def advance(self, event: TraceEvent, alone_s: float) -> None:  # noqa: ARG002
        """Advance to the end of a computation, which takes `alone_s` without calls."""
        if self._pace < 1:
            alone_s -= self._share_cores(alone_s)
        self.now_s += alone_s

    def _share_cores(self, alone_s: float) -> float:
        """Advance computing and calls together, and return the computed seconds."""
        ends_s = [self._time_calls(queue) for queue in self._queues.values()]
        shared_s = min(alone_s, max(ends_s, default=0.0) - self.clock_s)
        if shared_s <= 0:
            return 0.0
        self._moments.append((self.clock_s, self.now_s))
        self.now_s += shared_s / self._pace
        self._behind_s += shared_s / self._pace - shared_s
        self.slowed_s = self._behind_s
        self._moments.append((self.clock_s, self.now_s))
        return shared_s

    @property
    def clock_s(self) -> float:
        return self.now_s - self._behind_s

    def _in_step(self, clock_s: float) -> float:
        index = max(bisect_right(self._moments, (clock_s, math.inf)) - 1, 0)
        (since_s, begin_s), *later = self._moments[index : index + 2]
        rate = (later[0][1] - begin_s) / (later[0][0] - since_s) if later else 1.0
        return begin_s + (clock_s - since_s) * rate

    def meet(self, event: TraceEvent) -> None:
        call = self.step.calls[event.call]
        if event.kind is TraceEventKind.CALL:
            self.issue(call, self.clock_s)
        if event.kind is TraceEventKind.WAIT or (event.kind is TraceEventKind.CALL and not call.is_async):
            self.wait(event.call)

    def issue(self, call: TraceCall, ready_s: float) -> None:
        group = self.groups[call.group]
        planned = group.call(call, ready_s, self._computed_s, self._place(len(self._issued)))
        self._computed_s = 0.0
        # Calls of `collectives` have their own thread, separate from the threads of torch.distributed.
        key = call.group, bool(call.algorithm)
        queue = self._queues.setdefault(key, _Queue(self.groups[call.group], call.algorithm))
        queue.add(len(self._issued), planned)
        self._issued.append(_Issued(queue, planned))

    def _place(self, call: int) -> float:
        """Return the place of a call from the earliest, 0, to the latest, 1.

        Multiples of either ratio modulo 1 are spread evenly, one over the calls of a step, the other over its
        repetitions. With a single ratio, a step of 21 calls would have the same late calls as the next.
        """
        return ((call + 1) * GOLDEN_RATIO + self._number * SILVER_RATIO) % 1.0

    def end_s(self, call: int) -> float:
        """Return the end of a call by the calls' clock, if no further call is made before."""
        self._time_calls(self._issued[call].queue)
        return self._known[call].end_s

    def _time_calls(self, queue: _Queue) -> float:
        """Record the times of a queue's calls, and return the last end."""
        spans = dict(queue.spans())
        self._known.update(spans)
        return max((span.end_s for span in spans.values()), default=0.0)

    def wait(self, call: int) -> None:
        waited_s = self.end_s(call) - self.clock_s
        if waited_s > 0:
            self._waits.append(Wait(call, self.now_s, self.now_s + waited_s))
            self.now_s += waited_s

    def timeline(self) -> StepTimeline:
        for index, event in enumerate(self.step.events):
            if event.kind is TraceEventKind.COMPUTE:
                self.compute(index)
            else:
                self.meet(event)
            self.done_s.append(self.now_s)
        for queue in self._queues.values():
            self._time_calls(queue)
        # Nobody may wait for the last call, but the step is not over before.
        if self._known:
            self.wait(max(self._known, key=lambda call: self._known[call].end_s))
        calls = []
        for index, issued in enumerate(self._issued):
            planned = issued.planned
            ready_s, begin_s, end_s = map(self._in_step, (planned.call.ready_s, *self._known[index]))
            algorithm = planned.call.schedule.algorithm
            calls.append(CallSpan(ready_s, begin_s, end_s, algorithm, planned.protocol, planned.channels))
        done = tuple(self._computations), tuple(calls), tuple(self._waits), tuple(self.done_s)
        return StepTimeline(self.step, *done, self.now_s, self.slowed_s, self.issuing_s)


class _GpuRun(_CpuRun):
    """A run on a GPU: `now_s` is of the computations' stream. under_way: the calls of the previous pass."""

    def __init__(
        self,
        step: TracedStep,
        groups: Sequence[GroupCalls],
        seconds: Seconds,
        issue_s: IssueSeconds,
        under_way: Sequence[CallSpan],
    ) -> None:
        super().__init__(step, groups, seconds)
        self._issue_s, self._issued_s = issue_s, 0.0  # until the CPU has issued the last event
        self._calls_issued_s: list[float] = []
        self._changes_s, self._occupied = _occupied(under_way)

    def compute(self, index: int) -> None:
        self._issued_s += self._issue_s(self.step.events[index])
        super().compute(index)

    def advance(self, event: TraceEvent, alone_s: float) -> None:
        now_s, left = self.now_s, 1.0
        for index in range(bisect_right(self._changes_s, now_s), len(self._changes_s) + 1):
            total_s = self.seconds(event, self._occupied[index])
            until_s = self._changes_s[index] if index < len(self._changes_s) else math.inf
            if now_s + left * total_s <= until_s:
                break
            left -= (until_s - now_s) / total_s
            now_s = until_s
        end_s = now_s + left * total_s
        self.slowed_s += max(0.0, end_s - self.now_s - alone_s)
        self.now_s = max(end_s, self._issued_s)  # the last kernel cannot begin before it is issued

    def meet(self, event: TraceEvent) -> None:
        call = self.step.calls[event.call]
        if event.kind is TraceEventKind.CALL:
            self._issued_s += self._issue_s(event)
            self._calls_issued_s.append(self._issued_s)
            self.issue(call, max(self._reached_s(call), self._issued_s))
        goes_on = call.on_side_stream or (event.kind is TraceEventKind.CALL and call.is_async)
        if event.kind is TraceEventKind.READ or not goes_on:
            self.wait(event.call)

    def wait(self, call: int) -> None:
        late_s = min(self._calls_issued_s[call], self.end_s(call)) - self.now_s
        if late_s > 0:
            self.issuing_s += late_s
            self.now_s += late_s
        super().wait(call)

    def _reached_s(self, call: TraceCall) -> float:
        if call.after is None or not call.on_side_stream:
            return self.now_s
        over_s = [self.end_s(other) for other in call.after_calls]
        if call.after >= 0:
            event = self.step.events[call.after]
            over_s.append(self.end_s(event.call) if event.kind is TraceEventKind.CALL else self.done_s[call.after])
        return max(over_s, default=0.0)


def _occupied(calls: Sequence[CallSpan]) -> tuple[list[float], list[int]]:
    """Return the moments at which occupied channels change, and their numbers before and after each."""
    changes = [change for call in calls for change in ((call.begin_s, call.channels), (call.end_s, -call.channels))]
    changes = sorted(change for change in changes if change[1] and math.isfinite(change[0]))
    return [moment_s for moment_s, _ in changes], list(accumulate((more for _, more in changes), initial=0))
