"""`predict_trace`: how long the steps of a recorded program take on a network."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

from ringsim.analysis import better_networks
from ringsim.calibration import Interval, interval_fields
from ringsim.files import finite_or_none
from ringsim.native import BACKENDS
from ringsim.network import AnyNetwork
from ringsim.registry import require_trusted
from ringsim.schedule import Collective
from ringsim.traces import Group, Operator, ProgramTrace, TracedStep, TraceEvent
from ringsim.training_step.group_calls import GroupCalls, element_bytes_of
from ringsim.training_step.simulate_step import simulate_step
from ringsim.training_step.step_interval import step_interval
from ringsim.training_step.step_timeline import MeanStep, StepTimeline, typical_of
from ringsim.units import format_size, format_time, plural


@dataclass(frozen=True, slots=True)
class Roofline:
    """The peak rates of a device, by which its operators take at least as long as their FLOPs or their bytes.

    flops_per_s: by the dtype of `Operator`, or else by the bytes of an element.
    memory_bytes_per_s: that its memory reads and writes.
    multiprocessors: that do the arithmetic; 0: not known.
    memory_bytes: that its memory holds; None if that is not known.
    """

    flops_per_s: Mapping[int | str, float]
    memory_bytes_per_s: float
    multiprocessors: int = 0
    memory_bytes: int | None = None

    def seconds(self, event: TraceEvent, occupied: int = 0, is_fused: bool = False) -> float:
        """Return how long a computation takes: each operator as long as its arithmetic or its memory, if longer.

        occupied: multiprocessors that do something else; at least one is left.
        is_fused: without the operators of which a compiler may leave nothing.
        """
        share = max(1, self.multiprocessors - occupied) / self.multiprocessors if self.multiprocessors else 1.0
        operators = [operator for operator in event.operators if not (is_fused and operator.may_be_fused)]
        return sum(operator.count * self._operator_s(operator, share) for operator in operators)

    def _operator_s(self, operator: Operator, share: float) -> float:
        rates, dtype = self.flops_per_s, operator.dtype
        flops_per_s = rates.get(dtype) or rates.get(element_bytes_of(dtype)) or min(rates.values())
        return max(operator.flops / (share * flops_per_s), operator.size_bytes / self.memory_bytes_per_s)


# NVIDIA's data sheets of A100 (80 GB, SXM), H100 (SXM) and H200, dense, without sparsity (those of H100 and H200 give
# the rates of tensor cores with it, which are twice as high); multiprocessors by NVIDIA's white papers on the
# architectures Ampere and Hopper.
_A100: dict[int | str, float] = {1: 624e12, 2: 312e12, "tf32": 156e12, 4: 19.5e12, 8: 19.5e12}
_H100: dict[int | str, float] = {1: 1978.9e12, 2: 989.4e12, "tf32": 494.7e12, 4: 67e12, 8: 67e12}
_GB = 2**30  # so large are the gigabytes of these data sheets where they are memory
GPUS = {
    "a100": Roofline(_A100, 2.039e12, 108, 80 * _GB),
    "h100": Roofline(_H100, 3.35e12, 132, 80 * _GB),
    "h200": Roofline(_H100, 4.8e12, 132, 141 * _GB),
}


LOWER_BOUND = "lower bound (roofline at peak rates)"
MIN_EXPOSED = 0.01  # of a step: with less there is nothing to gain from a better network
MAX_SCALE = 1e9
_BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class Computing:
    """Where and how fast the computations of a trace take place.

    on_gpu: whether streams do the work, and collectives are NCCL's.
    roofline: by which the operators are timed; None: computations take as long as where they were recorded.
    scale: of these times; of a roofline it is greater than 1, since nothing reaches its device's peak.
    is_fitted: whether the scale was chosen so that a step takes as long as it was measured. is_fused: as of `Roofline`.
    """

    on_gpu: bool = False
    roofline: Roofline | None = None
    scale: float = 1.0
    is_fitted: bool = False
    is_fused: bool = False

    @property
    def basis(self) -> str:
        """How sure the times of the computations are, in words."""
        if self.is_fitted:
            return "prediction (computations scaled to a measured step)"
        if self.scale != 1:
            return "prediction (computations scaled as asked for)"
        return LOWER_BOUND if self.roofline else "prediction (computations as long as recorded)"

    def seconds(self, event: TraceEvent, occupied: int = 0) -> float:
        """Return how long a computation takes. occupied: multiprocessors of the GPU that calls occupy meanwhile."""
        if self.roofline is None:
            return self.scale * event.seconds
        return self.scale * self.roofline.seconds(event, occupied, self.is_fused)


AS_RECORDED = Computing()


@dataclass(frozen=True, slots=True)
class TracePrediction:
    """The steps of a trace on a network.

    network: as its `as_dict` has it.
    timelines: of all steps, in their order; by a roofline, of those whose operators were watched.
    mean: of these steps. better: its time if something were better, by its name.
    not_chosen: why some algorithms are not what NCCL would take; "" if all are.
    by_formula: as of `GroupCalls`, of the first group that has any.
    core_scale: as of `core_scale`. interval: as of `trace_interval`; None if it is not known.
    fused_s: the mean step of a compiled program if the compiler leaves nothing of what it may fuse; None if the
    program is not compiled, or its times are recorded or measured.
    """

    trace: ProgramTrace
    network: dict[str, Any]
    computing: Computing
    timelines: tuple[StepTimeline, ...]
    mean: MeanStep
    better: tuple[tuple[str, float], ...]
    not_chosen: str
    by_formula: str = ""
    core_scale: float = 1.0
    interval: Interval | None = None
    fused_s: float | None = None

    @property
    def steps_s(self) -> tuple[float, ...]:
        """The times of all steps, in their order."""
        return tuple(timeline.step_s for timeline in self.timelines)

    @property
    def shown(self) -> int:
        """The index of the step that a picture shows."""
        return typical_of(self.timelines)

    @property
    def timeline(self) -> StepTimeline:
        """The step that a picture shows."""
        return self.timelines[self.shown]

    @property
    def not_counted(self) -> list[str]:
        """The operators whose arithmetic is not counted, with their calls and bytes in all steps, most bytes first.

        On GPUs also what a program that has other groups as well communicates by Gloo.
        """
        calls, sizes = Counter[str](), Counter[str]()
        by_gloo = [group.backend == "gloo" for group in self.trace.groups]
        is_mixed = self.computing.on_gpu and not all(by_gloo)
        for step in (timeline.step for timeline in self.timelines):
            for operator in step.operators if self.computing.roofline else []:
                if not operator.is_counted:
                    calls[operator.name] += operator.count
                    sizes[operator.name] += operator.count * operator.size_bytes
            for call in (call for call in step.calls if is_mixed and by_gloo[call.group]):
                calls[name := f"{call.collective} by Gloo, timed as NCCL's"] += 1
                sizes[name] += call.size_bytes
        return [f"{plural(calls[name], 'call')} of {name}, {format_size(size)}" for name, size in sizes.most_common()]

    @property
    def unawaited(self) -> str:
        """The number of calls that end in their steps although nobody waits for them there; "" if it is 0."""
        calls = [call for timeline in self.timelines for call in timeline.step.unawaited]
        told = f"{plural(len(calls), 'call')}, {format_size(sum(call.size_bytes for call in calls))}"
        return f"taken to end in their steps, where the program does not wait for them: {told}" if calls else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; a time that is infinite becomes None."""
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
            "memory": asdict(self.trace.memory) if self.trace.memory else None,
            "on_gpu": self.computing.on_gpu,
            "compute_scale": self.computing.scale,
            "core_scale": self.core_scale,
            **finite_or_none(self.mean._asdict()),
            **interval_fields(self.interval),
            "steps_s": finite_or_none(list(self.steps_s)),
            "better": finite_or_none(dict(self.better)),
            "not_chosen": self.not_chosen or None,
            "by_formula": self.by_formula or None,
            "shown_step": self.shown,
            "groups": [asdict(group) for group in self.trace.groups],
            "calls": [
                finite_or_none({**asdict(call), **span._asdict(), "exposed_s": exposed_s})
                for call, span, exposed_s in calls
            ],
        }


