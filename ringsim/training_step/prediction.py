"""`predict_trace`: the times of a program's steps on a network."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from msgspec import structs

from ringsim.estimates import Estimate, ends_of
from ringsim.files import encode, finite_or_none
from ringsim.gpus import Gpu, Roofline
from ringsim.libraries import LIBRARIES, LIBRARY, Library
from ringsim.network import Network
from ringsim.registry import require_trusted
from ringsim.schedule import Collective
from ringsim.traces import Group, ProgramTrace, TracedStep, TraceEvent
from ringsim.training_step.group_calls import GroupCalls
from ringsim.training_step.simulate_step import MeanStep, StepTimeline, simulate_step, typical_of
from ringsim.units import format_size, plural

LOWER_BOUND = "lower bound (roofline at peak rates)"


@dataclass(frozen=True, slots=True)
class Computing:
    """Where and how fast the computations of a trace take place.

    on_gpu: streams do the work, and a GPU's library (LIBRARY) the collectives.
    rates: of the device, for the times of operators; None: recorded times. scale: factor of these times.
    is_fitted: the scale makes a step as long as measured. is_fused: leave out operators that a compiler may fuse.
    library: for all calls of a generated trace, whose computations include the sharing of cores; None for a recorded
    one.
    """

    on_gpu: bool = False
    rates: Roofline | Gpu | None = None
    scale: float = 1.0
    is_fitted: bool = False
    is_fused: bool = False
    library: Library | None = None

    @property
    def basis(self) -> str:
        if self.is_fitted:
            return "prediction (computations scaled to a measured step)"
        if self.scale != 1:
            return "prediction (computations scaled as asked for)"
        origin = "given" if self.library else "recorded"
        if isinstance(self.rates, Gpu):
            return f"prediction (kernel times of {self.rates.name})"
        return LOWER_BOUND if self.rates else f"prediction (computations as {origin})"

    def seconds(self, event: TraceEvent, occupied: int = 0) -> float:
        """Return the time of a computation. occupied: multiprocessors in use by calls."""
        if self.rates is None:
            return self.scale * event.seconds
        return self.scale * self.rates.seconds(event, occupied, self.is_fused)

    def issue_s(self, event: TraceEvent) -> float:
        """Return the time of the CPU to issue a computation or a call, scaled by a measured step; 0 if not known.

        It is 0 also for a device whose program does not issue work, but waits for it.
        """
        issue_s = self.rates.issue_s(event, self.is_fused) if self.on_gpu and isinstance(self.rates, Gpu) else 0.0
        return self.scale * issue_s if self.is_fitted else issue_s


AS_RECORDED = Computing()


_SAME_WORK = 0.01  # largest relative difference of FLOPs, as between uneven shares


class StepSimulation:
    """The steps of a trace on a network; equal collectives and computations are timed once.

    steps: all, or with rates the steps with watched operators. numbers: as in `simulate_step`.
    core_scale: factor of recorded times: a program is recorded alone, but ranks share the cores of a host equally.
    slowness: factor of kernel times: all ranks wait for the slowest GPU, the median of draws of as many.

    algorithm: of all_reduces, in place of the library's choice.
    trusted: algorithms of Python files that the trace may name, see `build_recorded`.

    Raises ValueError for too many ranks for the network, a call that cannot be simulated, rates without watched
    operators, or an unknown or untrusted algorithm.
    """

    def __init__(
        self,
        trace: ProgramTrace,
        network: Network,
        computing: Computing = AS_RECORDED,
        algorithm: str = "",
        trusted: Collection[str] = (),
    ) -> None:
        _refuse_peers(trace)
        self.trace, self.network, self.computing = trace, network, computing
        self._algorithm, self._trusted = algorithm, trusted
        watched = [step for step in trace.steps if computing.rates is None or step.is_watched]
        if not watched:
            raise ValueError("the operators of the computations were not recorded, so their FLOPs are unknown")
        self.steps = [_by_algorithm(step, algorithm, trusted) for step in watched]
        self.numbers = [0, *accumulate(bool(step.calls) for step in watched)][: len(watched)]
        cores = network.spec.host.cores
        ranks_of_host = min(network.spec.ranks_per_host or trace.num_ranks, trace.num_ranks)
        self._pace, self.core_scale = 1.0, 1.0
        self.slowness = computing.rates.slowness(trace.num_ranks) if isinstance(computing.rates, Gpu) else 1.0
        if computing.library is None:
            self._pace = pace_together(cores, ranks_of_host)
            if cores is not None and not computing.on_gpu and not computing.rates:
                self.core_scale = max(1.0, ranks_of_host / cores)
            self.groups = [calls_of(group, trace.num_ranks, network, computing.on_gpu) for group in trace.groups]
        else:
            ranks = (group.ranks for group in trace.groups)
            self.groups = [GroupCalls(network, trace.num_ranks, computing.library, group) for group in ranks]
        if any(step.calls for step in watched):
            for group in self.groups:
                group.require_priced()
        self._seconds: dict[tuple[int, int], float] = {}  # by a computation's id and the occupied multiprocessors

    def on(self, network: Network, computing: Computing | None = None) -> "StepSimulation":
        other = StepSimulation(self.trace, network, computing or self.computing, self._algorithm, self._trusted)
        other.numbers = self.numbers
        return other

    def at_quantile(self, quantile: float) -> "StepSimulation":
        """Return the simulation at a quantile of the times of calls across hosts; itself if they have no spread."""
        if not any(point.low or point.high for point in self.network.spec.fabric):
            return self
        other = copy(self)
        other.groups = [group.at_quantile(quantile) for group in self.groups]
        return other

    def choose_typical(self, num_steps: int) -> None:
        """Replace the first step by the typical one of `num_steps` repetitions, if its calls may be late."""
        step = self.steps[0]
        if any(self.groups[call.group].may_be_late(call) for call in step.calls):
            self.numbers[0] = typical_of([self._timeline(step, number, 1.0) for number in range(num_steps)])

    def timelines(self, scale: float = 1.0, cpu_scale: float = 1.0) -> tuple[StepTimeline, ...]:
        """Return the steps' timelines. scale, cpu_scale: additional factors of computations, and of their issuing."""
        steps = zip(self.steps, self.numbers, strict=True)
        return tuple(self._timeline(*step, scale, cpu_scale) for step in steps)

    def mean(self, scale: float = 1.0, cpu_scale: float = 1.0) -> MeanStep:
        return MeanStep.of(self.timelines(scale, cpu_scale))

    def _timeline(self, step: TracedStep, number: int, scale: float, cpu_scale: float = 1.0) -> StepTimeline:
        def seconds(event: TraceEvent, occupied: int) -> float:
            key = id(event), occupied
            if key not in self._seconds:
                self._seconds[key] = self.core_scale * self.slowness * self.computing.seconds(event, occupied)
            return scale * self._seconds[key]

        return simulate_step(
            step,
            self.groups,
            seconds,
            issue_s=lambda event: cpu_scale * self.computing.issue_s(event),
            on_gpu=self.computing.on_gpu,
            pace=self._pace,
            number=number,
        )

    def predict(self) -> "TracePrediction":
        timelines, fused_s = self.timelines(), None
        if self.trace.is_compiled and self.computing.rates and not self.computing.is_fitted:
            fused_s = self.on(self.network, replace(self.computing, is_fused=True)).mean().step_s
        return TracePrediction(self, timelines, MeanStep.of(timelines), fused_s)


