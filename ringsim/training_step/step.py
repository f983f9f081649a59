"""`predict_step`: how long a training step with DDP takes, and what of its communication cannot be hidden.

The step is written as a trace (see `ddp_trace`) and simulated like one that was recorded (see `simulate_step`). All
ranks are taken to be alike, and communication to take nothing from computing.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ringsim.calibration import Interval
from ringsim.files import finite_or_none
from ringsim.network import AnyNetwork
from ringsim.traces import TracedStep
from ringsim.training_step.buckets import BucketCaps, assign_buckets
from ringsim.training_step.ddp_trace import TORCH_DEFAULTS, DdpConfig, trace_ddp
from ringsim.training_step.group_calls import GroupCalls
from ringsim.training_step.profile import StepProfile
from ringsim.training_step.simulate_step import simulate_step
from ringsim.training_step.step_interval import step_interval
from ringsim.training_step.step_timeline import StepTimeline, covered_s, typical_of

LATE_STEPS = 5  # are simulated where calls may be late, so that it is not chance which of one step's calls are


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
    by_formula: as of `GroupCalls`. number: as of `simulate_step`, of the typical step.
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
    by_formula: str = ""
    number: int = 0

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
        return covered_s((bucket.begin_s, bucket.end_s) for bucket in self.buckets)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; a time that is infinite becomes None."""
        names = ("broadcast_s", "forward_s", "backward_s", "copy_s", "exposed_s", "optimizer_s", "single_s")
        times = {name: getattr(self, name) for name in (*names, "communication_s", "step_s")}
        buckets = [finite_or_none(asdict(bucket)) for bucket in self.buckets]
        caps = {"first_cap_bytes": self.config.caps.first_bytes, "cap_bytes": self.config.caps.rest_bytes}
        said = {"not_chosen": self.not_chosen or None, "by_formula": self.by_formula or None}
        rest = {"efficiency": self.efficiency, **said, "buckets": buckets}
        return {"num_ranks": self.num_ranks, **caps, **finite_or_none(times), **rest}


def predict_step(
    profile: StepProfile, network: AnyNetwork, num_ranks: int, config: DdpConfig = TORCH_DEFAULTS
) -> PredictedStep:
    """Return a step of `num_ranks` ranks that all follow the profile; if calls may be late, the typical step.

    Raises ValueError for an unknown algorithm, and for a network without room for `num_ranks` ranks.
    """
    buckets = assign_buckets(profile, config.caps, config.phase)
    copy_s = _copy_s(profile, network, num_ranks, config)
    traced, group = trace_ddp(profile, buckets, copy_s, config), GroupCalls(network, num_ranks, config.backend)
    group.require_priced()
    num_steps = LATE_STEPS if any(all(group.late(call)) for call in traced.calls) else 1
    timelines = [_timeline(traced, group, number) for number in range(num_steps)]
    typical = typical_of(timelines)
    timeline = timelines[typical]
    num_broadcasts = 1 if profile.buffer_bytes else 0
    exposed_s = timeline.exposed_by_call()
    start_s = sum(exposed_s[:num_broadcasts]) + profile.forward_s  # of the backward pass
    names = [tuple(bucket) for bucket in buckets] + [()] * (len(traced.calls) - num_broadcasts - len(buckets))
    calls = zip(names, traced.calls[num_broadcasts:], timeline.calls[num_broadcasts:], strict=True)
    return PredictedStep(
        num_ranks=num_ranks,
        config=config,
        buckets=tuple(
            BucketTimes(
                name,
                call.size_bytes,
                span.ready_s - start_s,
                span.begin_s - start_s,
                span.end_s - start_s,
                span.algorithm,
                span.protocol,
            )
            for name, call, span in calls
        ),
        broadcast_s=sum(exposed_s[:num_broadcasts]),
        forward_s=profile.forward_s,
        backward_s=profile.backward_s,
        copy_s=sum(copy_s) * (1 if config.bucket_view else 2),
        exposed_s=sum(exposed_s[num_broadcasts:]),
        optimizer_s=profile.optimizer_s,
        single_s=profile.step_s,
        not_chosen=group.why_not,
        by_formula=group.by_formula,
        number=typical,
    )


def ddp_interval(step: PredictedStep, profile: StepProfile, network: AnyNetwork) -> Interval | None:
    """Return the interval of a step that was predicted for `network` from a profile; see `step_interval`."""
    config = step.config
    buckets = assign_buckets(profile, config.caps, config.phase)
    traced = trace_ddp(profile, buckets, _copy_s(profile, network, step.num_ranks, config), config)
    group = GroupCalls(network, step.num_ranks, config.backend)
    return step_interval(
        network, traced.calls, [group], lambda scale: _timeline(traced, group, step.number, scale).step_s
    )


def _timeline(traced: TracedStep, group: GroupCalls, number: int, scale: float = 1.0) -> StepTimeline:
    """Return the timeline of a step of DDP. number: as of `simulate_step`. scale: of the computations."""
    return simulate_step(traced, [group], lambda event, _: scale * event.seconds, number=number)


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


def _copy_s(profile: StepProfile, network: AnyNetwork, num_ranks: int, config: DdpConfig) -> list[float]:
    """Return how long the slowest rank copies the gradient of each parameter."""
    bytes_per_s = config.copy_bytes_per_s
    if bytes_per_s is None:
        bytes_per_s = float(network.topology(num_ranks).processors.reduce_bytes_per_s.min())
    return [parameter.size_bytes / bytes_per_s for parameter in profile.parameters]
