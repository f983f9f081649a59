"""`trace_ddp`: a step of DistributedDataParallel as a trace, made from a profile of a step of one process.

1. The buffers are broadcast, if there are any; then comes the forward pass.
2. The backward pass. Each gradient is copied into its bucket, and divided, by the computing thread as soon as it is
   ready, which delays all that come after it.
3. A bucket is ready with its last gradient, and launched when those before it are.
4. After the backward pass the computing thread waits for one bucket after the other, and copies each back.
5. The optimizer's step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ringsim.native import BACKENDS, Backend
from ringsim.traces import Call, TracedStep, TraceEvent, TraceEventKind
from ringsim.training_step.buckets import BucketCaps, Phase
from ringsim.training_step.group_calls import element_bytes_of
from ringsim.training_step.profile import StepProfile


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


TORCH_DEFAULTS = DdpConfig()


def trace_ddp(
    profile: StepProfile, buckets: Sequence[Sequence[int]], copy_s: Sequence[float], config: DdpConfig
) -> TracedStep:
    """Return the step, all its calls in one group.

    buckets: the numbers of the parameters of each, in the order in which they are launched. copy_s: of each parameter.
    """
    step = _DdpStep(profile, buckets, config)
    if profile.buffer_bytes:
        step.call("broadcast", profile.buffer_bytes, "uint8", is_async=False)
    step.compute(profile.forward_s)
    missing = [set(bucket) for bucket in buckets]
    at_s = 0.0  # of the backward pass, without copying
    for index in profile.order_of_readiness():
        ready_s = profile.parameters[index].ready_s
        step.compute(ready_s - at_s + copy_s[index])
        at_s = ready_s
        for parameters in missing:
            parameters.discard(index)
        while config.overlap and step.num_launched < len(buckets) and not missing[step.num_launched]:
            step.launch()
    step.compute(profile.backward_s - at_s)
    while step.num_launched < len(buckets):
        step.launch()
    for number, call in enumerate(step.reductions):
        step.events.append(TraceEvent(TraceEventKind.WAIT, call=call))
        if number < len(buckets) and not config.bucket_view:
            step.compute(sum(copy_s[index] for index in buckets[number]))
    step.compute(profile.optimizer_s)
    return TracedStep(tuple(step.events), tuple(step.calls))


class _DdpStep:
    """The events and calls of a step in the making. reductions: the indices of the calls that are waited for."""

    def __init__(self, profile: StepProfile, buckets: Sequence[Sequence[int]], config: DdpConfig) -> None:
        self._profile, self._buckets, self._config = profile, buckets, config
        self.events: list[TraceEvent] = []
        self.calls: list[Call] = []
        self.reductions: list[int] = []
        self.num_launched = 0

    def compute(self, seconds: float) -> None:
        self.events.append(TraceEvent(TraceEventKind.COMPUTE, max(seconds, 0.0)))

    def call(self, collective: str, size_bytes: int, dtype: str, is_async: bool) -> None:
        self.events.append(TraceEvent(TraceEventKind.CALL, call=len(self.calls)))
        self.calls.append(Call(collective, size_bytes, dtype, 0, is_async))

    def launch(self) -> None:
        """All-reduce the next bucket, and after the last one, with find_unused_parameters, a number a parameter."""
        parameters = [self._profile.parameters[index] for index in self._buckets[self.num_launched]]
        dtype = self._config.wire_dtype or parameters[0].dtype
        self._reduce(sum(parameter.elements for parameter in parameters), dtype)
        self.num_launched += 1
        if self.num_launched == len(self._buckets) and self._config.phase is Phase.UNUSED:
            self._reduce(len(self._profile.parameters), "int32")

    def _reduce(self, elements: int, dtype: str) -> None:
        self.reductions.append(len(self.calls))
        self.call("all_reduce", elements * element_bytes_of(dtype), dtype, is_async=True)
