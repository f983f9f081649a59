"""`calibrate_uniform`: from point-to-point and reduction probes to a `Network`. No collective is looked at."""

import math
from collections.abc import Sequence

import numpy as np

from ringsim.measurements import Measurements, Probe
from ringsim.network import Network


def calibrate_uniform(measurements: Measurements) -> Network:
    """Return the network on which the probes would take the times that they took.

    One message in a shift takes alpha + m/B, with alpha = latency + overhead, and one addition m/R: each a
    line, fitted over the sizes to the medians, every size weighing the same (least squares of relative
    errors). Each further message in flight at the smallest size costs one overhead more.

    With one rank there is nothing to send, and the network is free. Raises ValueError when probes are missing.
    """
    if measurements.num_ranks == 1:
        return Network(latency_s=0.0, bandwidth_bytes_per_s=math.inf)
    single = _need(measurements.probes_of("shift", in_flight=1), "shift probes with one message in flight", 2)
    bursts = _need(
        [p for p in measurements.probes_of("shift") if p.in_flight > 1], "shift probes with several in flight", 1
    )
    reductions = _need(measurements.probes_of("reduce"), "reduce probes", 1)
    alpha_s, s_per_byte = fit_line(single)
    same_size = [probe for probe in single if probe.size_bytes == bursts[0].size_bytes]
    (smallest,) = _need(same_size, f"shift probes of one message of {bursts[0].size_bytes} bytes", 1)[:1]
    extra_s = (bursts[0].median_s - smallest.median_s) / (bursts[0].in_flight - 1)
    overhead_s = min(max(extra_s, 0.0), alpha_s)
    _, reduce_s_per_byte = fit_line(reductions)
    return Network(
        latency_s=alpha_s - overhead_s,
        bandwidth_bytes_per_s=rate(s_per_byte),
        reduce_bytes_per_s=rate(reduce_s_per_byte),
        gap_s=overhead_s,
    )


def _need(probes: list[Probe], things: str, least: int) -> list[Probe]:
    if len({probe.size_bytes for probe in probes}) < least:
        raise ValueError(f"the measurements have too few {things}: {least} sizes are needed; run the probe again")
    return probes


def fit_line(probes: Sequence[Probe]) -> tuple[float, float]:
    """Return the seconds at size zero and the seconds per byte, neither of them negative."""
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
    """Return bytes per second, infinite where the times do not grow with the size as far as the probes can tell."""
    return 1 / s_per_byte if s_per_byte > 0 else math.inf
