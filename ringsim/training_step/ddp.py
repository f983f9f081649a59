"""A step of DistributedDataParallel as a trace, made from a profile of a step of one process.

1. Rank 0 broadcasts the buffers, if any; the forward pass follows.
2. In the backward pass the computing thread copies each ready gradient into its bucket and divides it, which delays
later gradients.
3. A bucket is launched when its last gradient is ready and all earlier buckets are launched.
4. After the backward pass the computing thread waits for the buckets in order, and copies each back.
5. The optimizer's step follows.

All ranks are assumed to be alike, and communication not to slow computing.

Source of the buckets: torch 2.13, `_BucketCapacityConfig` and `_build_reducer` in torch/nn/parallel/distributed.py,
`compute_bucket_assignment_by_size` and `Reducer::rebuild_buckets` in torch/csrc/distributed/c10d/reducer.cpp.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate
from typing import Any, NamedTuple

from ringsim.files import OpenRecord, finite_or_none, values
from ringsim.libraries import LIBRARIES, Library
from ringsim.network import Network
from ringsim.traces import Group, ProgramTrace, TraceCall, TracedStep, TraceEvent, TraceEventKind, element_bytes_of
from ringsim.training_step.prediction import Computing, StepSimulation, TracePrediction, efficiency
from ringsim.training_step.profile import Parameter, StepProfile
from ringsim.units import MAX_VALUE, ROUNDING

MIB = 2**20
DEFAULT_CAP_BYTES = 25 * MIB
DEFAULT_FIRST_CAP_BYTES = MIB  # a small first bucket, so that sending can begin early


@dataclass(frozen=True, slots=True)
class BucketCaps:
    """The sizes at which the first bucket of each dtype and device, and every other, is closed.

    Raises ValueError for a cap below 1 byte.
    """

    first_bytes: int = DEFAULT_FIRST_CAP_BYTES
    rest_bytes: int = DEFAULT_CAP_BYTES

    def __post_init__(self) -> None:
        if min(self.first_bytes, self.rest_bytes) < 1:
            raise ValueError(f"caps of {self.first_bytes} and {self.rest_bytes} bytes: must be at least 1 byte")

    @classmethod
    def from_mb(cls, bucket_cap_mb: float | None) -> "BucketCaps":
        """Return DDP's caps for `bucket_cap_mb`, in MiB; if given, all are equal."""
        if bucket_cap_mb is None:
            return cls()
        if not 0 < bucket_cap_mb <= MAX_VALUE / MIB:
            raise ValueError(f"bucket_cap_mb {bucket_cap_mb}: must be finite and greater than 0")
        return cls(int(bucket_cap_mb * MIB), int(bucket_cap_mb * MIB))

    def __str__(self) -> str:
        if self.first_bytes == self.rest_bytes:
            return f"{self.rest_bytes / MIB:g}"
        return f"{self.rest_bytes / MIB:g} ({self.first_bytes / MIB:g} first)"


class Phase(Enum):
    """The kind of training step, which determines DDP's buckets.

    FIRST: the first step that synchronises: one bucket for each dtype and device.
    REBUILT: later steps: in the order in which gradients became ready in the first.
    UNUSED: all steps with `find_unused_parameters`: in reverse order of registration.
    """

    FIRST = "first"
    REBUILT = "rebuilt"
    UNUSED = "unused"


def assign_buckets(profile: StepProfile, caps: BucketCaps, phase: Phase = Phase.REBUILT) -> list[list[int]]:
    """Return the indices of the parameters in each bucket, in DDP's launch order."""
    parameters = profile.parameters
    if phase is Phase.REBUILT:
        return fill_buckets(profile.order_of_readiness(), parameters, caps)
    initial = caps if phase is Phase.UNUSED else None
    buckets = fill_buckets(range(len(parameters)), parameters, initial)
    return sorted(buckets, key=min, reverse=True)