def _refuse_peers(trace: ProgramTrace) -> None:
    """Raise ValueError for the first send or recv."""
    for number, step in enumerate(trace.steps):
        for index, call in enumerate(step.calls):
            if call.collective in ("send", "recv"):
                way = "to" if call.collective == "send" else "from"
                raise ValueError(
                    f"steps[{number}].calls[{index}]: {call.collective} {way} rank "
                    f"{trace.groups[call.group].ranks[call.peer]}: the recording of one rank cannot predict "
                    "programs whose ranks do different things, such as pipelines"
                )


def _by_algorithm(step: TracedStep, algorithm: str, trusted: Collection[str]) -> TracedStep:
    is_named = Collective.ALL_REDUCE.value if algorithm else ""
    calls = [structs.replace(call, algorithm=algorithm) if call.collective == is_named else call for call in step.calls]
    for call in calls:
        if call.algorithm != algorithm:  # which the caller has named
            require_trusted("the trace names", call.algorithm, trusted)
    return structs.replace(step, calls=tuple(calls)) if algorithm else step


def calls_of(group: Group, num_ranks: int, network: Network, on_gpu: bool = False) -> GroupCalls:
    """Return the collectives of a recorded group."""
    name = LIBRARY if on_gpu else "ring" if group.backend == "ring" else "gloo"
    return GroupCalls(network, num_ranks, LIBRARIES[name], group.ranks)


