"""The answers from probes: the limiting cost, the algorithm, the bucket size, and the cost of twice as many ranks."""

import statistics

from ringsim.analysis import BASELINE
from ringsim.measurements import TORCH, CollectiveTimes
from ringsim.network import Cluster
from ringsim.schedule import Collective
from ringsim.units import format_size, plural
from ringsim.verdict.bound import Attribution, Bound, without_stragglers
from ringsim.verdict.choices import AlgorithmChoice, BucketChoice, ScaledTime, SlowestRank, StrategyRanking
from ringsim.verdict.finding import HALF, Finding, Topic, by_size, listed, percent, roughly, times, with_ends
from ringsim.verdict.records import StrategyResult
from ringsim.verdict.subject import Forecast, Subject

_SIMULATED = (
    "The shares come from simulations of a ring on the network fitted to the probes: with all costs, and then with one "
    "cost after another removed."
)
_MEANINGS = {
    Bound.STRAGGLER: "waiting for it",
    Bound.CORES: "waiting for a core",
    Bound.LATENCY: "fixed cost of messages and calls",
    Bound.BANDWIDTH: "moving and adding bytes",
}


def bound_of_sizes(subject: Subject, forecast: Forecast) -> Finding:
    """Return what bounds an all_reduce, from probes alone."""
    words = [(a.size_bytes, f"by {a.bound.value}") for a in forecast.attributions]
    where = " at all simulated sizes" if len({name for _, name in words}) == 1 else ""
    answer = f"An all_reduce on {subject.num_ranks} ranks is bound {by_size(words)}{where}."
    shown = [forecast.attributions[0], forecast.at(subject.size_bytes)][-len(forecast.attributions) :]
    reasons = [_shares(attribution) for attribution in shown]
    return Finding(Topic.BOUND, answer, (_SIMULATED, *reasons, *_what_ifs(subject.fit.cluster, shown)))


def bound_of_step(
    subject: Subject, forecast: Forecast, ranking: StrategyRanking, slowest: SlowestRank | None
) -> Finding:
    """Return what bounds the training step of the strategy comparison, by the strategy with the shortest one.

    What it costs is measured where the strategy comparison also trained without synchronisation: only the difference of
    the two steps also holds the waiting of ranks for one another, and what communication slows down beside it.
    """
    best, free = ranking.best, subject.job.unsynchronised if subject.job else None
    waited_s = slowest.waited_s(best) if slowest else 0.0
    cost_s = best.measured_sync_s + waited_s if free is None else max(best.step_s - free.step_s, 0.0)
    share = cost_s / best.step_s if best.step_s > 0 else 0.0
    attribution = forecast.at(subject.size_bytes)
    takes = f"takes {roughly(best.step_s)} with `{best.strategy}`"
    if free is None:
        waiting = " and waiting for a straggler" if waited_s else ""
        parts = f"{roughly(cost_s)} of this ({percent(share)}) is synchronisation{waiting}"
    else:
        parts = f"{roughly(free.step_s)} without synchronisation (`{free.strategy}`), {percent(share)} less"
    bound = "The training step is compute-bound"
    if share >= HALF:
        inner = _bound(attribution, best, waited_s).value
        bound = f"The training step is bound by the synchronisation of gradients, mostly by {inner}"
    reasons = [_cost(best, free, cost_s, waited_s), _inside(attribution, best, waited_s)]
    if slowest:
        reasons.append(straggling_rank(slowest))
    answer = f"{bound}: it {takes}, and {parts}." if free else f"{bound}: it {takes}; {parts}."
    return Finding(Topic.BOUND, answer, (*reasons, _SIMULATED, *_what_ifs(subject.fit.cluster, [attribution])))


