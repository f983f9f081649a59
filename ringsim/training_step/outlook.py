"""The interval of a predicted step, and changes that would make it shorter, by further simulations.

If all calls take f times their predicted time, a step takes f times the step with computations of 1/f of their time.
The interval therefore needs no other network. Recorded times of computations are taken as exact; see `gpu_interval` for
the times of a GPU's kernels.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ringsim.analysis import better_networks
from ringsim.estimates import Estimate
from ringsim.gpus import Gpu
from ringsim.libraries import SimulatedDraws, library_of
from ringsim.limits import TRIED_TRANSFERS
from ringsim.network import Network
from ringsim.traces import TraceCall
from ringsim.training_step.group_calls import GroupCalls
from ringsim.training_step.prediction import StepSimulation, TracePrediction
from ringsim.units import format_time

MIN_EXPOSED = 0.01  # of a step: with less there is nothing to gain from a better network
MAX_SCALE = 1e9
_BISECTIONS = 60
# With `TRIED_TRANSFERS` this limits the time that an interval takes: each kind of call is simulated on the network, on
# these draws and on the network of free bytes.
_DRAWS_USED = 8


def with_better_steps(prediction: TracePrediction) -> TracePrediction:
    """Return the prediction with the mean step after single improvements, shortest first."""
    simulation, mean = prediction.simulation, prediction.mean
    better = [("computations twice as fast", simulation.mean(1 / 2).step_s)]
    if mean.exposed_s > MIN_EXPOSED * mean.step_s:
        for name, network in better_networks(simulation.network):
            better.append((name, simulation.on(network).mean().step_s))
        # The CPU issues the calls nevertheless.
        without_s = max(mean.compute_s + mean.issuing_s - mean.slowed_s, prediction.issue_s)
        better.append(("communication that takes no time", without_s))
    return replace(prediction, better=tuple(sorted(better, key=lambda alternative: alternative[1])))


def fitted_scale(simulation: StepSimulation, measured_s: float) -> float:
    """Return the scale of the computations and of their issuing at which the mean step takes the measured time.

    Raises ValueError if there is none, as when communication alone takes longer.
    """

    def step_s(scale: float) -> float:
        return simulation.mean(scale, scale).step_s

    low, high = 0.0, 1.0
    if math.isinf(step_s(low)):
        raise ValueError("the communication never ends on this network, because a rank or link fails in it")
    if step_s(low) > measured_s:
        raise ValueError(
            f"communication alone takes {format_time(step_s(low))} on this network, longer than the measured step"
        )
    while step_s(high) < measured_s:
        low, high = high, 2 * high
        if high > MAX_SCALE:
            raise ValueError("the computations are too short: no scale makes the step as long as measured")
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if step_s(middle) < measured_s else (low, middle)
    return high


def with_step_interval(prediction: TracePrediction) -> TracePrediction:
    """Return the prediction with the interval of its mean step, of probability `INSIDE`, and its `p95_s`.

    With kernel times it is `gpu_interval`, unless the range of a compiled program is known. Otherwise there is none if
    the computations were fitted to a measured step, the network has jitter, failures or no known uncertainty, a call
    has no bounded interval or, on a network from probes, the calls have too many transfers.
    """
    simulation, rates, step_s = prediction.simulation, prediction.computing.rates, prediction.mean.step_s
    if isinstance(rates, Gpu) and not prediction.computing.is_fitted:
        if prediction.fused_s is not None:
            return prediction
        of_fabric = [simulation.at_quantile(quantile).mean().step_s for quantile in (0.1, 0.9)]
        of_cpu = [simulation.mean(cpu_scale=factor).step_s for factor in rates.cpu.within]
        slower = rates.slowness(prediction.trace.num_ranks, 0.95) / simulation.slowness
        return replace(
            prediction,
            interval=gpu_interval(rates.within, step_s, of_fabric, of_cpu),
            p95_s=simulation.mean(slower).step_s if rates.spread else None,
        )
    relative = _relative_interval(simulation)
    if prediction.computing.is_fitted or relative is None or not relative.is_bounded:
        return prediction
    ends_s = (factor * simulation.mean(1 / factor).step_s for factor in relative.ends)
    return replace(prediction, interval=Estimate(step_s, *ends_s))


def gpu_interval(within: tuple[float, float], step_s: float, *ends_s: Sequence[float]) -> Estimate:
    """Return the interval of a step from `within` of the GPU's file.

    ends_s: for each further quantity that is uncertain, such as `[[fabric]]`, the step at both of its ends.
    All are taken as independent: half-widths of logarithms add in quadrature around the middle of `within`.
    """
    low, high = within
    middle_s, half = math.sqrt(low * high) * step_s, math.log(high / low) / 2
    # A quantity both of whose ends shorten the step does not lengthen it, and the reverse.
    spreads = [
        (min(0.0, math.log(ends[0] / step_s)), max(0.0, math.log(ends[1] / step_s)))
        for ends in ends_s
        if ends[0] < ends[1]
    ]
    shorter, longer = (math.hypot(half, *(spread[end] for spread in spreads)) for end in (0, 1))
    return Estimate(step_s, middle_s * math.exp(-shorter), middle_s * math.exp(longer))


def _relative_interval(simulation: StepSimulation) -> Estimate | None:
    """Return the interval of the calls' total time, relative to the prediction."""
    network, groups = simulation.network, simulation.groups
    counts = Counter(call for step in simulation.steps for call in step.calls if len(groups[call.group].ranks) > 1)
    is_known = network.calibration is not None and bool(network.calibration.draws)
    if not counts or not is_known or network.spec.jitter or network.spec.failures:
        return None
    if any(groups[call.group].why_not for call in counts):
        return None
    return _from_logs(counts, groups) if library_of(network).chooses else _from_probes(network, counts, groups)


def _from_logs(counts: Mapping[TraceCall, int], groups: Sequence[GroupCalls]) -> Estimate | None:
    intervals = [groups[call.group].relative_interval(call) for call in counts]
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(intervals):
        return None
    times_s = [_alone_s({call: count}, groups) for call, count in counts.items()]
    ends = zip(*(interval.ends for interval in known), strict=True)
    weighted = (sum(end * time_s for end, time_s in zip(some, times_s, strict=True)) / sum(times_s) for some in ends)
    return Estimate(1.0, *weighted)


def _from_probes(network: Network, counts: Mapping[TraceCall, int], groups: Sequence[GroupCalls]) -> Estimate | None:
    schedules = [groups[call.group].call(call).call.schedule for call in counts]
    draws = SimulatedDraws.from_network(network)
    if draws is None or sum(schedule.num_transfers for schedule in schedules) > TRIED_TRANSFERS:
        return None
    few, time_s = replace(draws, draws=draws.draws[:_DRAWS_USED]), _alone_s(counts, groups)
    interval = few.interval(time_s, lambda drawn: _alone_s(counts, [group.on(drawn) for group in groups]))
    return interval.map(lambda end_s: end_s / time_s) if interval else None


def _alone_s(counts: Mapping[TraceCall, int], groups: Sequence[GroupCalls]) -> float:
    return sum(count * groups[call.group].call_alone_s(call) for call, count in counts.items())
