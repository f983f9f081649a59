"""`predict_step`: how long a training step with DDP takes, and what of its communication cannot be hidden.

On every rank one thread computes, and workers communicate:

1. The buffers are broadcast, if there are any; then comes the forward pass.
2. The backward pass. Each gradient is copied into its bucket, and divided, by the computing thread as soon as it is
   ready, which delays all that come after it.
3. A bucket is ready with its last gradient, and launched when those before it are. The first worker to be free takes
   it.
4. After the backward pass the computing thread waits for one bucket after the other, and copies each back.
5. The optimizer's step.

All ranks are taken to be alike, and communication to take nothing from computing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ringsim.files import finite_or_none
from ringsim.native import BACKENDS, Backend
from ringsim.network import AnyNetwork
from ringsim.registry import build
from ringsim.schedule import Collective
from ringsim.simulation import Span, predict_call, time_queue
from ringsim.training_step.all_reduces import AllReduces, BucketCall
from ringsim.training_step.buckets import BucketCaps, Phase, assign_buckets
from ringsim.training_step.profile import ELEMENT_BYTES, StepProfile

USED_MAP_ELEMENT_BYTES = 4  # with find_unused_parameters one int32 for each parameter is reduced after the buckets


@dataclass(frozen=True, slots=True)
class DdpConfig:
    """The settings of DDP.

    wire_dtype: in which a comm hook sends gradients; None: in their own.
    bucket_view: with `gradient_as_bucket_view=True` nothing is copied back.
    overlap: False where communicating needs the core that computes: then it begins after the backward pass.
    copy_bytes_per_s: at which a gradient is copied; None: the rate at which the network says that a rank adds, as both
    are bound by memory.
    """

    caps: BucketCaps = field(default_factory=BucketCaps)
    backend: Backend = BACKENDS["gloo"]
    phase: Phase = Phase.REBUILT
    wire_dtype: str | None = None
    bucket_view: bool = False
    overlap: bool = True
    copy_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class BucketTimes:
    """One bucket, or the map of used parameters, its times in seconds from the start of the backward pass.

    parameters: their numbers; none for that map. size_bytes: that travel.
    algorithm, protocol: by which they do; the protocol is None where the backend's library is not known to choose one.
    """

    parameters: tuple[int, ...]
    size_bytes: int
    ready_s: float
    begin_s: float
    end_s: float
    algorithm: str
    protocol: str | None

    @property
    def reduced_by(self) -> str:
        """The algorithm, and the protocol if it is known."""
        return self.algorithm if self.protocol is None else f"{self.algorithm} {self.protocol}"


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """A predicted step of DDP; its parts add up to `step_s`.

    copy_s: copying gradients into the buckets and back.
    exposed_s: during which the computing thread waits for communication after the backward pass.
    single_s: of one process that trains alone.
    not_chosen: why the algorithm is not what the backend's library would take; "" if it is, or if it has one only.
    """

    num_ranks: int
    config: DdpConfig
    buckets: tuple[BucketTimes, ...]
    broadcast_s: float
    forward_s: float
    backward_s: float
    copy_s: float
    exposed_s: float
    optimizer_s: float
    single_s: float
    not_chosen: str = ""

    @property
    def step_s(self) -> float:
        """Infinite if something fails and a bucket is never reduced."""
        parts = (self.broadcast_s, self.forward_s, self.backward_s, self.copy_s, self.exposed_s, self.optimizer_s)
        return sum(parts)

    @property
    def efficiency(self) -> float:
        """The part of the speed of one process alone that each rank keeps; 1 where no time passes."""
        return self.single_s / self.step_s if self.step_s > 0 else 1.0

    @property
    def algorithms(self) -> list[str]:
        """The algorithms of the buckets, with the protocol if it is known, in the order of the first buckets."""
        return list(dict.fromkeys(bucket.reduced_by for bucket in self.buckets))

    @property
    def communication_s(self) -> float:
        """During which at least one bucket is being all-reduced."""
        total, until_s = 0.0, -math.inf
        for bucket in self.buckets:  # in the order in which they begin
            total += max(0.0, bucket.end_s - max(bucket.begin_s, until_s))
            until_s = max(until_s, bucket.end_s)
        return total

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; a time that is infinite becomes None."""
        names = ("broadcast_s", "forward_s", "backward_s", "copy_s", "exposed_s", "optimizer_s", "single_s")
        times = {name: getattr(self, name) for name in (*names, "communication_s", "step_s")}
        buckets = [finite_or_none(asdict(bucket)) for bucket in self.buckets]
        caps = {"first_cap_bytes": self.config.caps.first_bytes, "cap_bytes": self.config.caps.rest_bytes}
        rest = {"efficiency": self.efficiency, "not_chosen": self.not_chosen or None, "buckets": buckets}
        return {"num_ranks": self.num_ranks, **caps, **finite_or_none(times), **rest}