def _cost(best: StrategyResult, free: StrategyResult | None, cost_s: float, waited_s: float) -> str:
    """Say how much of the cost of synchronising is the synchronisation itself, and how much is waiting."""
    own_s = roughly(best.measured_sync_s)
    if free is not None:
        rest = "the rest is waiting for late ranks, and computation that communication slows down"
        if cost_s <= best.measured_sync_s:
            rest = "the part of it that is missing from the difference overlaps with computation, or is noise"
        return (
            f"Steps with and without synchronisation were interleaved and differ by {roughly(cost_s)}; the "
            f"synchronisation itself takes {own_s}, measured on the last rank to arrive; {rest}."
        )
    counted = f", and {roughly(waited_s)} of waiting for the straggler" if waited_s else ""
    return (
        f"This is {own_s} of synchronisation, measured on the last rank to arrive{counted}. It does not include other "
        "waiting for late ranks; train with `none` as well to measure a step without synchronisation."
    )


def straggling_rank(slowest: SlowestRank) -> str:
    """Return the sentence on the rank that the others wait for."""
    typical_s = statistics.median(slowest.wait_s.values())
    return (
        f"Rank {slowest.rank} is a straggler: the other ranks wait {roughly(typical_s)} for it in each step (measured "
        f"with {listed([f'`{name}`' for name in slowest.wait_s])})."
    )


def _bound(attribution: Attribution, result: StrategyResult, waited_s: float) -> Bound:
    return Bound.STRAGGLER if waited_s > result.measured_sync_s else attribution.bound


def _inside(attribution: Attribution, result: StrategyResult, waited_s: float) -> str:
    """Say what takes most of the synchronisation's own time, or that waiting takes more."""
    bound = _bound(attribution, result, waited_s)
    if bound is Bound.STRAGGLER and waited_s:
        return (
            f"Most of the synchronisation is due to a straggler: ranks wait {roughly(waited_s)} for it, and the "
            f"synchronisation itself takes {roughly(result.measured_sync_s)}."
        )
    return f"Most of the synchronisation is due to {bound.value}. {_shares(attribution)}"


def _shares(attribution: Attribution) -> str:
    parts = [
        f"{bound.value} {percent(attribution.share(bound))} ({_MEANINGS[bound]})"
        for bound in sorted(Bound, key=attribution.share, reverse=True)
        if attribution.share(bound) >= 0.005
    ]
    return f"{format_size(attribution.size_bytes)} take {roughly(attribution.time_s)}: {listed(parts)}."


def _what_ifs(cluster: Cluster, attributions: list[Attribution]) -> list[str]:
    """Say how long it would take without slow links, and with enough cores."""
    last = attributions[-1]
    size, now = format_size(last.size_bytes), roughly(last.time_s)
    without_s = last.time_s - last.seconds[Bound.STRAGGLER]
    sentences = []
    if without_stragglers(cluster) != cluster:
        sentences.append(
            f"{_slow_parts(cluster)} slower than the others: with equal speeds, {size} would take {roughly(without_s)} "
            f"instead of {now}."
        )
    worst = max(attributions, key=lambda attribution: attribution.share(Bound.CORES))
    if worst.share(Bound.CORES) >= 0.005:
        left_s = worst.time_s - worst.seconds[Bound.STRAGGLER] - worst.seconds[Bound.CORES]
        also = " and no straggler" if worst.share(Bound.STRAGGLER) >= 0.005 else ""
        sentences.append(
            f"With a core for every thread{also}, {format_size(worst.size_bytes)} would take {roughly(left_s)} instead "
            f"of {roughly(worst.time_s)}."
        )
    return sentences


def _slow_parts(cluster: Cluster) -> str:
    """Return the links and ranks that are slower, and how many times."""
    spec = cluster.spec
    usual = min(spec.host.link.bandwidth_bytes_per_s, spec.host.nics.bandwidth_bytes_per_s)
    factors: dict[str, float] = {}
    for slow in spec.slow_links:
        own = slow.bandwidth_bytes_per_s
        factors[slow.link] = usual / own if own is not None else slow.slowdown
    factors |= {f"rank {slow.rank}": slow.slowdown for slow in spec.slow_ranks}
    verb = "is" if len(factors) == 1 else "are"
    return f"{listed(list(factors))} {verb} {max(factors.values()):.2g} times"