class _Simulation:
    """Steps of a trace on a network; a collective of one size is simulated once, and a computation timed once."""

    def __init__(self, trace: ProgramTrace, network: AnyNetwork, computing: Computing) -> None:
        _refuse_peers(trace)
        ranks_of_host = min(network.spec.ranks_per_host or trace.num_ranks, trace.num_ranks)
        self._pace = pace_together(network.spec.host.cores, ranks_of_host)
        self._computing = replace(computing, scale=1.0)
        self.core_scale = core_scale(computing, network.spec.host.cores, ranks_of_host)
        self.groups = [calls_of(group, trace.num_ranks, network, computing.on_gpu) for group in trace.groups]
        self._seconds: dict[tuple[int, int], float] = {}  # by a computation's id, and what calls occupy meanwhile

    def timelines(self, steps: Sequence[TracedStep], scale: float) -> list[StepTimeline]:
        """Return the timelines of steps one after the other."""
        return [self.timeline(step, scale, number) for step, number in zip(steps, _numbers(steps), strict=True)]

    def mean(self, steps: Sequence[TracedStep], scale: float) -> MeanStep:
        """Return the mean of the steps."""
        return MeanStep.of(self.timelines(steps, scale))

    def timeline(self, step: TracedStep, scale: float, number: int) -> StepTimeline:
        def seconds(event: TraceEvent, occupied: int) -> float:
            key = id(event), occupied
            if key not in self._seconds:
                self._seconds[key] = self._computing.seconds(event, occupied)
            return scale * self.core_scale * self._seconds[key]

        return simulate_step(step, self.groups, seconds, on_gpu=self._computing.on_gpu, pace=self._pace, number=number)


