"""`fit`: parameters from data that are too few for them, with what is known beforehand."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringsim.calibration.questions import Bools
from ringsim.network import Floats

_OUTLIER = 3.0  # in deviations: what is further off counts less and less (Student's t, as it falls off)
_MAX_STEPS = 300
_STEP = 1e-5  # of a logarithm, for derivatives
_CONVERGED = 1e-9
_GIVE_UP = 1e12
_HELD = 1e12  # the weight of a belief that is held to

Model = Callable[[Floats], Floats]  # logarithms of the parameters -> logarithms of the times


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """The distribution of the logarithms of parameters after the fit.

    mode, covariance: (num_parameters,) and as often its square, the most likely values and how far they may be off.
    residuals: (num_times,), logarithm of predicted over measured.
    influence: (num_times, num_parameters), by how much the logarithm of each time changes with each parameter.
    cost: the less, the likelier; 2 more are a likelihood that is less by a factor of e.
    """

    mode: Floats
    covariance: Floats
    residuals: Floats
    influence: Floats
    cost: float

    @property
    def deviation(self) -> Floats:
        """How far each may be off by itself, (num_parameters,)."""
        deviation: Floats = np.sqrt(np.diag(self.covariance))
        return deviation


def fit(
    model: Model, log_times: Floats, prior: Floats, prior_deviation: Floats, noise: float, held: Bools, start: Floats
) -> Posterior:
    """Return the mode of the posterior near `start` (Levenberg-Marquardt), and its width there (Laplace's).

    noise: of a logarithm of a time. Where the residuals are larger than that, the deviations grow with them.
    held: (num_parameters,), those that stay at the prior; their deviations say all the same how far they may be off.
    """
    mode, belief = np.where(held, prior, start), 1 / prior_deviation**2
    weight = np.where(held, _HELD, belief)

    def cost(at: Floats) -> float:
        misfit = _OUTLIER**2 * np.log1p(((model(at) - log_times) / noise / _OUTLIER) ** 2).sum()
        return float(misfit + (weight * (at - prior) ** 2).sum())

    damping, least = 1e-2, cost(mode)
    for _ in range(_MAX_STEPS):
        gradient, curvature, _ = _around(model, mode, log_times, noise)
        gradient, curvature = gradient + weight * (mode - prior), curvature + np.diag(weight)
        step, cost_there, damping = _descend(cost, mode, gradient, curvature, damping, least)
        if step is None:
            break
        mode, gain, least = mode - step, least - cost_there, cost_there
        if gain < _CONVERGED * max(least, 1.0):
            break
    _, curvature, influence = _around(model, mode, log_times, noise)
    residuals = model(mode) - log_times
    scale = max(1.0, _deviation_of(residuals) / noise) ** 2
    covariance = np.linalg.inv(curvature / scale + np.diag(belief))
    return Posterior(mode, np.asarray(covariance, np.float64), residuals, influence, least)


def _deviation_of(residuals: Floats) -> float:
    """Return the deviation of the normal distribution that has their median."""
    return float(np.median(np.abs(residuals))) / 0.6745


def _around(model: Model, at: Floats, log_times: Floats, noise: float) -> tuple[Floats, Floats, Floats]:
    """Return the gradient and curvature of half the misfit, and the derivatives of the times."""
    here = model(at)
    columns = [(model(at + _STEP * unit) - here) / _STEP for unit in np.eye(len(at))]
    influence = np.stack(columns, axis=1)
    off = (here - log_times) / noise
    weights = 1 / (1 + (off / _OUTLIER) ** 2) / noise
    return influence.T @ (weights * off), influence.T @ (influence * (weights / noise)[:, None]), influence


def _descend(
    cost: Callable[[Floats], float], at: Floats, gradient: Floats, curvature: Floats, damping: float, least: float
) -> tuple[Floats | None, float, float]:
    """Return a step that goes down, its cost, and the damping to begin with next time; no step if there is none."""
    while damping < _GIVE_UP:
        step: Floats = np.asarray(
            np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient), np.float64
        )
        cost_there = cost(at - step)
        if cost_there <= least:
            return step, cost_there, max(damping / 5, 1e-9)
        damping *= 4
    return None, least, damping
