"""`RecordedRuns`: record each strategy's steps on a group that sends nothing, and predict from them."""

import dataclasses
import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import nn
from torch.distributed import distributed_c10d

from collectives.recording import Recorder, RecordingGroup, recording
from collectives.runtime import gather_objects, naming_failures
from ringsim.measurements import provenance
from ringsim.network import Network
from ringsim.traces import Group, TracedStep, TraceEvent, TraceEventKind
from ringsim.training_step import GroupCalls, StepProfile, calls_of, simulate_step
from trainers.comparison import JobConfig
from trainers.comparison.report import StepPrediction, over_periods
from trainers.loop.meter import Memory, measure_memory
from trainers.loop.train_step import StepMoments, StepResult, TrainStep, require_finite_losses
from trainers.strategies import steps_between_averages
from trainers.strategies.flat_vector import described
from trainers.strategies.zero import ShardedWeights, Zero1

WARM_UP_STEPS = 3  # the optimizer's state and the gradients are allocated, and DDP fills new buckets
STEPS = 15
UNSYNCHRONISED = "none"  # the strategy of whose steps the profile is made


class RecordedStep(NamedTuple):
    """A step that a rank recorded.

    moments: those of `StepMoments`, as indices of the first event after each; the first is 0.
    """

    step: TracedStep
    moments: tuple[int, ...]

    @classmethod
    def cut_from(cls, step: TracedStep, computed_s: Sequence[float]) -> Self:
        """Split a step's computations at its moments; drop events before the first and after the last moment.

        computed_s: seconds computed before each moment, ascending.
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
        """Split the events after each call at which a rank waits for the others.

        Each part has its moments, as indices of its events.
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
    """Combine the steps of all ranks into one, in which ranks wait only for messages.

    Up to each call the slowest rank counts, after the last call the rank `typical`.
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
    """Return the medians over the steps.

    ranks: each rank's steps. pace: as in `simulate_step`. period: steps per communication.
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


class RankProfile(NamedTuple):
    """One rank's profile. steps_s: each step's time."""

    profile: StepProfile
    steps_s: list[float]


def profile_of(model: nn.Module, steps: Sequence[tuple[StepMoments, Sequence[float]]]) -> RankProfile:
    """Return the medians over steps without communication, each with its `GradientClock.before_last_s`."""
    backward_s = statistics.median(moments.backward_s + moments.sync_s for moments, _ in steps)
    noted_s = ([moments.backward_s - before_s for before_s in before_last_s] for moments, before_last_s in steps)
    # The median of one may come after the median of the whole, by the spread of the steps.
    ready_s = [min(statistics.median(times_s), backward_s) for times_s in zip(*noted_s, strict=True)]
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parameters = zip(named, described(list(named.values()), ready_s), strict=True)
    profile = StepProfile(
        tuple(replace(parameter, name=name) for name, parameter in parameters),
        forward_s=statistics.median(moments.forward_s for moments, _ in steps),
        backward_s=backward_s,
        optimizer_s=statistics.median(moments.optimizer_s for moments, _ in steps),
        buffer_bytes=sum(buffer.nbytes for buffer in model.buffers()),
        provenance={**provenance(), "torch": torch.__version__, "steps": len(steps), "statistic": "median"},
    )
    return RankProfile(profile, [moments.step_s - moments.loss_sync_s for moments, _ in steps])


def common_profile(ranks: Sequence[RankProfile], overlaps: bool) -> StepProfile:
    """Return rank 0's profile, stretched to the slowest rank's steps.

    overlaps: whether a host has a core to spare for sending; otherwise gradients are ready at the end.
    """
    slowest_s = statistics.median(max(steps) for steps in zip(*(rank.steps_s for rank in ranks), strict=True))
    first = ranks[0].profile
    factor = slowest_s / first.step_s
    backward_s = first.backward_s * factor
    return replace(
        first,
        parameters=tuple(replace(p, ready_s=p.ready_s * factor if overlaps else backward_s) for p in first.parameters),
        forward_s=first.forward_s * factor,
        backward_s=backward_s,
        optimizer_s=first.optimizer_s * factor,
    )


class RankRecording(NamedTuple):
    """One rank's steps, and its memory after them, by strategy; the profile of UNSYNCHRONISED."""

    steps: dict[str, list[RecordedStep]]
    memory: dict[str, Memory]
    profile: RankProfile