def _refuse_peers(trace: ProgramTrace) -> None:
    """Raise ValueError for the first send or recv, which other ranks do not make alike."""
    for number, step in enumerate(trace.steps):
        for index, call in enumerate(step.calls):
            if call.collective in ("send", "recv"):
                way = "to" if call.collective == "send" else "from"
                raise ValueError(
                    f"steps[{number}].calls[{index}]: {call.collective} {way} rank "
                    f"{trace.groups[call.group].ranks[call.peer]}: the recording of one rank cannot predict "
                    "programs whose ranks do different things, such as pipelines"
                )


def calls_of(group: Group, num_ranks: int, network: AnyNetwork, on_gpu: bool = False) -> GroupCalls:
    """Return the collectives of a recorded group on a network."""
    name = "nccl" if on_gpu else "ring" if group.backend == "ring" else "gloo"
    return GroupCalls(network, num_ranks, BACKENDS[name], group.ranks)


def _numbers(steps: Sequence[TracedStep]) -> list[int]:
    """Return the number of each step among those that make calls."""
    return [0, *accumulate(bool(step.calls) for step in steps)][: len(steps)]


def predict_trace(
    trace: ProgramTrace,
    network: AnyNetwork,
    computing: Computing = AS_RECORDED,
    algorithm: str = "",
    trusted: Collection[str] = (),
) -> TracePrediction:
    """Predict all steps of a trace.

    algorithm: by which all_reduces are done in place of the library's choice.
    trusted: algorithms of Python files that the trace may name, see `build_recorded`.

    Raises ValueError for a network without room for the ranks, a call that cannot be simulated, a roofline if the
    operators were not watched, or an algorithm that there is not or that is not trusted.
    """
    steps = _timed_steps(trace, computing, algorithm, trusted)
    simulation = _Simulation(trace, network, computing)
    if any(step.calls for step in steps):
        for group in simulation.groups:
            group.require_priced()
    timelines = tuple(simulation.timelines(steps, computing.scale))
    mean, fused_s = MeanStep.of(timelines), None
    if trace.is_compiled and computing.roofline and not computing.is_fitted:
        fused = _Simulation(trace, network, replace(computing, is_fused=True))
        fused_s = fused.mean(steps, computing.scale).step_s
    return TracePrediction(
        trace,
        dict(network.as_dict()),
        computing,
        timelines,
        mean,
        tuple(_better(steps, mean, trace, network, computing, simulation)),
        next((group.why_not for group in simulation.groups if group.why_not and len(group.ranks) > 1), ""),
        next((group.by_formula for group in simulation.groups if group.by_formula), ""),
        simulation.core_scale,
        fused_s=fused_s,
    )


