"""The answers to which algorithm, which bucket size, and what twice the ranks would cost."""

from ringsim.analysis import BASELINE
from ringsim.calibration import PredictedTime
from ringsim.measurements import TORCH, CollectiveTimes
from ringsim.schedule import Collective
from ringsim.units import format_size, plural
from ringsim.verdict.choices import AlgorithmChoice, BucketChoice, ScaledTime
from ringsim.verdict.finding import Finding, Topic, by_size, listed, percent, roughly, times, with_ends
from ringsim.verdict.strategies import StrategyRanking
from ringsim.verdict.subject import Forecast, Subject


def algorithm_finding(subject: Subject, forecast: Forecast, ranking: StrategyRanking | None) -> Finding:
    """Return which strategy to train with, if some were tried, and which algorithm to all_reduce with."""
    choices = forecast.algorithms
    words = by_size([(choice.size_bytes, f"`{choice.chosen}`") for choice in choices])
    others = any(choice.chosen != BASELINE for choice in choices)
    on = f"On {subject.num_ranks} ranks"
    use = f"{on} all-reduce with {words}." if others else f"{on} all-reduce with `{BASELINE}` at every size."
    reasons = [_gain(choice) for choice in _turning_points(choices)]
    if not others:
        reasons.append("No other algorithm is faster by more than predictions scatter about what was measured.")
    if measured := _measured(subject):
        reasons.append(measured)
    if ranking is None:
        return Finding(Topic.ALGORITHM, use, tuple(reasons))
    return Finding(Topic.ALGORITHM, f"{_strategy(ranking)} {use}", (*_draws(ranking), *reasons))


def _turning_points(choices: tuple[AlgorithmChoice, ...]) -> list[AlgorithmChoice]:
    """Return the first size at which each algorithm other than the ring is chosen."""
    first: dict[str, AlgorithmChoice] = {}
    for choice in choices:
        if choice.chosen != BASELINE:
            first.setdefault(choice.chosen, choice)
    return list(first.values())


def _gain(choice: AlgorithmChoice) -> str:
    ring_s, chosen_s = choice.times_s[BASELINE], choice.times_s[choice.chosen]
    return (
        f"At {format_size(choice.size_bytes)} `{choice.chosen}` is predicted to be {times(choice.gain)} as fast as the "
        f"ring: {roughly(chosen_s)} instead of {roughly(ring_s)}."
    )


def _strategy(ranking: StrategyRanking) -> str:
    best = ranking.best
    if not ranking.draws:
        return f"Train with `{best.strategy}`: its step of {roughly(best.step_s)} is the shortest of those tried."
    takes = f"a step takes {roughly(best.step_s)} with it"
    return f"Train with `{best.strategy}` or any that cannot be told from it: {takes}."


def _draws(ranking: StrategyRanking) -> list[str]:
    if not ranking.draws:
        return []
    names = listed([f"`{result.strategy}` ({roughly(result.step_s)})" for result in ranking.draws])
    return [f"Not slower beyond what steps vary: {names}."]


def _measured(subject: Subject) -> str:
    """Ours beside torch's own, where both were timed: at the largest size."""
    timed: dict[int, dict[str, CollectiveTimes]] = {}
    for entry in subject.measurements.collectives:
        if entry.collective is Collective.ALL_REDUCE:
            timed.setdefault(entry.size_bytes, {})[entry.algorithm] = entry
    both = [size for size, entries in timed.items() if TORCH in entries and len(entries) > 1]
    if not both:
        return ""
    entries = timed[max(both)]
    ours = min((e for name, e in entries.items() if name != TORCH), key=lambda entry: entry.median_s)
    return (
        f"Measured at {format_size(max(both))}: `{ours.algorithm}` {roughly(ours.median_s)}, torch.distributed's "
        f"own {roughly(entries[TORCH].median_s)}."
    )


def bucket_finding(subject: Subject, buckets: BucketChoice | None) -> Finding:
    """Return DDP's best bucket_cap_mb; without a profile of a step, how to make one."""
    if buckets is None:
        command = f"torchrun --nproc-per-node {subject.num_ranks} -m trainers ring --output report"
        return Finding(
            Topic.BUCKET,
            "Not known: nothing here says when each gradient of a step is ready.",
            ("The main job records that; or give ringsim ddp the layers of your own model.",),
            command,
        )
    best, default = buckets.best, buckets.default
    count = plural(len(best.buckets), "bucket")
    if not buckets.matters:
        longest = max(buckets.steps, key=lambda step: step.step_s)
        return Finding(
            Topic.BUCKET,
            "Leave bucket_cap_mb as torch has it: no other is surely better for this model.",
            (
                f"Predicted for DDP on Gloo: a step takes {roughly(default.step_s)} with torch's caps, "
                f"{roughly(best.step_s)} with the best of those tried ({best.config.caps}, {count}), "
                f"{roughly(longest.step_s)} with the worst ({longest.config.caps}).",
            ),
        )
    return Finding(
        Topic.BUCKET,
        f"Set bucket_cap_mb to {best.config.caps}: {count} instead of torch's {len(default.buckets)}.",
        (
            f"Predicted for DDP on Gloo: a step takes {roughly(best.step_s)} instead of "
            f"{roughly(default.step_s)}, {times(buckets.gain)} as fast.",
        ),
    )


def ranks_finding(subject: Subject, forecast: Forecast) -> Finding:
    """Return what twice the ranks would cost, simulated on the fitted network."""
    if len(forecast.scaled) < 2:
        return Finding(Topic.RANKS, "Not known: the fitted network has no room for twice the ranks.")
    now, twice = forecast.scaled[:2]
    size = format_size(subject.size_bytes)
    growth = _ratio(twice.all_reduce_s, now.all_reduce_s)
    answer = (
        f"On {twice.num_ranks} ranks{_where(subject, twice)} an all_reduce of {size} would take "
        f"{with_ends(twice.all_reduce_s)}, {growth:.1f} times as long as on {now.num_ranks}."
    )
    reasons = ["By simulation of a ring on the network fitted to the probes, with more ranks of the same kind."]
    if now.step_s and twice.step_s and subject.profile:
        reasons.append(_step(now, twice, subject.profile.step_s))
    return Finding(Topic.RANKS, answer, tuple(reasons))


def _where(subject: Subject, scaled: ScaledTime) -> str:
    spec = subject.fit.cluster.spec
    if spec.ranks_per_host is not None:
        return f" on {-(-scaled.num_ranks // spec.ranks_per_host)} such hosts"
    cores = spec.host.cores
    return f" sharing this host's {plural(cores, 'core')}" if cores else ""


def _step(now: ScaledTime, twice: ScaledTime, alone_s: float) -> str:
    assert now.step_s is not None
    assert twice.step_s is not None
    kept = [percent(alone_s / step.time_s) if step.time_s > 0 else "all" for step in (now.step_s, twice.step_s)]
    return (
        f"A step with DDP, each rank computing as much as now, would take {with_ends(twice.step_s)} instead of "
        f"{with_ends(now.step_s)}: each rank keeps {kept[1]} of its speed alone, now {kept[0]}."
        f" That ranks also slow each other's computing, where they share cores, is not in it."
    )


def _ratio(later: PredictedTime, now: PredictedTime) -> float:
    return later.time_s / now.time_s if now.time_s > 0 else 1.0