def algorithm_finding(subject: Subject, forecast: Forecast, ranking: StrategyRanking | None) -> Finding:
    """Return which strategy to train with, if some were tried, and which algorithm to all_reduce with."""
    choices = forecast.algorithms
    words = by_size([(choice.size_bytes, f"`{choice.chosen}`") for choice in choices])
    others = any(choice.chosen != BASELINE for choice in choices)
    on = f"On these {subject.num_ranks} ranks"
    use = f"{on} use {words} for all_reduce." if others else f"{on} use `{BASELINE}` for all_reduce at every size."
    reasons = [_gain(choice) for choice in _turning_points(choices)]
    if not others:
        reasons.append("No other algorithm is faster by more than the error of the predictions.")
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
    names = listed([f"`{result.strategy}`" for result in ranking.draws])
    return (
        f"Train with `{best.strategy}`: a step takes {roughly(best.step_s)}. The difference to {names} is within the "
        "noise."
    )


def _draws(ranking: StrategyRanking) -> list[str]:
    if not ranking.draws:
        return []
    names = listed([f"`{result.strategy}` ({roughly(result.step_s)})" for result in ranking.draws])
    return [f"Steps of similar length: {names}."]


def _measured(subject: Subject) -> str:
    """Return the times of our fastest algorithm and of torch at the largest size at which both were timed."""
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
        f"Measured at {format_size(max(both))}: `{ours.algorithm}` {roughly(ours.median_s)}, torch.distributed "
        f"{roughly(entries[TORCH].median_s)}."
    )


def bucket_finding(subject: Subject, buckets: BucketChoice | None) -> Finding:
    """Return DDP's best bucket_cap_mb; without a profile of a step, how to make one."""
    if buckets is None:
        command = f"torchrun --nproc-per-node {subject.num_ranks} -m trainers compare-strategies --output report"
        return Finding(
            Topic.BUCKET,
            "Not known: no file here records when each gradient of a step is ready.",
            ("The strategy comparison records this; or describe the layers of your model for ringsim ddp.",),
            command,
        )
    best, default = buckets.best, buckets.default
    count = plural(best.num_buckets, "bucket")
    if not buckets.matters:
        longest = max(buckets.steps, key=lambda step: step.step_s)
        return Finding(
            Topic.BUCKET,
            "Keep the default bucket_cap_mb: no other value is reliably better for this model.",
            (
                f"Predicted for DDP on Gloo: a step takes {roughly(default.step_s)} with torch's default caps, "
                f"{roughly(best.step_s)} with the best value tried ({best.config.caps}, {count}), "
                f"{roughly(longest.step_s)} with the worst ({longest.config.caps}).",
            ),
        )
    return Finding(
        Topic.BUCKET,
        f"Set bucket_cap_mb to {best.config.caps}: {count} instead of {default.num_buckets} with torch's default.",
        (
            f"Predicted for DDP on Gloo: a step takes {roughly(best.step_s)} instead of "
            f"{roughly(default.step_s)}, {times(buckets.gain)} as fast.",
        ),
    )


def ranks_finding(subject: Subject, forecast: Forecast) -> Finding:
    """Return the cost of twice as many ranks, simulated on the fitted network."""
    if len(forecast.scaled) < 2:
        return Finding(Topic.RANKS, "Not known: the fitted network has no room for twice as many ranks.")
    now, twice = forecast.scaled[:2]
    size = format_size(subject.size_bytes)
    now_s, twice_s = now.all_reduce_s.time_s, twice.all_reduce_s.time_s
    growth = twice_s / now_s if now_s > 0 else 1.0
    answer = (
        f"On {twice.num_ranks} ranks{_where(subject, twice)} an all_reduce of {size} would take "
        f"{with_ends(twice.all_reduce_s)}, {growth:.1f} times as long as on {now.num_ranks}."
    )
    reasons = ["Simulated with a ring on the network fitted to the probes, with more ranks of the same kind."]
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
        f"A step with DDP and the same batch per rank would take {with_ends(twice.step_s)} instead of "
        f"{with_ends(now.step_s)}: the efficiency per rank would be {kept[1]} instead of {kept[0]}."
        f" This does not include the slower computation of ranks that share cores."
    )
