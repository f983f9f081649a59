"""`make_forecast`: predictions on the network fitted to probes: bounds, algorithms, DDP's buckets, and more ranks.

A choice is sure if it is better on 95 % of the networks of the calibration's bootstrap, and by more than predictions
scatter about measurements. Other choices are not known to be better than the default.
"""

import math
import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path

from ringsim import calibration
from ringsim.analysis import BASELINE
from ringsim.console import in_one_line
from ringsim.estimates import Estimate
from ringsim.libraries import OURS, copy_s
from ringsim.limits import REPORT_DRAWN_PAIRS, REPORT_FITS, REPORT_RANKS, SWEPT_TRANSFERS
from ringsim.measurements import Measurements, p10_p90
from ringsim.network import Network
from ringsim.registry import ALGORITHMS, build
from ringsim.schedule import Collective
from ringsim.training_step import BucketCaps, DdpConfig, DdpStep, StepProfile, predict_ddp, recommend, sweep_caps
from ringsim.verdict.records import JobReport
from ringsim.verdict.run_directory import RunDirectory

SMALLEST = 2**10  # of the sizes in tables and pictures
MOST_SIZES = 10
CAPS_MB = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
# Number of bootstrap networks for an interval: 20, of which 95 % are 19; fewer if many ranks make a simulation long.
_MOST_DRAWS, _FEWEST_DRAWS = 20, 5


# The fields of a network with costs per message or call, independent of the bytes.
_LATENCIES = {"latency_s", "uplink_latency_s", "send_overhead_s", "receive_overhead_s", "call_s", "torch_call_s"}


class Bound(Enum):
    """The costs that can bound a collective."""

    STRAGGLER = "a straggler"
    CORES = "cores"
    LATENCY = "latency"
    BANDWIDTH = "bandwidth"


@dataclass(frozen=True, slots=True)
class Attribution:
    """The time of a ring all_reduce, as a sum of the seconds due to each bound."""

    num_ranks: int
    size_bytes: int
    seconds: dict[Bound, float]

    @property
    def time_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def bound(self) -> Bound:
        return max(self.seconds, key=lambda bound: self.seconds[bound])

    def share(self, bound: Bound) -> float:
        """Return a bound's share; 0 if no time passes."""
        return self.seconds[bound] / self.time_s if self.time_s > 0 else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """The shares, the largest first, without negligible ones."""
        bounds = sorted(Bound, key=self.share, reverse=True)
        return {bound.value: self.share(bound) for bound in bounds if self.share(bound) >= 0.005}

    @property
    def without_straggler_s(self) -> float:
        return self.time_s - self.seconds[Bound.STRAGGLER]


def all_reduce_s(cluster: Network, algorithm: str, num_ranks: int, size_bytes: int) -> float:
    """Return the predicted seconds of a `collectives` all_reduce. Raises ValueError if it does not fit."""
    schedule = build(Collective.ALL_REDUCE, algorithm, num_ranks, size_bytes)
    return OURS.predict_call(schedule, cluster, size_bytes)


def attribute(cluster: Network, num_ranks: int, size_bytes: int) -> Attribution:
    """Return the bounds of a ring all_reduce, by simulations on networks with fewer and fewer costs.

    First stragglers are removed, then the limit of cores, since both slow every message, then the latency of messages
    and calls. Each bound gets the time that its removal saves, and bandwidth the rest. Raises ValueError if the network
    has no room for the ranks.

    >>> from ringsim import load_network
    >>> attribute(load_network("gbe"), 4, 2**26).bound
    <Bound.BANDWIDTH: 'bandwidth'>
    """
    seconds = {}
    time_s = all_reduce_s(cluster, BASELINE, num_ranks, size_bytes)
    for bound, without in _WITHOUT_COST.items():
        cluster = without(cluster)
        left_s = min(all_reduce_s(cluster, BASELINE, num_ranks, size_bytes), time_s)
        seconds[bound] = time_s - left_s
        time_s = left_s
    seconds[Bound.BANDWIDTH] = time_s
    return Attribution(num_ranks, size_bytes, seconds)


# A network without any costs is refused; latencies therefore become tiny instead of 0.
_WITHOUT_COST: dict[Bound, Callable[[Network], Network]] = {
    Bound.STRAGGLER: lambda cluster: cluster.with_spec(slow_ranks=(), slow_links=()),
    Bound.CORES: lambda cluster: cluster.with_numbers(lambda _, field, number: None if field == "cores" else number),
    Bound.LATENCY: lambda cluster: cluster.with_numbers(
        lambda _, field, number: 1e-300 if field in _LATENCIES else number
    ),
}


