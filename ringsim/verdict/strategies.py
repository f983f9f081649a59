"""What the main job's steps say: which strategies are the fastest, and which rank the others wait for."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringsim.verdict.records import JobReport, StrategyResult

_RESAMPLED = 1000
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
    drawn = np.random.default_rng(_SEED).choice(differences, (_RESAMPLED, len(differences)))
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
