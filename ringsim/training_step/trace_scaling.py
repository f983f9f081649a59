"""`TraceScaling`: the step of a program on several numbers of ranks, recorded once for each of them."""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ringsim.files import finite_or_none
from ringsim.network import AnyNetwork
from ringsim.traces import ProgramTrace
from ringsim.training_step.trace_prediction import AS_RECORDED, Computing, TracePrediction, predict_trace
from ringsim.units import plural

_SAME_WORK = 0.01  # share by which the FLOPs of a rank may differ, as those of uneven shares do


class ScaledStep(NamedTuple):
    """A step on `num_ranks` ranks.

    efficiency: time of the step on the fewest ranks, divided by the time of this one; 1 where no time passes, and 0
    for a step that never ends.
    total_tokens_per_s: on all ranks; None if it is not known how many tokens a step has.
    fused_s: as of `TracePrediction`.
    """

    num_ranks: int
    step_s: float
    compute_s: float
    exposed_s: float
    communication_s: float
    efficiency: float
    total_tokens_per_s: float | None
    fused_s: float | None


@dataclass(frozen=True, slots=True)
class TraceScaling:
    """Predictions, the fewest ranks first. tokens: on which each rank trains in a step, if that is known."""

    predictions: tuple[TracePrediction, ...]
    tokens: int | None = None

    @property
    def steps(self) -> list[ScaledStep]:
        """Return the typical step on each number of ranks."""
        first_s = self.predictions[0].mean.step_s
        return [self._scaled(prediction, first_s) for prediction in self.predictions]

    def _scaled(self, prediction: TracePrediction, first_s: float) -> ScaledStep:
        num_ranks, mean = prediction.trace.num_ranks, prediction.mean
        step_s = mean.step_s
        return ScaledStep(
            num_ranks,
            step_s,
            mean.compute_s,
            mean.exposed_s,
            mean.communication_s,
            0.0 if math.isinf(step_s) else first_s / step_s if step_s else 1.0,
            num_ranks * self.tokens / step_s if self.tokens and step_s else None,
            prediction.fused_s,
        )

    @property
    def changed_work(self) -> str:
        """Return what to know if ranks compute more or less on other numbers of ranks; "" if they do not."""
        first, last = self.predictions[0], self.predictions[-1]
        flops = first.timeline.step.flops, last.timeline.step.flops
        if abs(flops[0] - flops[1]) <= _SAME_WORK * max(flops):
            return ""
        work = " and ".join(
            f"{count / 1e12:.4g} TFLOP on {plural(prediction.trace.num_ranks, 'rank')}"
            for count, prediction in zip(flops, (first, last), strict=True)
        )
        return f"a rank computes {work}: the work of a rank changes, and so the efficiency is not that of weak scaling"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; a time that is infinite becomes None."""
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


def predict_scaling(
    traces: Iterable[ProgramTrace],
    network: AnyNetwork,
    computing: Computing = AS_RECORDED,
    algorithm: str = "",
    tokens: int | None = None,
    on_step: Callable[[int], object] = lambda _: None,
    trusted: Collection[str] = (),
) -> TraceScaling:
    """Predict the step of each trace; see `predict_trace`, also for the errors.

    on_step: is told of each prediction, that it is one more.
    """
    predictions = []
    for trace in sorted(traces, key=lambda trace: trace.num_ranks):
        predictions.append(predict_trace(trace, network, computing, algorithm, trusted))
        on_step(1)
    return TraceScaling(tuple(predictions), tokens)
