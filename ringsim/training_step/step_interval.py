"""`step_interval`: between which times a step lies, as far as a calibrated network tells how sure it is of its calls.

If all calls take f times as long as predicted, a step takes f times as long as one whose computations take 1/f of their
time. So no other network has to be simulated, and calls overlap with computations as in the prediction itself.
Computations are taken to be as long as they are given.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ringsim.calibration import Interval, SimulatedDraws
from ringsim.network import AnyNetwork, Cluster
from ringsim.traces import Call
from ringsim.training_step.group_calls import GroupCalls

# So that an interval takes about as long as the step itself: all kinds of calls are simulated on each of the draws.
MAX_TRANSFERS, NUM_DRAWS = 2**15, 8


def step_interval(
    network: AnyNetwork, calls: Sequence[Call], groups: Sequence[GroupCalls], step_s: Callable[[float], float]
) -> Interval | None:
    """Return the interval of a step, with a probability of `INSIDE`; None if it is not known.

    It is not known if the network does not say how sure it is of some call, if times depend on when a call begins, as
    where something fails, and if more than `MAX_TRANSFERS` would have to be simulated on many networks.

    calls, groups: of the step, on `network`. step_s: returns the seconds of a step whose computations take as many
    times as long as it is told.
    """
    within = _communication_within(network, calls, groups)
    if within is None:
        return None
    low_s, high_s = (factor * step_s(1 / factor) for factor in within)
    return Interval(low_s, high_s)


def _communication_within(
    network: AnyNetwork, calls: Sequence[Call], groups: Sequence[GroupCalls]
) -> tuple[float, float] | None:
    """Return how many times as long as predicted the calls may take together, at least and at most."""
    counts = Counter(call for call in calls if len(groups[call.group].ranks) > 1)
    if not counts or not isinstance(network, Cluster) or not all(group.is_steady for group in groups):
        return None
    if network.spec.protocols:
        return _from_logs(counts, groups)
    draws = SimulatedDraws.from_network(network)
    planned = [groups[call.group].call(call).call.schedule for call in counts]
    if draws is None or sum(schedule.num_transfers for schedule in planned) > MAX_TRANSFERS:
        return None
    time_s = _alone_s(counts, groups)
    few = replace(draws, draws=draws.draws[:NUM_DRAWS])
    interval = few.interval(time_s, lambda drawn: _alone_s(counts, [group.on(drawn) for group in groups]))
    return (interval.low_s / time_s, interval.high_s / time_s) if interval else None


def _from_logs(counts: Counter[Call], groups: Sequence[GroupCalls]) -> tuple[float, float] | None:
    """Return the mean of what NCCL's choice for each call is within, by the time of the call."""
    total_s = low_s = high_s = 0.0
    for call, count in counts.items():
        within, time_s = groups[call.group].call(call).within, _alone_s({call: count}, groups)
        if within is None:
            return None
        total_s, low_s, high_s = total_s + time_s, low_s + within[0] * time_s, high_s + within[1] * time_s
    return low_s / total_s, high_s / total_s


def _alone_s(counts: Mapping[Call, int], groups: Sequence[GroupCalls]) -> float:
    """Return the seconds of calls one after the other, each as often as `counts` says."""
    return sum(count * groups[call.group].call_alone_s(call) for call, count in counts.items())
