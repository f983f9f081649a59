"""A step of DistributedDataParallel, as a trace that is made from a profile of a step of one process.

1. The buffers are broadcast, if there are any; then comes the forward pass.
2. The backward pass. Each gradient is copied into its bucket, and divided, by the computing thread as soon as it is
   ready, which delays all that come after it.
3. A bucket is ready with its last gradient, and launched when those before it are.
4. After the backward pass the computing thread waits for one bucket after the other, and copies each back.
5. The optimizer's step.

All ranks are taken to be alike, and communication to take nothing from computing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple

from ringsim.files import finite_or_none
from ringsim.native import BACKENDS, Backend
from ringsim.network import AnyNetwork
from ringsim.traces import Call, Group, ProgramTrace, TracedStep, TraceEvent, TraceEventKind
from ringsim.training_step.buckets import BucketCaps, Phase, assign_buckets
from ringsim.training_step.computing import Computing
from ringsim.training_step.group_calls import element_bytes_of
from ringsim.training_step.prediction import StepSimulation, TracePrediction, efficiency
from ringsim.training_step.profile import StepProfile

LATE_STEPS = 5  # are simulated where calls may be late, so that it is not chance which of one step's calls are
_TIE = 1e-9  # two caps that make the same buckets differ by rounding alone


@dataclass(frozen=True, slots=True)
class DdpConfig:
    """The settings of DDP.

    backend: one of `BACKENDS`. algorithm: that reduces gradients; None: the backend's. workers: collectives that run at
    once; None: as many as the backend runs.
    wire_dtype: in which a comm hook sends gradients; None: in their own.
    bucket_view: with `gradient_as_bucket_view=True` nothing is copied back.
    overlap: False where communicating needs the core that computes: then it begins after the backward pass.
    copy_bytes_per_s: at which a gradient is copied; None: the rate at which the network says that a rank adds, as both
    are bound by memory.
    """

    caps: BucketCaps = field(default_factory=BucketCaps)
    backend: str = "gloo"
    algorithm: str | None = None
    workers: int | None = None
    phase: Phase = Phase.REBUILT
    wire_dtype: str | None = None
    bucket_view: bool = False
    overlap: bool = True
    copy_bytes_per_s: float | None = None

    @property
    def collectives(self) -> Backend:
        """The backend with the algorithm and the number of workers that are asked for."""
        backend = BACKENDS[self.backend]
        if self.workers:
            backend = replace(backend, runtime=replace(backend.runtime, num_workers=self.workers))
        return replace(backend, all_reduce=self.algorithm, chooses=False) if self.algorithm else backend


class DdpStep(NamedTuple):
    """A predicted step of DDP. single_s: the step of one process that trains alone."""

    config: DdpConfig
    single_s: float
    prediction: TracePrediction

    @property
    def step_s(self) -> float:
        """Infinite if something fails and a bucket is never reduced."""
        return self.prediction.mean.step_s

    @property
    def exposed_s(self) -> float:
        """Seconds for which the computing thread waits for communication."""
        return self.prediction.mean.exposed_s

    @property
    def efficiency(self) -> float:
        """The part of the speed of one process alone that each rank keeps; 1 where no time passes."""
        return efficiency(self.single_s, self.step_s)

    @property
    def num_buckets(self) -> int:
        """The number of all_reduces, with find_unused_parameters also that of the map of used parameters."""
        return sum(call.collective == "all_reduce" for call in self.prediction.timeline.step.calls)

    def row(self) -> dict[str, Any]:
        """Return the fields of a row for JSON; a time that is infinite becomes None."""
        times: dict[str, Any] = finite_or_none(self.prediction.mean._asdict())
        return {
            "num_ranks": self.prediction.trace.num_ranks,
            "first_cap_bytes": self.config.caps.first_bytes,
            "cap_bytes": self.config.caps.rest_bytes,
            "num_buckets": self.num_buckets,
            **times,
            "single_s": self.single_s,
            "efficiency": self.efficiency,
            "not_chosen": self.prediction.not_chosen or None,
            "by_formula": self.prediction.by_formula or None,
        }


def trace_ddp(profile: StepProfile, num_ranks: int, config: DdpConfig, copy_bytes_per_s: float) -> ProgramTrace:
    """Return the step as a trace, with all its calls in one group of `num_ranks` ranks."""
    buckets = assign_buckets(profile, config.caps, config.phase)
    copy_s = [parameter.size_bytes / copy_bytes_per_s for parameter in profile.parameters]
    broadcasts = [Call("broadcast", profile.buffer_bytes, "uint8", 0, is_async=False)] if profile.buffer_bytes else []
    reductions = [_all_reduce(profile, bucket, config.wire_dtype) for bucket in buckets]
    order = profile.order_of_readiness()
    place = {index: number for number, index in enumerate(order)}
    launched = list(accumulate((max(place[index] for index in bucket) for bucket in buckets), max))
    if config.phase is Phase.UNUSED:  # a number for each parameter, which says whether any rank has used it
        reductions.append(Call("all_reduce", 4 * len(profile.parameters), "int32", 0, is_async=True))
        launched.append(launched[-1])
    if not config.overlap:
        launched = [len(order)] * len(launched)
    events = [_event(TraceEventKind.CALL, call) for call in range(len(broadcasts))]
    events.append(_compute(profile.forward_s))
    call, at_s = len(broadcasts), 0.0  # of the backward pass, without copying
    for number, index in enumerate(order):
        ready_s = profile.parameters[index].ready_s
        events.append(_compute(ready_s - at_s + copy_s[index]))
        at_s = ready_s
        while call - len(broadcasts) < len(launched) and launched[call - len(broadcasts)] <= number:
            events.append(_event(TraceEventKind.CALL, call))
            call += 1
    events.append(_compute(profile.backward_s - at_s))
    num_calls = len(broadcasts) + len(reductions)
    events += [_event(TraceEventKind.CALL, later) for later in range(call, num_calls)]
    for waited in range(len(broadcasts), num_calls):
        events.append(_event(TraceEventKind.WAIT, waited))
        if waited - len(broadcasts) < len(buckets) and not config.bucket_view:
            events.append(_compute(sum(copy_s[index] for index in buckets[waited - len(broadcasts)])))
    events.append(_compute(profile.optimizer_s))
    step = TracedStep(tuple(events), (*broadcasts, *reductions))
    group = Group(tuple(range(num_ranks)), config.backend)
    return ProgramTrace(num_ranks, 0, num_ranks, (group,), (step,), profile.provenance)


def _all_reduce(profile: StepProfile, bucket: Sequence[int], wire_dtype: str | None) -> Call:
    parameters = [profile.parameters[index] for index in bucket]
    dtype = wire_dtype or parameters[0].dtype
    elements = sum(parameter.elements for parameter in parameters)
    return Call("all_reduce", elements * element_bytes_of(dtype), dtype, 0, is_async=True)


def _compute(seconds: float) -> TraceEvent:
    return TraceEvent(TraceEventKind.COMPUTE, max(seconds, 0.0))


def _event(kind: TraceEventKind, call: int) -> TraceEvent:
    return TraceEvent(kind, call=call)


def predict_ddp(profile: StepProfile, network: AnyNetwork, num_ranks: int, config: DdpConfig | None = None) -> DdpStep:
    """Return a step of `num_ranks` ranks that all follow the profile; if calls may be late, the typical step.

    Raises ValueError for an unknown algorithm, and for a network without room for `num_ranks` ranks.
    """
    config = config or DdpConfig()
    rate = config.copy_bytes_per_s or float(network.topology(num_ranks).processors.reduce_bytes_per_s.min())
    computing = Computing(on_gpu=config.backend == "nccl", backend=config.collectives)
    simulation = StepSimulation(trace_ddp(profile, num_ranks, config, rate), network, computing)
    simulation.choose_typical(LATE_STEPS)
    return DdpStep(config, profile.step_s, simulation.predict())


def sweep_caps(
    profile: StepProfile,
    network: AnyNetwork,
    num_ranks: int,
    config: DdpConfig,
    caps: Sequence[BucketCaps],
    on_step: Callable[[int], object] = lambda _: None,
) -> list[DdpStep]:
    """Return the step with each of these caps; those that make the same buckets are predicted once.

    on_step: is told of each step, that it is one more.
    """
    predictions: dict[tuple[tuple[int, ...], ...], DdpStep] = {}
    steps = []
    for caps_of_step in caps:
        step_config = replace(config, caps=caps_of_step)
        buckets = tuple(map(tuple, assign_buckets(profile, caps_of_step, config.phase)))
        if buckets not in predictions:
            predictions[buckets] = predict_ddp(profile, network, num_ranks, step_config)
        steps.append(predictions[buckets]._replace(config=step_config))
        on_step(1)
    return steps


def recommend(steps: Sequence[DdpStep]) -> DdpStep:
    """Return the shortest step; of equals the one with the fewest buckets: every call costs what no model sees."""
    least_s = min(step.step_s for step in steps)
    shortest = (step for step in steps if step.step_s <= least_s * (1 + _TIE))
    return min(shortest, key=lambda step: (step.num_buckets, step.config.caps.rest_bytes))
