"""`ProbeNoise`: whether the probes of a machine lie close enough together for predictions made from them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringsim.calibration.cases import MISFIT
from ringsim.calibration.from_probes import ProbeFit
from ringsim.calibration.probe_times import shift_s
from ringsim.measurements import Measurements, Probe, p10_p90
from ringsim.network import Cluster
from ringsim.units import format_size, format_time

# Noise alone must not move a prediction by more than the error at which we say that the model does not fit: beyond it
# nobody can tell a wrong model, or a better algorithm, from a busy moment of the machine.
TOO_WIDE = MISFIT


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """A predicted time; low_s to high_s holds 95 % of the predictions from probes drawn anew."""

    time_s: float
    low_s: float
    high_s: float

    @property
    def off_by(self) -> tuple[float, float]:
        """Return the smallest and the largest error, predicted over true less 1, if the true time is in between."""
        return self.time_s / self.high_s - 1, self.time_s / self.low_s - 1

    @property
    def largest_error(self) -> float:
        """Return the larger of both in size."""
        return max(abs(error) for error in self.off_by)


def with_interval(fit: ProbeFit, predict: Callable[[Cluster], float], num_draws: int | None = None) -> PredictedTime:
    """Return the prediction for the fitted network, with its interval over the networks of the bootstrap.

    num_draws: use only the first `num_draws` of these networks, for predictions that take long; None: all.
    """
    times = [predict(draw) for draw in fit.draws[:num_draws]]
    time_s = predict(fit.cluster)
    low_s, high_s = np.quantile(times or [time_s], [0.025, 0.975], method="nearest").tolist()
    return PredictedTime(time_s, min(low_s, time_s), max(high_s, time_s))


@dataclass(frozen=True, slots=True)
class ProbeNoise:
    """How far the probes of messages let a predicted round of a ring vary.

    probe: that of whose size the round varies most. predicted: that round, of which a ring is a series.
    """

    probe: Probe
    predicted: PredictedTime

    @property
    def too_wide(self) -> bool:
        """Return whether predictions may be off by more than `TOO_WIDE` through noise alone."""
        return self.predicted.largest_error > TOO_WIDE

    def line(self) -> str:
        """Return one line for the user: how far the probes lie apart, and what to expect of predictions."""
        low_s, high_s = p10_p90(self.probe.times_s)
        low, high = self.predicted.off_by
        return (
            f"this machine was busy: a message of {format_size(self.probe.size_bytes)} took {format_time(low_s)} to "
            f"{format_time(high_s)}; measure again; from the noise of the probes alone predictions may be off by "
            f"{low:+.0%} to {high:+.0%}"
        )


def probe_noise(measurements: Measurements, fit: ProbeFit) -> ProbeNoise | None:
    """Return how noisy the probes are to which `fit` was fitted; None where no messages were probed, as on one rank.

    Short messages show the noise of latency, long ones that of bandwidth: the worse of both counts.
    """
    probes = measurements.probes_of("shift", in_flight=1)
    if not probes or measurements.num_ranks == 1:
        return None
    num_ranks = measurements.num_ranks

    def noise_of(probe: Probe) -> ProbeNoise:
        return ProbeNoise(probe, with_interval(fit, lambda cluster: shift_s(cluster, num_ranks, probe.size_bytes)))

    return max(map(noise_of, (probes[0], probes[-1])), key=lambda noise: noise.predicted.largest_error)


def busy_line(measurements: Measurements, fit: ProbeFit) -> str:
    """Return the line of a noise that is too wide for predictions; "" if it is not."""
    noise = probe_noise(measurements, fit)
    return noise.line() if noise and noise.too_wide else ""
