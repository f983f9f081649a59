"""Percentiles: `p10_p90` of repeated timings, `p95` of errors."""

from collections.abc import Sequence

import numpy as np


def p10_p90(times_s: Sequence[float]) -> tuple[float, float]:
    """Returns the 10th and the 90th percentile, between which lie four runs of five, as np.percentile interpolates.

    Raises ValueError if there is no time at all.
    """
    if not len(times_s):
        raise ValueError("no times: at least one is needed")
    low, high = np.percentile(times_s, (10, 90)).tolist()
    return low, high


def p95(errors: Sequence[float]) -> float:
    """Returns the 95th percentile: the smallest of the errors that at least 95 % of them do not exceed.

    It is not interpolated, so of fewer than 20 errors it is the largest: a table that says "95 % below" must not show
    less. Raises ValueError if there is no error at all.
    """
    if not len(errors):
        raise ValueError("no errors: at least one is needed")
    return float(np.percentile(errors, 95, method="inverted_cdf"))
