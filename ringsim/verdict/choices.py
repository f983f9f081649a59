"""The best algorithm for each size, bucket cap of DDP and strategy; and the cost of more ranks.

A choice counts as sure if it is better on 95 % of the networks that the bootstrap of the calibration drew, and by more
than predictions scatter about what was measured; one that is not is no better, as far as the data can tell, than what
one would use anyway.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringsim.analysis import BASELINE, MAX_TRANSFERS
from ringsim.calibration import PredictedTime, ProbeFit, with_interval
from ringsim.native import LocalWork, local_s
from ringsim.network import Cluster
from ringsim.registry import ALGORITHMS, build
from ringsim.schedule import Collective
from ringsim.training_step import BucketCaps, DdpConfig, DdpStep, StepProfile, predict_ddp, recommend, sweep_caps
from ringsim.verdict.bound import all_reduce_s
from ringsim.verdict.records import JobReport, StrategyResult

# Of the bootstrap: 40, of which 95 % are 38. Fewer where one prediction takes long, so that a page takes seconds.
_MOST_DRAWS, _FEWEST_DRAWS = 40, 5
_AFFORDED_PAIRS = 4000  # of ranks, which decide what an all_reduce takes to simulate
_AFFORDED_PARAMETERS = 20_000  # likewise of a model, for a step
CAPS_MB = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


@dataclass(frozen=True, slots=True)
class AlgorithmChoice:
    """The fastest algorithm for an all_reduce of one size.

    times_s: predicted, of a call with each algorithm that is soon simulated, the fastest first. gain: how many times as
    fast as the ring it is, with its interval. least_gain: what counts as a gain at all.
    """

    size_bytes: int
    times_s: dict[str, float]
    gain: PredictedTime
    least_gain: float = 1.0

    @property
    def fastest(self) -> str:
        """Its name."""
        return next(iter(self.times_s))

    @property
    def chosen(self) -> str:
        """The fastest if that is sure, else the ring."""
        return self.fastest if self.gain.low_s > self.least_gain else BASELINE


def choose_algorithms(
    fit: ProbeFit, num_ranks: int, sizes_bytes: Sequence[int], least_gain: float = 1.0
) -> list[AlgorithmChoice]:
    """Return a choice for each size. Raises ValueError where the network has no room for the ranks."""
    names = [name for collective, name in ALGORITHMS if collective is Collective.ALL_REDUCE]
    names = [name for name in names if build(Collective.ALL_REDUCE, name, num_ranks).num_transfers <= MAX_TRANSFERS]
    choices = []
    for size in sorted(set(sizes_bytes)):
        all_s = {name: all_reduce_s(fit.cluster, name, num_ranks, size) for name in names}
        times = dict(sorted(all_s.items(), key=lambda item: item[1]))
        fastest = next(iter(times))
        choices.append(AlgorithmChoice(size, times, _gain(fit, fastest, num_ranks, size), least_gain))
    return choices


def scatter(ratios: Sequence[float]) -> float:
    """Return by which factor predictions scatter about what was measured; what is off alike in all does not count.

    ratios: predicted over measured times. A comparison of two predictions is as sure as that: errors that they have in
    common cancel. The median deviation of the logarithms from their median, as a factor; 1 if there is no ratio.
    """
    logs = [math.log(ratio) for ratio in ratios if ratio > 0]
    middle = statistics.median(logs or [0.0])
    return math.exp(statistics.median([abs(log - middle) for log in logs] or [0.0]))


def _gain(fit: ProbeFit, name: str, num_ranks: int, size_bytes: int) -> PredictedTime:
    def gain(cluster: Cluster) -> float:
        times = [all_reduce_s(cluster, algorithm, num_ranks, size_bytes) for algorithm in (BASELINE, name)]
        return times[0] / times[1] if times[1] > 0 else 1.0

    return PredictedTime(1.0, 1.0, 1.0) if name == BASELINE else with_interval(fit, gain, num_draws(num_ranks))


@dataclass(frozen=True, slots=True)
class BucketChoice:
    """The best bucket_cap_mb for DDP, of those in `steps`.

    gain: how many times as fast a step is as with torch's own caps, with its interval. least_gain: as above.
    """

    best: DdpStep
    default: DdpStep
    steps: tuple[DdpStep, ...]
    gain: PredictedTime
    least_gain: float = 1.0

    @property
    def matters(self) -> bool:
        """Whether it is sure that the best is faster than torch's own."""
        return self.gain.low_s > self.least_gain


def choose_buckets(fit: ProbeFit, profile: StepProfile, num_ranks: int, least_gain: float = 1.0) -> BucketChoice:
    """Return the best buckets for `num_ranks` ranks. Raises ValueError if the network has no room for them."""
    config = ddp_config(fit.cluster, num_ranks)
    caps = [BucketCaps.from_mb(cap) for cap in CAPS_MB]
    steps = tuple(sweep_caps(profile, fit.cluster, num_ranks, config, caps))
    best, default = recommend(steps), predict_ddp(profile, fit.cluster, num_ranks, config)

    def gain(cluster: Cluster) -> float:
        drawn = ddp_config(cluster, num_ranks)
        torch_s = predict_ddp(profile, cluster, num_ranks, drawn).step_s
        best_s = predict_ddp(profile, cluster, num_ranks, replace(drawn, caps=best.config.caps)).step_s
        return torch_s / best_s if best_s > 0 else 1.0

    return BucketChoice(best, default, steps, with_interval(fit, gain, num_draws(num_ranks, profile)), least_gain)