def trace_interval(prediction: TracePrediction, network: AnyNetwork) -> Interval | None:
    """Return the interval of the mean step of a trace that was predicted for `network`; see `step_interval`."""
    steps = [timeline.step for timeline in prediction.timelines]
    simulation = _Simulation(prediction.trace, network, prediction.computing)

    def step_s(longer: float) -> float:
        return simulation.mean(steps, prediction.computing.scale * longer).step_s

    calls = [call for step in steps for call in step.calls]
    return step_interval(network, calls, simulation.groups, step_s)


def fitted_scale(
    trace: ProgramTrace,
    network: AnyNetwork,
    computing: Computing,
    measured_s: float,
    algorithm: str = "",
    trusted: Collection[str] = (),
) -> float:
    """Return the scale of the computations with which the mean step takes as long as was measured.

    Raises ValueError if it takes longer than that even if nothing is computed, besides those of `predict_trace`.
    """
    steps = _timed_steps(trace, computing, algorithm, trusted)
    simulation = _Simulation(trace, network, computing)

    def step_s(scale: float) -> float:
        return simulation.mean(steps, scale).step_s

    low, high = 0.0, 1.0
    if math.isinf(step_s(low)):
        raise ValueError("the communication never ends on this network, because a rank or link fails in it")
    if step_s(low) > measured_s:
        raise ValueError(
            f"communication alone takes {format_time(step_s(low))} on this network, longer than the measured step"
        )
    while step_s(high) < measured_s:
        low, high = high, 2 * high
        if high > MAX_SCALE:
            raise ValueError("the computations are too short: no scale makes the step as long as measured")
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if step_s(middle) < measured_s else (low, middle)
    return high


def pace_together(cores: int | None, num_ranks: int) -> float:
    """Return how fast a rank on CPUs computes, and its calls get on, while it does both; 1 if it has a core for each.

    A rank that has one core or less gives half of its time to each of the two threads.

    num_ranks: that share the cores. cores: of a host; None if there are enough.
    """
    return 1.0 if cores is None else min(1.0, max(1.0, cores / num_ranks) / 2)


def core_scale(computing: Computing, cores: int | None, num_ranks: int) -> float:
    """Return how many times as long computations take as recorded, since ranks share cores of the host.

    A program is recorded alone, with a core to itself. Where a host has fewer cores than ranks, which all compute at
    once, the kernel gives each of them the same share.

    cores: of a host; None if there are enough. num_ranks: that share them.
    """
    if cores is None or computing.on_gpu or computing.roofline:
        return 1.0
    return max(1.0, num_ranks / cores)


def _by_algorithm(step: TracedStep, algorithm: str, trusted: Collection[str]) -> TracedStep:
    is_named = Collective.ALL_REDUCE.value if algorithm else ""
    calls = [replace(call, algorithm=algorithm) if call.collective == is_named else call for call in step.calls]
    for call in calls:
        if call.algorithm != algorithm:  # which the caller has named
            require_trusted("the trace names", call.algorithm, trusted)
    return replace(step, calls=tuple(calls)) if algorithm else step


def _timed_steps(
    trace: ProgramTrace, computing: Computing, algorithm: str, trusted: Collection[str]
) -> list[TracedStep]:
    """Return the steps whose computations can be timed: by a roofline, those whose operators were watched."""
    steps = [step for step in trace.steps if computing.roofline is None or step.is_watched]
    if not steps:
        raise ValueError("the operators of the computations were not recorded, so their FLOPs are unknown")
    return [_by_algorithm(step, algorithm, trusted) for step in steps]


def _better(
    steps: Sequence[TracedStep],
    mean: MeanStep,
    trace: ProgramTrace,
    network: AnyNetwork,
    computing: Computing,
    simulation: _Simulation,
) -> list[tuple[str, float]]:
    """Return the mean step's time if one thing were better, the shortest first."""
    scale = computing.scale
    better = [("computations twice as fast", simulation.mean(steps, scale / 2).step_s)]
    if mean.exposed_s > MIN_EXPOSED * mean.step_s:
        for name, other in better_networks(network):
            better.append((name, _Simulation(trace, other, computing).mean(steps, scale).step_s))
        better.append(("communication that takes no time", mean.compute_s - mean.slowed_s))
    return sorted(better, key=lambda alternative: alternative[1])
