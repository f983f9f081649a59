"""`step_interval`: between which times a step lies, as far as a calibrated network tells how sure it is of its calls.

If all calls take f times as long as predicted, a step takes f times as long as one whose computations take 1/f of their
time. So no other network has to be simulated, and calls overlap with computations as in the prediction itself.
Computations are taken to be as long as they are given.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ringsim.calibration import Interval, SimulatedDraws, is_bounded
from ringsim.network import AnyNetwork, Cluster
from ringsim.traces import Call
from ringsim.training_step.group_calls import GroupCalls

# These limit the time that an interval takes: each kind of call is simulated on the network, on these draws and on the
# network of free bytes.
_DRAWS_USED, _MOST_TRANSFERS = 8, 2**15


def step_interval(
    network: AnyNetwork, calls: Sequence[Call], groups: Sequence[GroupCalls], step_s: Callable[[float], float]
) -> Interval | None:
    """Return the interval of a step, with a probability of `INSIDE`.

    None if the network does not say how sure it is of its times, if a call has no interval or none that is bounded, if
    the network has jitter or failures, and on a network from probes if the kinds of calls have more transfers together
    than are simulated on each draw.

    calls, groups: of the step, on `network`. step_s: returns the seconds of the step if all computations take that many
    times as long.
    """
    within = _communication_within(network, calls, groups)
    if within is None or not is_bounded(*within):
        return None
    low_s, high_s = (factor * step_s(1 / factor) for factor in within)
    return Interval(low_s, high_s)


def _communication_within(
    network: AnyNetwork, calls: Sequence[Call], groups: Sequence[GroupCalls]
) -> tuple[float, float] | None:
    """Return how many times as long as predicted the calls may take together, at least and at most."""
    counts = Counter(call for call in calls if len(groups[call.group].ranks) > 1)
    is_known = isinstance(network, Cluster) and network.calibration is not None and bool(network.calibration.draws)
    if not counts or not is_known or network.spec.jitter or network.spec.failures:
        return None
    if any(groups[call.group].why_not for call in counts):
        return None
    return _from_logs(counts, groups) if network.spec.protocols else _from_probes(network, counts, groups)


def _from_logs(counts: Mapping[Call, int], groups: Sequence[GroupCalls]) -> tuple[float, float] | None:
    """Return the mean of the intervals of the calls, weighted by their times."""
    withins = [groups[call.group].within(call) for call in counts]
    known = [within for within in withins if within is not None]
    if len(known) < len(withins):
        return None
    times_s = [_alone_s({call: count}, groups) for call, count in counts.items()]
    low, high = (
        sum(end * time_s for end, time_s in zip(ends, times_s, strict=True)) / sum(times_s)
        for ends in zip(*known, strict=True)
    )
    return low, high


def _from_probes(
    network: AnyNetwork, counts: Mapping[Call, int], groups: Sequence[GroupCalls]
) -> tuple[float, float] | None:
    """Return the interval of the time that the calls take one after the other, over that time."""
    schedules = [groups[call.group].call(call).call.schedule for call in counts]
    draws = SimulatedDraws.from_network(network) if isinstance(network, Cluster) else None
    if draws is None or sum(schedule.num_transfers for schedule in schedules) > _MOST_TRANSFERS:
        return None
    few, time_s = replace(draws, draws=draws.draws[:_DRAWS_USED]), _alone_s(counts, groups)
    interval = few.interval(time_s, lambda drawn: _alone_s(counts, [group.on(drawn) for group in groups]))
    return (interval.low_s / time_s, interval.high_s / time_s) if interval else None


def _alone_s(counts: Mapping[Call, int], groups: Sequence[GroupCalls]) -> float:
    """Return the seconds of calls one after the other, each as often as `counts` says."""
    return sum(count * groups[call.group].call_alone_s(call) for call, count in counts.items())