@dataclass(frozen=True, slots=True)
class Subject:
    """A file with probes, and the network fitted to them.

    size_bytes: of the all_reduce in question. job: the strategy comparison with these probes.
    """

    file: str
    measurements: Measurements
    fit: calibration.ProbeFit
    size_bytes: int
    job: JobReport | None = None
    profile: StepProfile | None = None
    comparison: calibration.Comparison | None = None

    @property
    def num_ranks(self) -> int:
        return self.measurements.num_ranks


@dataclass(frozen=True, slots=True)
class AlgorithmChoice:
    """The algorithm for an all_reduce of one size.

    times_s: by algorithm, the fastest first. gain: speed-up over the ring; None if the ring is chosen.
    """

    size_bytes: int
    times_s: dict[str, float]
    gain: Estimate | None

    @property
    def chosen(self) -> str:
        return next(iter(self.times_s)) if self.gain else BASELINE


@dataclass(frozen=True, slots=True)
class BucketChoice:
    """Steps with each of CAPS_MB, the best of them, and the step with torch's default caps.

    gain: speed-up of the best over the default; None if it is not sure.
    """

    best: DdpStep
    default: DdpStep
    steps: tuple[DdpStep, ...]
    gain: Estimate | None


@dataclass(frozen=True, slots=True)
class ScaledTime:
    """Predicted times; step_s: of a step with DDP, None without a profile."""

    num_ranks: int
    all_reduce_s: Estimate
    step_s: Estimate | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The predictions for a subject; scaled: on its ranks, and on twice as many."""

    attributions: tuple[Attribution, ...]
    algorithms: tuple[AlgorithmChoice, ...]
    buckets: BucketChoice | None
    scaled: tuple[ScaledTime, ...]


def find_subjects(contents: RunDirectory) -> list[Subject]:
    """Return the probes to which a network can be fitted; failed fits are added to `contents.refused`.

    Probes of a strategy comparison, which also knows the training step, come first; then the latest.
    """
    given: list[tuple[str, Measurements, JobReport | None]]
    given = [(file, job.measurements, job) for file, job in contents.jobs.items()]
    given += [(file, measurements, None) for file, measurements in contents.measurements.items()]
    given.sort(key=lambda entry: (entry[2] is not None, str(entry[1].provenance.get("date", ""))), reverse=True)
    subjects = []
    for file, measurements, job in given[:REPORT_FITS]:
        if measurements.num_ranks == 1 or not measurements.probes:
            continue
        try:
            subjects.append(_subject(file, measurements, job, contents))
        except ValueError as error:
            contents.refused[file] = in_one_line(f"no network can be fitted to it: {error}")
    return subjects


def _subject(file: str, measurements: Measurements, job: JobReport | None, contents: RunDirectory) -> Subject:
    fit, comparison = calibration.calibrate(measurements, Path(file).stem, file=Path(file).name), None
    if measurements.collectives:
        cases = calibration.cases_of_measurements(measurements, calibration.num_hosts(measurements), file)
        comparison = calibration.compare_measurements(cases, fit.cluster)
    profile = (job and job.profile) or next(iter(contents.profiles.values()), None)
    # The gradients, else the largest timed tensor, or the tensor from which the longest message is cut.
    messages = [probe.size_bytes for probe in measurements.probes_of("shift")]
    timed = [times.size_bytes for times in measurements.collectives]
    size = job.gradient_bytes if job else max(timed or [max(messages, default=SMALLEST) * measurements.num_ranks])
    return Subject(file, measurements, fit, size, job, profile, comparison)


def make_forecast(subject: Subject) -> Forecast:
    """Return the predictions for a subject. Raises ValueError if they do not fit its network."""
    ranks, fit, profile = subject.num_ranks, subject.fit, subject.profile
    if ranks > REPORT_RANKS:
        raise ValueError(f"{ranks} ranks: a report makes predictions for up to {REPORT_RANKS}")
    sizes, least_gain = _sizes(subject.size_bytes), _least_gain(subject)
    names = [name for collective, name in ALGORITHMS if collective is Collective.ALL_REDUCE]
    names = [name for name in names if build(Collective.ALL_REDUCE, name, ranks).num_transfers <= SWEPT_TRANSFERS]
    scaled = [_on_ranks(subject, ranks)]
    with suppress(ValueError):  # the network has no room for them
        scaled.append(_on_ranks(subject, 2 * ranks))
    return Forecast(
        tuple(attribute(fit.cluster, ranks, size) for size in sizes),
        tuple(_choose_algorithm(fit, names, ranks, size, least_gain) for size in sizes),
        _choose_buckets(fit, profile, ranks, least_gain) if profile else None,
        tuple(scaled),
    )


def _sizes(last: int) -> list[int]:
    return [*(size for size in (SMALLEST * 4**power for power in range(MOST_SIZES)) if size < last), last]


def _least_gain(subject: Subject) -> float:
    """Return the least predicted gain that would show in a measurement.

    It is the larger scatter: of predictions about measurements (of collectives and strategies, else of the probes), or
    of a probe's blocks about their median.
    """
    cases = subject.comparison.cases if subject.comparison else ()
    strategies = subject.job.synchronising if subject.job else ()
    ratios = [1 + result.error for result in (*cases, *strategies) if result.error is not None]
    ends = [(p10_p90(probe.times_s), probe.median_s) for probe in subject.measurements.probes_of("shift")]
    half_spreads = [(high_s - low_s) / median_s / 2 for (low_s, high_s), median_s in ends]
    scattered = scatter(ratios or [1 + residual for _, residual in subject.fit.residuals])
    return max(scattered, 1 + statistics.median(half_spreads or [0.0]))


def scatter(ratios: list[float]) -> float:
    """Return the factor by which predictions scatter about measurements; 1 without ratios (predicted over measured).

    It is the median absolute deviation of logarithms: a common error cancels when two predictions are compared.
    """
    logs = [math.log(ratio) for ratio in ratios if ratio > 0] or [0.0]
    middle = statistics.median(logs)
    return math.exp(statistics.median(abs(log - middle) for log in logs))


def _choose_algorithm(
    fit: calibration.ProbeFit, names: list[str], num_ranks: int, size_bytes: int, least_gain: float
) -> AlgorithmChoice:
    times_s = {name: all_reduce_s(fit.cluster, name, num_ranks, size_bytes) for name in names}
    fastest = min(names, key=lambda name: times_s[name])

    def gain_on(cluster: Network) -> float:
        return _ratio(*(all_reduce_s(cluster, name, num_ranks, size_bytes) for name in (BASELINE, fastest)))

    by_time = dict(sorted(times_s.items(), key=lambda item: item[1]))
    gain = _ratio(times_s[BASELINE], times_s[fastest])
    return AlgorithmChoice(size_bytes, by_time, _sure_gain(gain, gain_on, fit, num_ranks, least_gain))


def _choose_buckets(fit: calibration.ProbeFit, profile: StepProfile, num_ranks: int, least_gain: float) -> BucketChoice:
    config = ddp_config(fit.cluster, num_ranks)
    steps = sweep_caps(profile, fit.cluster, num_ranks, config, [BucketCaps.from_mb(cap) for cap in CAPS_MB])
    best, default = recommend(steps), predict_ddp(profile, fit.cluster, num_ranks, config)

    def gain_on(cluster: Network) -> float:
        drawn = ddp_config(cluster, num_ranks)
        configs = drawn, replace(drawn, caps=best.config.caps)
        return _ratio(*(predict_ddp(profile, cluster, num_ranks, config).step_s for config in configs))

    gain = _ratio(default.step_s, best.step_s)
    return BucketChoice(best, default, tuple(steps), _sure_gain(gain, gain_on, fit, num_ranks, least_gain))


def _ratio(slower_s: float, faster_s: float) -> float:
    return slower_s / faster_s if faster_s > 0 else 1.0


def _sure_gain(
    gain: float, gain_on: Callable[[Network], float], fit: calibration.ProbeFit, num_ranks: int, least_gain: float
) -> Estimate | None:
    """Return a gain with its interval if both exceed the least gain; else None."""
    if gain <= least_gain:
        return None
    estimate = _with_interval(fit, gain_on, num_ranks)
    return estimate if estimate.low > least_gain else None


def _on_ranks(subject: Subject, num_ranks: int) -> ScaledTime:
    fit, profile = subject.fit, subject.profile
    call_s = partial(all_reduce_s, algorithm=BASELINE, num_ranks=num_ranks, size_bytes=subject.size_bytes)

    def step_s(cluster: Network) -> float:
        assert profile
        return predict_ddp(profile, cluster, num_ranks, ddp_config(cluster, num_ranks)).step_s

    step = _with_interval(fit, step_s, num_ranks) if profile else None
    return ScaledTime(num_ranks, _with_interval(fit, call_s, num_ranks), step)


def _with_interval(fit: calibration.ProbeFit, predict: Callable[[Network], float], num_ranks: int) -> Estimate:
    draws = REPORT_DRAWN_PAIRS // num_ranks**2
    return calibration.with_interval(fit, predict, min(max(draws, _FEWEST_DRAWS), _MOST_DRAWS))


def ddp_config(cluster: Network, num_ranks: int) -> DdpConfig:
    """Return torch's DDP on Gloo, copying as fast as a rank adds while all ranks do."""
    s_per_byte = copy_s(cluster, num_ranks, 1.0)
    return DdpConfig(copy_bytes_per_s=1 / s_per_byte if s_per_byte else None)