def num_recorded(name: str, steps: int) -> int:
    """Return a strategy's number of recorded steps: STEPS rounded up to whole periods, at most max(STEPS, steps)."""
    period = steps_between_averages(name)
    return min(-(-STEPS // period) * period, max(STEPS, steps))


class _RecordedRun:
    """A strategy whose steps are recorded. times: for the profile of UNSYNCHRONISED."""

    def __init__(self, config: JobConfig, name: str, group: Any, recorder: Recorder) -> None:
        self.name = name
        step = dataclasses.replace(config.step, strategy=name)
        self.train_step = TrainStep(config.task, step, group, num_steps=config.steps)
        self.num_steps = num_recorded(name, config.steps)
        self.steps: list[RecordedStep] = []
        self.times: list[tuple[StepMoments, list[float]]] = []
        if isinstance(self.train_step.model.strategy, Zero1):
            for weights in self.train_step.model.strategy.weights:
                _gather_initial(weights, recorder)

    def take(self, step: int, recorder: Recorder) -> StepResult:
        recorder.end_step()  # discards events since the last step
        result = self.train_step.run(step)
        computed_s = [recorder.computed_s(moment_s) for moment_s in result.moments]
        recorder.end_step()
        if not result.trouble and step >= WARM_UP_STEPS:
            self.steps.append(RecordedStep.cut_from(recorder.steps[-1], computed_s))
            if self.name == UNSYNCHRONISED:
                self.times.append((result.moments, self.train_step.clock.before_last_s()))
        return result


def _gather_initial(weights: ShardedWeights, recorder: Recorder) -> None:
    """Let `weights.gather` restore the initial parameters, in time that is not recorded.

    A group that sends nothing leaves this rank's share in all other places. Gradients then become subnormal, and slow.
    """
    gather, initial = weights.gather, weights.home.vector.clone()

    def gather_initial() -> None:
        gather()
        with recorder.stopped(), torch.no_grad():
            weights.home.vector.copy_(initial)

    weights.gather = gather_initial  # type: ignore[method-assign]


class RecordedRuns:
    """Runs of each strategy on groups that send nothing; steps are recorded after a warm-up.

    num_steps: of all runs, with the warm-up. ranks: the recordings, after `gather`.

    The constructor, `take_until` and `gather` are collective: all ranks compute at once.
    """

    def __init__(self, config: JobConfig, group: dist.ProcessGroup) -> None:
        self._group = group
        self.ranks: list[RankRecording] = []
        self._recorder, self._groups = Recorder(), list[Group]()
        self._known = set(distributed_c10d._world.pg_map)
        with self._sending_nothing():
            alone = dist.new_group(list(range(group.size())))
            names = dict.fromkeys((*config.strategies, UNSYNCHRONISED))
            self._runs = [_RecordedRun(config, name, alone, self._recorder) for name in names]
        self._round = 0
        self._num_rounds = WARM_UP_STEPS + max(run.num_steps for run in self._runs)
        self.num_steps = sum(WARM_UP_STEPS + run.num_steps for run in self._runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for made in set(distributed_c10d._world.pg_map) - self._known:
            if isinstance(made, RecordingGroup):
                dist.destroy_process_group(made)

    def take_until(self, share: float, on_step: Callable[[str], object] = lambda _: None) -> None:
        """Take the warm-up, then this share of the recorded rounds. Raises the errors of `run_job`."""
        until = min(self._num_rounds, WARM_UP_STEPS + math.ceil(share * (self._num_rounds - WARM_UP_STEPS)))
        while self._round < until:
            first = self._round % len(self._runs)  # as in training
            for run in (*self._runs[first:], *self._runs[:first]):
                if self._round < WARM_UP_STEPS + run.num_steps:
                    self._take(run)
                    on_step(run.name)
            self._round += 1

    def _take(self, run: _RecordedRun) -> None:
        with self._sending_nothing():
            result = run.take(self._round, self._recorder)
        require_finite_losses(self._group, result.loss, f"recording step {self._round}, strategy {run.name}")

    def gather(self) -> None:
        profile = next(profile_of(run.train_step.model.model, run.times) for run in self._runs if run.times)
        with self._sending_nothing():  # a forward pass may be collective
            memory = {run.name: measure_memory(run.train_step) for run in self._runs}
        own = RankRecording({run.name: run.steps for run in self._runs}, memory, profile)
        self.ranks = gather_objects(own, self._group, "gathering recorded steps failed")

    def predict(self, names: Sequence[str], network: Network, pace: float) -> dict[str, StepPrediction]:
        """Return the predicted times of strategies on a network. pace: as in `simulate_step`."""
        groups = [calls_of(group, len(self.ranks), network) for group in self._groups]
        return {
            name: predict_steps([rank.steps[name] for rank in self.ranks], groups, pace, steps_between_averages(name))
            for name in names
        }

    def memory(self, names: Sequence[str]) -> dict[str, Memory]:
        return {name: max((rank.memory[name] for rank in self.ranks), key=lambda held: held.total) for name in names}

    @contextmanager
    def _sending_nothing(self) -> Iterator[None]:
        group = self._group
        with (
            naming_failures(f"rank {group.rank()}: recording steps failed"),
            recording(group.size(), group.rank(), self._recorder, self._groups),
        ):
            yield
