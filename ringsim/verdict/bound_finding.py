"""The answer to what bounds: a training step, its synchronisation, or an all_reduce by its size."""

import statistics

from ringsim.network import Cluster
from ringsim.units import format_size
from ringsim.verdict.bound import Attribution, Bound, without_stragglers
from ringsim.verdict.finding import Finding, Topic, by_size, listed, percent, roughly
from ringsim.verdict.predicted_findings import HALF
from ringsim.verdict.records import StrategyResult
from ringsim.verdict.strategies import SlowestRank, StrategyRanking
from ringsim.verdict.subject import Forecast, Subject

_SIMULATED = (
    "Shares are those of a ring, simulated on the network fitted to the probes, as it is and then without one cost "
    "after another."
)
_MEANINGS = {
    Bound.STRAGGLER: "waiting for it",
    Bound.CORES: "waiting for a core",
    Bound.LATENCY: "messages and calls, whatever their size",
    Bound.BANDWIDTH: "moving and adding bytes",
}


def bound_of_sizes(subject: Subject, forecast: Forecast) -> Finding:
    """Return what bounds an all_reduce, from probes alone."""
    words = [(a.size_bytes, f"by {a.bound.value}") for a in forecast.attributions]
    where = " at every size looked at" if len({name for _, name in words}) == 1 else ""
    answer = f"An all_reduce on {subject.num_ranks} ranks is bound {by_size(words)}{where}."
    shown = [forecast.attributions[0], forecast.at(subject.size_bytes)][-len(forecast.attributions) :]
    reasons = [_shares(attribution) for attribution in shown]
    return Finding(Topic.BOUND, answer, (_SIMULATED, *reasons, *_what_ifs(subject.fit.cluster, shown)))


def bound_of_step(
    subject: Subject, forecast: Forecast, ranking: StrategyRanking, slowest: SlowestRank | None
) -> Finding:
    """Return what bounds the training step of the main job, by the strategy with the shortest one.

    What it costs is measured where the main job trained without synchronisation too: only the difference of the two
    steps also holds the waiting of ranks for one another, and what communication slows down beside it.
    """
    best, free = ranking.best, subject.job.unsynchronised if subject.job else None
    waited_s = slowest.waited_s(best) if slowest else 0.0
    cost_s = best.measured_sync_s + waited_s if free is None else max(best.step_s - free.step_s, 0.0)
    share = cost_s / best.step_s if best.step_s > 0 else 0.0
    attribution = forecast.at(subject.size_bytes)
    takes = f"takes {roughly(best.step_s)} with `{best.strategy}`"
    if free is None:
        waiting = " and waiting for a straggler" if waited_s else ""
        parts = f"{roughly(cost_s)} of them ({percent(share)}) are synchronisation{waiting}"
    else:
        parts = f"{roughly(free.step_s)} without synchronisation (`{free.strategy}`), {percent(share)} less"
    bound = "Computing bounds a training step"
    if share >= HALF:
        inner = _bound(attribution, best, waited_s).value
        bound = f"Synchronising gradients bounds a training step, and {inner} bounds that"
    reasons = [_cost(best, free, cost_s, waited_s), _inside(attribution, best, waited_s)]
    if slowest:
        reasons.append(straggling_rank(slowest))
    answer = f"{bound}: it {takes}, and {parts}." if free else f"{bound}: it {takes}; {parts}."
    return Finding(Topic.BOUND, answer, (*reasons, _SIMULATED, *_what_ifs(subject.fit.cluster, [attribution])))


def _cost(best: StrategyResult, free: StrategyResult | None, cost_s: float, waited_s: float) -> str:
    """Say how much of the cost of synchronising is the synchronisation itself, and how much is waiting."""
    own_s = roughly(best.measured_sync_s)
    if free is not None:
        rest = "the rest is waiting for late ranks, and computing that communication slows down"
        if cost_s <= best.measured_sync_s:
            rest = "as much of it as the difference lacks is hidden, or within what steps vary"
        return (
            f"Steps with and without synchronisation took turns and differ by {roughly(cost_s)}; the synchronisation "
            f"itself takes {own_s}, as the last rank to arrive sees it; {rest}."
        )
    counted = f", and {roughly(waited_s)} of waiting for the straggler" if waited_s else ""
    return (
        f"That is {own_s} of synchronisation, as the last rank to arrive sees it{counted}. It leaves out other waiting "
        "for late ranks; what a step would take without synchronisation is measured by training with `none` too."
    )


def straggling_rank(slowest: SlowestRank) -> str:
    """Return the sentence on the rank that the others wait for."""
    typical_s = statistics.median(slowest.wait_s.values())
    return (
        f"Rank {slowest.rank} is a straggler: the others wait {roughly(typical_s)} for it in a step, measured with "
        f"{listed([f'`{name}`' for name in slowest.wait_s])}."
    )


def _bound(attribution: Attribution, result: StrategyResult, waited_s: float) -> Bound:
    return Bound.STRAGGLER if waited_s > result.measured_sync_s else attribution.bound


def _inside(attribution: Attribution, result: StrategyResult, waited_s: float) -> str:
    """Say what takes most of the synchronisation's own time, or that waiting takes more."""
    bound = _bound(attribution, result, waited_s)
    if bound is Bound.STRAGGLER and waited_s:
        return (
            f"Within the synchronisation a straggler counts most: {roughly(waited_s)} is waiting for it, "
            f"{roughly(result.measured_sync_s)} the synchronisation itself."
        )
    return f"Within the synchronisation {bound.value} counts most. {_shares(attribution)}"


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
            f"{_slow_parts(cluster)} as slow as the others: were they alike, {size} would take {roughly(without_s)} "
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
