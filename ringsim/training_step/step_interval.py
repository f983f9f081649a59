"""`step_interval`: between which times a step lies, as far as a calibrated network tells how sure it is of its calls.

If all calls took f times as long, a step would take f times that of a program which computes f times as fast. So no
other network has to be made for it, and what overlaps is simulated as in the prediction itself. Computations are taken
to be as long as they are given.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from ringsim.calibration import Interval, SimulatedDraws
from ringsim.network import AnyNetwork, Cluster
from ringsim.traces import Call
from ringsim.training_step.group_calls import GroupCalls


def step_interval(
    network: AnyNetwork, calls: Sequence[Call], groups: Sequence[GroupCalls], step_s: Callable[[float], float]
) -> Interval | None:
    """Return the interval of a step, with a probability of `INSIDE`; None if the network does not say how sure it is.

    calls, groups: of the step, on `network`. step_s: returns the seconds of the step if computations take that many
    times as long.
    """
    within = _communication_within(network, calls, groups)
    if within is None:
        return None
    low_s, high_s = (factor * step_s(1 / factor) for factor in within)
    return Interval(low_s, high_s)


def _communication_within(
    network: AnyNetwork, calls: Sequence[Call], groups: Sequence[GroupCalls]
) -> tuple[float, float] | None:
    """Return how many times as long the calls may take together as predicted, at least and at most."""
    counts = Counter(call for call in calls if len(groups[call.group].ranks) > 1)

    def total_s(groups: Sequence[GroupCalls]) -> float:
        return sum(count * groups[call.group].call_alone_s(call) for call, count in counts.items())

    if network.spec.protocols:
        return _of_library(counts, groups)
    draws = SimulatedDraws.from_network(network) if isinstance(network, Cluster) else None
    time_s = total_s(groups) if draws else 0.0
    interval = draws.interval(time_s, lambda drawn: total_s([group.on(drawn) for group in groups])) if draws else None
    return (interval.low_s / time_s, interval.high_s / time_s) if interval else None


def _of_library(counts: Counter[Call], groups: Sequence[GroupCalls]) -> tuple[float, float] | None:
    """Return the same of the calls that the library chooses by its formula, on a network from logs."""
    total_s = low_s = high_s = 0.0
    for call, count in counts.items():
        group = groups[call.group]
        if within := group.call(call).within:
            time_s = count * group.call_alone_s(call)
            total_s, low_s, high_s = total_s + time_s, low_s + within[0] * time_s, high_s + within[1] * time_s
    return (low_s / total_s, high_s / total_s) if total_s else None
