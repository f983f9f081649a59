"""`Prediction`: what `ringsim ddp` found out, and the choice among bucket caps; pictures and tables read only this."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringsim.calibration import Interval, interval_fields
from ringsim.training_step.profile import StepProfile
from ringsim.training_step.step import PredictedStep
from ringsim.units import format_size, format_time

_TIE = 1e-9  # two caps that make the same buckets differ by rounding alone


@dataclass(frozen=True, slots=True)
class Prediction:
    """The step itself, one for each cap of a sweep, and one for each number of ranks.

    step: with the cap that is asked for, or recommended. default: with torch's own caps.
    network: as its `as_dict` has it. interval: of the step, as of `ddp_interval`; None if it is not known.
    """

    profile: StepProfile
    network: dict[str, Any]
    step: PredictedStep
    default: PredictedStep
    sweep: tuple[PredictedStep, ...] = ()
    scaling: tuple[PredictedStep, ...] = ()
    interval: Interval | None = None

    def __repr__(self) -> str:
        step = self.step
        return f"Prediction({step.num_ranks} ranks, step {format_time(step.step_s)}, efficiency {step.efficiency:.1%})"

    @property
    def speedup(self) -> float:
        """The factor by which it is faster than with torch's own caps; 1 where no time passes."""
        return self.default.step_s / self.step.step_s if self.step.step_s > 0 else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON. In a sweep the recommended cap is that of `step`."""
        return {
            "network": self.network,
            "profile": {**self.profile.as_dict(), "step_s": self.profile.step_s},
            "step": {**self.step.as_dict(), **interval_fields(self.interval)},
            "default_step_s": self.default.as_dict()["step_s"],
            "sweep": [_without_buckets(step) for step in self.sweep],
            "scaling": [_without_buckets(step) for step in self.scaling],
        }


def recommend(steps: Sequence[PredictedStep]) -> PredictedStep:
    """Return the shortest step; of equals the one with the fewest buckets: every call costs what no model sees."""
    least_s = min(step.step_s for step in steps)
    return min(
        (step for step in steps if step.step_s <= least_s * (1 + _TIE)),
        key=lambda step: (len(step.buckets), step.config.caps.rest_bytes),
    )


def reason(steps: Sequence[PredictedStep], best: PredictedStep) -> str:
    """Say in one line what the smallest and the largest cap of a sweep cost more than the best."""
    by_cap = sorted(steps, key=lambda step: step.config.caps.rest_bytes)
    parts = []
    if by_cap[0].config.caps != best.config.caps:
        parts.append(f"{by_cap[0].config.caps} makes {_buckets(by_cap[0])}: {_longer(by_cap[0], best)}")
    if by_cap[-1].config.caps != best.config.caps:
        last = format_size(by_cap[-1].buckets[-1].size_bytes)
        parts.append(f"{by_cap[-1].config.caps} makes {_buckets(by_cap[-1])}, the last of {last}: ")
        parts[-1] += _longer(by_cap[-1], best)
    return "; ".join(parts)


def _buckets(step: PredictedStep) -> str:
    return "1 bucket" if len(step.buckets) == 1 else f"{len(step.buckets)} buckets"


def _longer(step: PredictedStep, best: PredictedStep) -> str:
    """Return how much longer a step takes, in words; both must end."""
    if not (0 < best.step_s < math.inf and step.step_s < math.inf):
        return "no comparison"
    return f"a step {100 * (step.step_s / best.step_s - 1):.1f} % longer"


def _without_buckets(step: PredictedStep) -> dict[str, Any]:
    return {**step.as_dict(), "buckets": len(step.buckets), "algorithms": step.algorithms}
