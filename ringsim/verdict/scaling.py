"""`scale_ranks`: the same all_reduce, and the same training step, on more ranks of the calibrated network."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ringsim.calibration import PredictedTime, ProbeFit, with_interval
from ringsim.network import Cluster
from ringsim.training_step import StepProfile, predict_step
from ringsim.verdict.bound import all_reduce_s
from ringsim.verdict.choices import ddp_config, num_draws

FACTORS = (1, 2, 4, 8)
MOST_RANKS = 64  # of a prediction beyond twice the ranks, which would take longer than it is worth


@dataclass(frozen=True, slots=True)
class ScaledTime:
    """What to expect on a number of ranks; step_s: of a step with DDP, None without a profile."""

    num_ranks: int
    all_reduce_s: PredictedTime
    step_s: PredictedTime | None


def scale_ranks(
    fit: ProbeFit, num_ranks: int, size_bytes: int, profile: StepProfile | None, algorithm: str = "ring"
) -> list[ScaledTime]:
    """Returns the times on `num_ranks` and its multiples, as far as the network has room."""
    scaled = []
    for count in (factor * num_ranks for factor in FACTORS):
        if count > max(MOST_RANKS, 2 * num_ranks):
            break
        try:
            fit.cluster.topology(count)
        except ValueError:
            break
        all_reduce = _interval(fit, num_draws(count), partial(_all_reduce_s, algorithm, count, size_bytes))
        draws = num_draws(count, profile)
        step = _interval(fit, draws, partial(_step_s, profile, count)) if profile else None
        scaled.append(ScaledTime(count, all_reduce, step))
    return scaled


def _interval(fit: ProbeFit, draws: int, predict: Callable[[Cluster], float]) -> PredictedTime:
    return with_interval(fit, predict, draws)


def _all_reduce_s(algorithm: str, num_ranks: int, size_bytes: int, cluster: Cluster) -> float:
    return all_reduce_s(cluster, algorithm, num_ranks, size_bytes)


def _step_s(profile: StepProfile, num_ranks: int, cluster: Cluster) -> float:
    return predict_step(profile, cluster, num_ranks, ddp_config(cluster, num_ranks)).step_s