def predict_step(
    profile: StepProfile, network: AnyNetwork, num_ranks: int, config: DdpConfig = DdpConfig()
) -> PredictedStep:
    """Return a step of `num_ranks` ranks that each do what the profile says.

    Raises ValueError for an algorithm that there is not, and a network without room for so many ranks.
    """
    buckets = assign_buckets(profile, config.caps, config.phase)
    copy_s = _copy_times(profile, _copy_rate(network, num_ranks, config))
    ready_s, backward_end_s = _ready_times(profile, buckets, copy_s, config)
    reductions = AllReduces(network, num_ranks, config.backend)
    calls = _calls(profile, buckets, ready_s, config, reductions)
    spans = time_queue([call for *_, call in calls], network, config.backend.runtime)
    back_s = [0.0 if config.bucket_view else sum(copy_s[index] for index in bucket) for bucket in buckets]
    names = [tuple(bucket) for bucket in buckets] + [()] * (len(calls) - len(buckets))
    return PredictedStep(
        num_ranks=num_ranks,
        config=config,
        buckets=tuple(
            BucketTimes(name, size_bytes, call.ready_s, *span, call.schedule.algorithm, protocol)
            for name, (size_bytes, protocol, call), span in zip(names, calls, spans, strict=True)
        ),
        broadcast_s=_broadcast_s(profile, network, num_ranks, config),
        forward_s=profile.forward_s,
        backward_s=profile.backward_s,
        copy_s=sum(copy_s) + sum(back_s),
        exposed_s=_waiting_s(backward_end_s, spans, back_s),
        optimizer_s=profile.optimizer_s,
        single_s=profile.step_s,
        not_chosen=reductions.why_not,
    )


def scale(
    profile: StepProfile,
    network: AnyNetwork,
    ranks: Sequence[int],
    config: DdpConfig,
    on_step: Callable[[int], object] = lambda _: None,
) -> list[PredictedStep]:
    """Return the step on each number of ranks, each rank doing the same work (weak scaling).

    on_step: is told of each step, that it is one more.
    """
    steps = {}
    for num_ranks in sorted(ranks, reverse=True):  # what there is no memory for is refused before the rest is simulated
        steps[num_ranks] = predict_step(profile, network, num_ranks, config)
        on_step(1)
    return [steps[num_ranks] for num_ranks in ranks]


def sweep_caps(
    profile: StepProfile,
    network: AnyNetwork,
    num_ranks: int,
    config: DdpConfig,
    caps: Sequence[BucketCaps],
    on_step: Callable[[int], object] = lambda _: None,
) -> list[PredictedStep]:
    """Return the step with each of these caps; those that make the same buckets are predicted once."""
    predictions: dict[tuple[tuple[int, ...], ...], PredictedStep] = {}
    steps = []
    for caps_of_step in caps:
        step_config = replace(config, caps=caps_of_step)
        buckets = tuple(tuple(bucket) for bucket in assign_buckets(profile, caps_of_step, config.phase))
        if buckets not in predictions:
            predictions[buckets] = predict_step(profile, network, num_ranks, step_config)
        steps.append(replace(predictions[buckets], config=step_config))
        on_step(1)
    return steps


def _copy_rate(network: AnyNetwork, num_ranks: int, config: DdpConfig) -> float:
    """Return the rate at which the slowest rank copies, in bytes per second."""
    if config.copy_bytes_per_s is not None:
        return config.copy_bytes_per_s
    return float(network.topology(num_ranks).processors.reduce_bytes_per_s.min())


def _copy_times(profile: StepProfile, bytes_per_s: float) -> list[float]:
    return [parameter.size_bytes / bytes_per_s for parameter in profile.parameters]


def _ready_times(
    profile: StepProfile, buckets: Sequence[Sequence[int]], copy_s: Sequence[float], config: DdpConfig
) -> tuple[list[float], float]:
    """Return when each bucket is launched, and when the backward pass ends, both with the copying into buckets."""
    copied_s = [0.0] * len(copy_s)
    delay_s = 0.0
    for index in profile.order_of_readiness():
        delay_s += copy_s[index]
        copied_s[index] = profile.parameters[index].ready_s + delay_s
    end_s = profile.backward_s + delay_s
    launched_s: list[float] = []
    for bucket in buckets:
        last_s = max(copied_s[index] for index in bucket) if config.overlap else end_s
        launched_s.append(max(last_s, launched_s[-1] if launched_s else 0.0))
    return launched_s, end_s


def _calls(
    profile: StepProfile,
    buckets: Sequence[Sequence[int]],
    ready_s: Sequence[float],
    config: DdpConfig,
    reductions: AllReduces,
) -> list[BucketCall]:
    calls: list[BucketCall] = []
    last_s = -math.inf
    for bucket, at_s in zip(buckets, ready_s, strict=True):
        element_bytes = ELEMENT_BYTES[config.wire_dtype or profile.parameters[bucket[0]].dtype]
        size_bytes = sum(profile.parameters[index].elements for index in bucket) * element_bytes
        calls.append(reductions.call(size_bytes, element_bytes, at_s, cold=at_s > last_s))
        last_s = at_s
    if config.phase is Phase.UNUSED:
        size_bytes = USED_MAP_ELEMENT_BYTES * len(profile.parameters)
        calls.append(reductions.call(size_bytes, USED_MAP_ELEMENT_BYTES, ready_s[-1]))
    return calls


def _broadcast_s(profile: StepProfile, network: AnyNetwork, num_ranks: int, config: DdpConfig) -> float:
    if not profile.buffer_bytes:
        return 0.0
    schedule = build(Collective.BROADCAST, config.backend.broadcast, num_ranks)
    return predict_call(schedule, network, profile.buffer_bytes, config.backend.runtime, cold=True)


def _waiting_s(now_s: float, spans: Sequence[Span], back_s: Sequence[float]) -> float:
    """Return how long the computing thread waits: for one bucket after another, copying each back."""
    waiting_s = 0.0
    for span, copying_s in zip(spans, [*back_s, *[0.0] * (len(spans) - len(back_s))], strict=True):
        waited_s = max(0.0, span.end_s - now_s)
        waiting_s += waited_s
        now_s += waited_s + copying_s
    return waiting_s
