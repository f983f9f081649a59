"""The times of probes: simulated rounds, lines through sizes, and calls after a computation."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ringsim.algorithms import ring_all_gather
from ringsim.measurements import Measurements, Probe
from ringsim.network import Ints, Network
from ringsim.schedule import Collective, Schedule
from ringsim.simulation import IN_ORDER, Runtime, predict_repeated, predict_time


def shift_s(
    network: Network, num_ranks: int, size_bytes: int, runtime: Runtime = IN_ORDER, *, rested: bool = False
) -> float:
    """Return the simulated seconds of a round in which every rank sends `size_bytes` to its right neighbour.

    rested: after a pause instead of another round.
    """
    step = ring_all_gather(num_ranks).steps[0]
    predict = predict_time if rested else predict_repeated
    return predict(_round(num_ranks, step.src, step.dst), network, num_ranks * size_bytes, runtime=runtime)


def exchange_s(network: Network, num_ranks: int, num_pairs: int, size_bytes: int) -> float:
    """Return the simulated seconds of a round in which neighbours exchange `size_bytes`."""
    src = np.arange(2 * num_pairs)
    exchange = _round(num_ranks, src, src ^ 1)
    return predict_repeated(exchange, network, num_ranks * size_bytes, runtime=IN_ORDER)


def _round(num_ranks: int, src: Ints, dst: Ints) -> Schedule:
    """Return a schedule of one step in which each rank sends its own chunk."""
    columns = [(src, dst, src, np.zeros(len(src), bool))]
    return Schedule.from_columns(Collective.ALL_GATHER, "round", num_ranks, num_ranks, columns)


def longer_s(measurements: Measurements, warmth: str, than: str, **kind: Any) -> float | None:
    """Return the additional time of a call of one warmth compared with another; None without probes.

    kind: as in `ProbeKind`.
    """
    long, short = (measurements.probes_of("call", warmth=one, **kind) for one in (warmth, than))
    return max(long[0].median_s - short[0].median_s, 0.0) if long and short else None


def fit_line(probes: Sequence[Probe]) -> tuple[float, float]:
    """Return the seconds at size zero and the seconds per byte, both at least 0."""
    sizes = np.array([probe.size_bytes for probe in probes], dtype=float)
    times = np.array([probe.median_s for probe in probes])
    design = np.stack([1 / times, sizes / times], axis=1)
    (intercept, slope), *_ = np.linalg.lstsq(design, np.ones(len(times)))
    if intercept < 0 or len(times) == 1:
        intercept, slope = 0.0, float(np.median(times / sizes))
    if slope < 0:
        intercept, slope = float(np.median(times)), 0.0
    return float(intercept), float(slope)


def rate(s_per_byte: float) -> float:
    """Return bytes per second; infinite if times do not grow with the size."""
    return 1 / s_per_byte if s_per_byte > 0 else math.inf