def num_draws(num_ranks: int, profile: StepProfile | None = None) -> int:
    """Return from how many networks of the bootstrap a prediction gets its interval."""
    afforded = _AFFORDED_PAIRS // num_ranks**2
    if profile:
        afforded = min(afforded, _AFFORDED_PARAMETERS // len(profile.parameters))
    return min(max(afforded, _FEWEST_DRAWS), _MOST_DRAWS)


def ddp_config(cluster: Cluster, num_ranks: int) -> DdpConfig:
    """Return torch's DDP on Gloo, copying as fast as a rank adds while all of them do."""
    s_per_byte = local_s(LocalWork(1.0), cluster, num_ranks)
    return DdpConfig(copy_bytes_per_s=1 / s_per_byte if s_per_byte else None)


FACTORS = (1, 2, 4, 8)
MOST_RANKS = 64  # of a prediction beyond twice the ranks, which would take longer than it is worth


@dataclass(frozen=True, slots=True)
class ScaledTime:
    """The predicted times on a number of ranks; step_s: of a step with DDP, None without a profile."""

    num_ranks: int
    all_reduce_s: PredictedTime
    step_s: PredictedTime | None


def scale_ranks(fit: ProbeFit, num_ranks: int, size_bytes: int, profile: StepProfile | None) -> list[ScaledTime]:
    """Return the times on `num_ranks` and its multiples, as far as the network has room."""
    scaled = []
    for count in (factor * num_ranks for factor in FACTORS):
        if count > max(MOST_RANKS, 2 * num_ranks):
            break
        try:
            fit.cluster.topology(count)
        except ValueError:
            break
        scaled.append(_on_ranks(fit, count, size_bytes, profile))
    return scaled


def _on_ranks(fit: ProbeFit, num_ranks: int, size_bytes: int, profile: StepProfile | None) -> ScaledTime:
    def call_s(cluster: Cluster) -> float:
        return all_reduce_s(cluster, BASELINE, num_ranks, size_bytes)

    def step_s(cluster: Cluster) -> float:
        assert profile
        return predict_ddp(profile, cluster, num_ranks, ddp_config(cluster, num_ranks)).step_s

    return ScaledTime(
        num_ranks,
        with_interval(fit, call_s, num_draws(num_ranks)),
        with_interval(fit, step_s, num_draws(num_ranks, profile)) if profile else None,
    )


_RESAMPLED_STEPS = 1000
_SEED = 0


@dataclass(frozen=True, slots=True)
class StrategyRanking:
    """The strategies by the time of a step; draws: those not slower than the first beyond what steps vary."""

    results: tuple[StrategyResult, ...]
    draws: tuple[StrategyResult, ...]

    @property
    def best(self) -> StrategyResult:
        """The one with the shortest step."""
        return self.results[0]


def rank_strategies(job: JobReport) -> StrategyRanking | None:
    """Return the strategies that synchronise; None if there are none."""
    results = sorted(job.synchronising, key=lambda result: result.step_s)
    if not results:
        return None
    draws = tuple(result for result in results[1:] if not _is_slower(result, results[0]))
    return StrategyRanking(tuple(results), draws)


def _is_slower(result: StrategyResult, best: StrategyResult) -> bool:
    """Return whether the median difference of steps taken in turn is above zero in 97.5 % of the bootstrap."""
    if len(result.steps_s) != len(best.steps_s) or not result.steps_s:
        return True
    differences = np.array(result.steps_s) - np.array(best.steps_s)
    drawn = np.random.default_rng(_SEED).choice(differences, (_RESAMPLED_STEPS, len(differences)))
    return float(np.quantile(np.median(drawn, axis=1), 0.025)) > 0


@dataclass(frozen=True, slots=True)
class SlowestRank:
    """The rank for which the others wait in most strategies, by more than synchronising varies; seconds a step."""

    rank: int
    wait_s: dict[str, float]

    def waited_s(self, result: StrategyResult) -> float:
        """Return how long a typical rank waits for it with a strategy; 0 where others are later."""
        return self.wait_s.get(result.strategy, 0.0)


def slowest_rank(results: Sequence[StrategyResult]) -> SlowestRank | None:
    """Return the rank for which the others wait; None if there is no such rank, or nothing is known of ranks.

    The rank that arrives last waits for nobody, so it spends the least time synchronising. It is a straggler if it is
    the same rank in more than half of the strategies, and the others wait longer for it than a synchronisation's own
    time varies, from its 10th to its 90th percentile: less than that is chance.
    """
    known = [result for result in results if len(result.rank_sync_s) > 1 and result.sync_s]
    waits: dict[int, dict[str, float]] = {}
    for result in known:
        own_s = min(result.rank_sync_s)
        rank = result.rank_sync_s.index(own_s)
        others = [time_s for other, time_s in enumerate(result.rank_sync_s) if other != rank]
        wait_s = statistics.median(others) - own_s
        low_s, high_s = result.sync_p10_p90_s
        if wait_s > high_s - low_s:
            waits.setdefault(rank, {})[result.strategy] = wait_s
    rank, wait_of = max(waits.items(), key=lambda item: len(item[1]), default=(0, {}))
    return SlowestRank(rank, wait_of) if len(wait_of) * 2 > len(known) else None