def pace_together(cores: int | None, num_ranks: int) -> float:
    """Return the relative speed of computing and of calls on CPUs while a rank does both; 1 with a core for each.

    It is 1/2 if the `num_ranks` ranks of a host have at most as many cores. cores: None: always enough.
    """
    return 1.0 if cores is None else min(1.0, max(1.0, cores / num_ranks) / 2)


def predict_trace(
    trace: ProgramTrace,
    network: Network,
    computing: Computing = AS_RECORDED,
    algorithm: str = "",
    trusted: Collection[str] = (),
) -> "TracePrediction":
    """Predict all steps of a trace; see `StepSimulation`."""
    return StepSimulation(trace, network, computing, algorithm, trusted).predict()


@dataclass(frozen=True, slots=True)
class TracePrediction:
    """The steps of a trace on a network.

    fused_s: mean step of a compiled program without the operators that may be fused; None for other programs, and for
    recorded or measured times.
    better: step times after improvements, by name, see `with_better_steps`.
    interval: of the mean step, see `with_step_interval`; None if not known.
    p95_s: over draws of GPUs, of which `mean` has the median; None if their spread is not known.
    """

    simulation: StepSimulation
    timelines: tuple[StepTimeline, ...]
    mean: MeanStep
    fused_s: float | None = None
    better: tuple[tuple[str, float], ...] = ()
    interval: Estimate | None = None
    p95_s: float | None = None

    @property
    def trace(self) -> ProgramTrace:
        return self.simulation.trace

    @property
    def computing(self) -> Computing:
        return self.simulation.computing

    @property
    def network(self) -> dict[str, Any]:
        return dict(self.simulation.network.as_dict())

    @property
    def not_chosen(self) -> str:
        """`GroupCalls.why_not` of the first group with a reason; "" if none has one."""
        groups = self.simulation.groups
        return next((group.why_not for group in groups if group.why_not and len(group.ranks) > 1), "")

    @property
    def by_formula(self) -> str:
        """`GroupCalls.by_formula` of the first group with such calls; "" if none has them."""
        return next((group.by_formula for group in self.simulation.groups if group.by_formula), "")

    @property
    def issue_s(self) -> float:
        """Mean time of the CPU to issue the computations and calls of a step; 0 if not known."""
        steps = self.simulation.steps
        return sum(self.computing.issue_s(event) for step in steps for event in step.events) / len(steps)

    @property
    def steps_s(self) -> tuple[float, ...]:
        return tuple(timeline.step_s for timeline in self.timelines)

    @property
    def shown(self) -> int:
        return typical_of(self.timelines)

    @property
    def timeline(self) -> StepTimeline:
        return self.timelines[self.shown]

    @property
    def not_counted(self) -> list[str]:
        """The operators without counted arithmetic, with their calls and bytes, most bytes first.

        On GPUs also collectives over Gloo, if other groups use another backend.
        """
        calls, sizes = Counter[str](), Counter[str]()
        by_gloo = [group.backend == "gloo" for group in self.trace.groups]
        is_mixed = self.computing.on_gpu and not all(by_gloo)
        for step in self.simulation.steps:
            for operator in step.operators if self.computing.rates else []:
                if not operator.is_counted:
                    calls[operator.name] += operator.count
                    sizes[operator.name] += operator.count * operator.size_bytes
            for call in (call for call in step.calls if is_mixed and by_gloo[call.group]):
                calls[name := f"{call.collective} by Gloo, timed as {LIBRARIES[LIBRARY].title}'s"] += 1
                sizes[name] += call.size_bytes
        return [f"{plural(calls[name], 'call')} of {name}, {format_size(size)}" for name, size in sizes.most_common()]

    @property
    def unawaited(self) -> str:
        """A note on calls that end in their steps, where the program does not wait for them; "" if none."""
        calls = [call for step in self.simulation.steps for call in step.unawaited]
        summary = f"{plural(len(calls), 'call')}, {format_size(sum(call.size_bytes for call in calls))}"
        return f"taken to end in their steps, where the program does not wait for them: {summary}" if calls else ""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON fields; infinity becomes None."""
        timeline = self.timeline
        calls = zip(timeline.step.calls, timeline.calls, timeline.exposed_by_call(), strict=True)
        compiled = [self.fused_s, self.mean.step_s] if self.fused_s is not None else None
        return {
            "basis": self.computing.basis,
            "is_compiled": self.trace.is_compiled,
            "compiled_between_s": finite_or_none(compiled),
            "not_counted": self.not_counted,
            "unawaited": self.unawaited or None,
            "network": self.network,
            "num_ranks": self.trace.num_ranks,
            "memory": encode(self.trace.memory) if self.trace.memory else None,
            "on_gpu": self.computing.on_gpu,
            "compute_scale": self.computing.scale,
            "core_scale": self.simulation.core_scale,
            "issue_s": self.issue_s,
            **finite_or_none(self.mean._asdict()),
            **finite_or_none(ends_of(self.interval)),
            "p50_s": None if self.p95_s is None else finite_or_none(self.mean.step_s),
            "p95_s": finite_or_none(self.p95_s),
            "steps_s": finite_or_none(list(self.steps_s)),
            "better": finite_or_none(dict(self.better)),
            "not_chosen": self.not_chosen or None,
            "by_formula": self.by_formula or None,
            "shown_step": self.shown,
            "groups": [encode(group) for group in self.trace.groups],
            "calls": [
                finite_or_none({**encode(call), **span._asdict(), "exposed_s": exposed_s})
                for call, span, exposed_s in calls
            ],
        }


class ScaledStep(NamedTuple):
    """A step on `num_ranks` ranks; fused_s: as in `TracePrediction`.

    total_tokens_per_s: on all ranks; None if not known.
    """

    num_ranks: int
    step_s: float
    compute_s: float
    exposed_s: float
    communication_s: float
    efficiency: float
    total_tokens_per_s: float | None
    fused_s: float | None


class TraceScaling:
    """The step on several numbers of ranks, by which `predictions` are sorted.

    tokens: of each rank in a step, if known.
    single_s: reference of the efficiency: the step of a process alone; None: the step on the fewest ranks.
    """

    def __init__(
        self, predictions: Sequence[TracePrediction], tokens: int | None = None, single_s: float | None = None
    ) -> None:
        self.predictions = sorted(predictions, key=lambda prediction: prediction.trace.num_ranks)
        self.tokens, self.single_s = tokens, single_s

    @property
    def steps(self) -> list[ScaledStep]:
        first_s = self.predictions[0].mean.step_s if self.single_s is None else self.single_s
        steps = []
        for prediction in self.predictions:
            num_ranks, mean = prediction.trace.num_ranks, prediction.mean
            per_s = num_ranks * self.tokens / mean.step_s if self.tokens and mean.step_s else None
            times_s = mean.step_s, mean.compute_s, mean.exposed_s, mean.communication_s
            share = efficiency(first_s, mean.step_s)
            steps.append(ScaledStep(num_ranks, *times_s, share, per_s, prediction.fused_s))
        return steps

    @property
    def changed_work(self) -> str:
        """A note if the work of a rank depends on the number of ranks; "" otherwise."""
        ends = self.predictions[0], self.predictions[-1]
        flops = [prediction.timeline.step.flops for prediction in ends]
        if abs(flops[0] - flops[1]) <= _SAME_WORK * max(flops):
            return ""
        work = " and ".join(
            f"{count / 1e12:.4g} TFLOP on {plural(prediction.trace.num_ranks, 'rank')}"
            for count, prediction in zip(flops, ends, strict=True)
        )
        return f"a rank computes {work}: the work of a rank changes, and so the efficiency is not that of weak scaling"

    def as_dict(self) -> dict[str, Any]:
        """Return JSON fields; infinity becomes None."""
        first = self.predictions[0]
        return {
            "basis": first.computing.basis,
            "is_compiled": first.trace.is_compiled,
            "not_counted": self.predictions[-1].not_counted,
            "network": first.network,
            "on_gpu": first.computing.on_gpu,
            "compute_scale": first.computing.scale,
            "tokens": self.tokens,
            "changed_work": self.changed_work or None,
            "scaling": [finite_or_none(step._asdict()) for step in self.steps],
        }


def efficiency(reference_s: float, step_s: float) -> float:
    """Return the reference over the step; 1 if no time passes, and 0 for a step that never ends."""
    return 0.0 if math.isinf(step_s) else reference_s / step_s if step_s else 1.0