def fill_buckets(order: Iterable[int], parameters: Sequence[Parameter], caps: BucketCaps | None) -> list[list[int]]:
    """Append each parameter, whole, to the bucket of its dtype and device, and close a bucket that reaches its cap.

    Buckets still open at the end follow in reverse order of appearance: the reducer iterates over a hash table, whose
    order is the C++ library's. caps: None: no limit.
    """
    closed: list[list[int]] = []
    open_buckets: dict[Hashable, list[int]] = {}
    filled_bytes: dict[Hashable, int] = {}
    cap_bytes: dict[Hashable, int] = {}
    for index in order:
        parameter = parameters[index]
        key = parameter.dtype, parameter.device
        bucket = open_buckets.setdefault(key, [])
        bucket.append(index)
        filled_bytes[key] = filled_bytes.get(key, 0) + parameter.size_bytes
        if caps and filled_bytes[key] >= cap_bytes.get(key, caps.first_bytes):
            closed.append(bucket)
            open_buckets[key], filled_bytes[key], cap_bytes[key] = [], 0, caps.rest_bytes
    return closed + [bucket for bucket in reversed(open_buckets.values()) if bucket]


LATE_STEPS = 5  # are simulated where calls may be late, so that it is not chance which of one step's calls are


@dataclass(frozen=True, slots=True)
class DdpConfig:
    """The settings of DDP.

    backend: one of `LIBRARIES`. algorithm: of the all_reduces; None: the library's.
    workers: collectives that run at once; None: the library's number.
    wire_dtype: of the gradients that a comm hook sends; None: their own.
    bucket_view: `gradient_as_bucket_view=True`: nothing is copied back.
    overlap: False if communication needs the core that computes: it begins after the backward pass.
    copy_bytes_per_s: of gradients; None: the network's rate of additions, as memory bounds both.
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
    def library(self) -> Library:
        library = LIBRARIES[self.backend]
        if self.workers:
            library = replace(library, runtime=replace(library.runtime, num_workers=self.workers))
        return library.with_algorithm(self.algorithm) if self.algorithm else library


class PredictedDdpStep(OpenRecord, frozen=True, kw_only=True):
    """A step in the output of `ringsim ddp --json`; times are None if it never ends."""

    num_ranks: values.NumRanks
    first_cap_bytes: values.Positive = DEFAULT_FIRST_CAP_BYTES
    cap_bytes: values.Positive
    num_buckets: values.Whole = 0
    step_s: values.Seconds | None
    compute_s: values.Seconds | None = None
    slowed_s: values.Number | None = None
    issuing_s: values.Number | None = None
    exposed_s: values.Seconds | None
    communication_s: values.Seconds | None
    single_s: values.Seconds
    efficiency: values.Number | None = None
    not_chosen: str | None = None
    by_formula: str | None = None


class DdpStep(NamedTuple):
    """A predicted step of DDP. single_s: of one process that trains alone."""

    config: DdpConfig
    single_s: float
    prediction: TracePrediction

    @property
    def step_s(self) -> float:
        """Infinite if a bucket is never reduced."""
        return self.prediction.mean.step_s

    @property
    def exposed_s(self) -> float:
        return self.prediction.mean.exposed_s

    @property
    def efficiency(self) -> float:
        return efficiency(self.single_s, self.step_s)

    @property
    def num_buckets(self) -> int:
        """Number of all_reduces, including that of the map of used parameters with `find_unused_parameters`."""
        return sum(call.collective == "all_reduce" for call in self.prediction.timeline.step.calls)

    @property
    def record(self) -> PredictedDdpStep:
        times: dict[str, Any] = finite_or_none(self.prediction.mean._asdict())
        return PredictedDdpStep(
            num_ranks=self.prediction.trace.num_ranks,
            first_cap_bytes=self.config.caps.first_bytes,
            cap_bytes=self.config.caps.rest_bytes,
            num_buckets=self.num_buckets,
            **times,
            single_s=self.single_s,
            efficiency=self.efficiency,
            not_chosen=self.prediction.not_chosen or None,
            by_formula=self.prediction.by_formula or None,
        )


def trace_ddp(profile: StepProfile, num_ranks: int, config: DdpConfig, copy_bytes_per_s: float) -> ProgramTrace:
    """Return the step as a trace with one group of `num_ranks` ranks."""
    buckets = assign_buckets(profile, config.caps, config.phase)
    copy_s = [parameter.size_bytes / copy_bytes_per_s for parameter in profile.parameters]
    broadcasts = [TraceCall("broadcast", profile.buffer_bytes, "uint8", 0, False)] if profile.buffer_bytes else []
    reductions = [_all_reduce(profile, bucket, config.wire_dtype) for bucket in buckets]
    order = profile.order_of_readiness()
    place = {index: number for number, index in enumerate(order)}
    launched = list(accumulate((max(place[index] for index in bucket) for bucket in buckets), max))
    if config.phase is Phase.UNUSED:  # a number for each parameter, which says whether any rank has used it
        reductions.append(TraceCall("all_reduce", 4 * len(profile.parameters), "int32", 0, is_async=True))
        launched.append(launched[-1])
    if not config.overlap:
        launched = [len(order)] * len(launched)
    events = [_event(TraceEventKind.CALL, call) for call in range(len(broadcasts))]
    events.append(_compute(profile.forward_s))
    calls: list[list[TraceEvent]] = [[] for _ in range(len(order) + 1)]  # after each gradient, and the backward pass
    for call, number in enumerate(launched, len(broadcasts)):
        calls[number].append(_event(TraceEventKind.CALL, call))
    at_s = 0.0  # of the backward pass, without copying
    for index, after in zip(order, calls[:-1], strict=True):
        ready_s = profile.parameters[index].ready_s
        events += [_compute(ready_s - at_s + copy_s[index]), *after]
        at_s = ready_s
    events += [_compute(profile.backward_s - at_s), *calls[-1]]
    for waited in range(len(reductions)):
        events.append(_event(TraceEventKind.WAIT, len(broadcasts) + waited))
        if waited < len(buckets) and not config.bucket_view:
            events.append(_compute(sum(copy_s[index] for index in buckets[waited])))
    events.append(_compute(profile.optimizer_s))
    step = TracedStep(tuple(events), (*broadcasts, *reductions))
    group = Group(tuple(range(num_ranks)), config.backend)
    return ProgramTrace(num_ranks, 0, num_ranks, (group,), (step,), profile.provenance)


def _all_reduce(profile: StepProfile, bucket: Sequence[int], wire_dtype: str | None) -> TraceCall:
    parameters = [profile.parameters[index] for index in bucket]
    dtype = wire_dtype or parameters[0].dtype
    elements = sum(parameter.elements for parameter in parameters)
    return TraceCall("all_reduce", elements * element_bytes_of(dtype), dtype, 0, is_async=True)


def _compute(seconds: float) -> TraceEvent:
    return TraceEvent(TraceEventKind.COMPUTE, max(seconds, 0.0))


def _event(kind: TraceEventKind, call: int) -> TraceEvent:
    return TraceEvent(kind, call=call)


def predict_ddp(profile: StepProfile, network: Network, num_ranks: int, config: DdpConfig | None = None) -> DdpStep:
    """Return the step of `num_ranks` ranks with this profile; if calls may be late, the typical step.

    Raises ValueError for an unknown algorithm, and for too many ranks for the network.
    """
    config = config or DdpConfig()
    rate = config.copy_bytes_per_s or float(network.topology(num_ranks).processors.reduce_bytes_per_s.min())
    computing = Computing(on_gpu=LIBRARIES[config.backend].chooses, library=config.library)
    simulation = StepSimulation(trace_ddp(profile, num_ranks, config, rate), network, computing)
    simulation.choose_typical(LATE_STEPS)
    return DdpStep(config, profile.step_s, simulation.predict())


def sweep_caps(
    profile: StepProfile,
    network: Network,
    num_ranks: int,
    config: DdpConfig,
    caps: Sequence[BucketCaps],
    on_step: Callable[[int], object] = lambda _: None,
) -> list[DdpStep]:
    """Return the step for each of these caps; equal buckets are predicted once. on_step: called with 1 after each."""
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
    """Return the shortest step; among equals the one with the fewest buckets, as calls have unmodelled costs."""
    least_s = min(step.step_s for step in steps)
    shortest = (step for step in steps if step.step_s <= least_s * (1 + ROUNDING))
    return min(shortest, key=lambda step: (step.num_buckets, step.config.caps.rest_bytes))
