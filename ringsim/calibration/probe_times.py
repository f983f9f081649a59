"""The times of probes: simulated rounds, lines through sizes, and calls after a computation."""

import math
from collections.abc import Sequence

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

    runtime: as in `simulate`. rested: after a pause instead of another round.
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


def cold_call_s(measurements: Measurements, subject: str = "", transport: str = "") -> float:
    """Return the additional time of a call after a walk through memory; 0 without such probes.

    A computation evicts the call's code and data from the caches, and its threads sleep.

    subject, transport: as in `ProbeKind`.
    """
    cold, warm = (
        measurements.probes_of("call", subject=subject, transport=transport, warmth=warmth)
        for warmth in ("cold", "warm")
    )
    return max(cold[0].median_s - warm[0].median_s, 0.0) if cold and warm else 0.0


def async_call_s(measurements: Measurements) -> float:
    """Return the additional time of our call after a walk through memory if its group's thread executes it.

    Shared memory has precedence. 0 without such probes.
    """
    for transport in ("shm", ""):
        cold, in_thread = (
            measurements.probes_of("call", warmth=warmth, transport=transport) for warmth in ("cold", "async")
        )
        if cold and in_thread:
            return max(in_thread[0].median_s - cold[0].median_s, 0.0)
    return 0.0


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
