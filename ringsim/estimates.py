"""`Estimate`: a predicted or fitted value with an interval.

A predicted time has the interval of probability `INSIDE`: a planner needs a range that is narrow enough to decide by. A
fitted value, and a choice such as an algorithm, has `SURE`: it is presented as a fact, and should seldom be wrong.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

INSIDE, INSIDE_DEVIATIONS = 0.8, 1.2816  # and the standard deviations on either side, of a normal distribution
SURE, SURE_DEVIATIONS, SURE_QUANTILES = 0.95, 1.96, (0.025, 0.975)
FARTHEST = 3.0  # of a logarithm: largest deviation in draws of an unknown value
NOT_BOUNDED = "not bounded"  # in tables, in place of ends that say nothing


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and the ends of its interval, whose probability the function that makes it defines.

    >>> Estimate(2.0, 1.0, 4.0).map(lambda value: value / 2)
    Estimate(value=1.0, low=0.5, high=2.0)
    """

    value: float
    low: float
    high: float

    def map(self, change: Callable[[float], float]) -> "Estimate":
        """Return the estimate with an increasing function applied to value and ends."""
        return Estimate(change(self.value), change(self.low), change(self.high))

    @property
    def ends(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def is_bounded(self) -> bool:
        """Whether the interval is narrower than that of an unknown value.

        >>> Estimate(1.0, 1.0, 100.0).is_bounded, Estimate(1.0, 1.0, 1000.0).is_bounded
        (True, False)
        """
        return self.high < self.low * math.exp(2 * FARTHEST)

    @property
    def off_by(self) -> tuple[float, float]:
        """The smallest and the largest error (estimated over true, less 1) within the interval."""
        return self.value / self.high - 1, self.value / self.low - 1


def ends_of(estimate: Estimate | None) -> dict[str, float | None]:
    """Return the ends of a predicted time for JSON; null if unknown."""
    low_s, high_s = estimate.ends if estimate else (None, None)
    return {"predicted_low_s": low_s, "predicted_high_s": high_s}
