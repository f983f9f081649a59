"""How far apart repeated timings lie."""

import statistics
from collections.abc import Sequence


def tenths(times_s: Sequence[float]) -> tuple[float, float]:
    """The 10th and the 90th percentile: between them lie four runs of five.

    Raises ValueError if there is no time at all.
    """
    if not times_s:
        raise ValueError("no times: at least one is needed")
    if len(times_s) == 1:
        return times_s[0], times_s[0]
    cuts = statistics.quantiles(times_s, n=10, method="inclusive")
    return cuts[0], cuts[-1]
