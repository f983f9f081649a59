"""`calibrate`: fit a `Network` with parameter intervals to the probes of a measurements file.

The intervals come from a bootstrap over each probe's blocks: they show the scatter of runs, not the error of the model.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

import numpy as np
from msgspec import structs

from ringsim.calibration.host_costs import calibrate_host, calibrate_hosts, calibrate_uniform
from ringsim.calibration.probe_times import exchange_s, shift_s
from ringsim.calibration.timings import MISFIT
from ringsim.calibration.warnings import warning_line
from ringsim.estimates import SURE_QUANTILES, Estimate
from ringsim.files import parsed, values
from ringsim.libraries import NUM_DRAWS, OURS, noises, rounded_ratios
from ringsim.measurements import Measurements, Probe, RankHosts, p10_p90
from ringsim.network import Calibration, Host, Link, Network, Nics, Spec, quantities, with_free_bytes

_RESAMPLED = 200
_SEED = 0


class ProbeModel(Enum):
    """The kinds of networks that can be fitted to probes.

    host: the ranks share the cores of one host; hosts: of several; network: all links are alike, without cores.
    """

    HOST = "host"
    HOSTS = "hosts"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class ProbeFit:
    """A network fitted to probes.

    parameters: in SI units; an interval holds the share `SURE` of the bootstrap's fits.
    probes: the kinds of probes behind each parameter. residuals: predicted over measured, less 1, of each shift with
    one message in flight. draws: the networks of the bootstrap.
    """

    cluster: Network
    parameters: Mapping[str, Estimate]
    probes: Mapping[str, str]
    residuals: tuple[tuple[Probe, float], ...]
    draws: tuple[Network, ...] = ()


_RANK_PROBES = {
    **dict.fromkeys(("rank.send_overhead", "rank.receive_overhead"), "shift_cpu; shift, several in flight"),
    "rank.copy_bandwidth": "shift_cpu",
    "rank.reduce_bandwidth": "reduce_cpu", "rank.first_touch_bandwidth": "fresh_cpu",
    "rank.call": "call; shift, the smallest", "rank.torch_call": "call/dist",
    "rank.cold_call": "call/cold; call/warm", "rank.cold_torch_call": "call/dist/cold; call/dist/warm",
    "rank.async_call": "shm/call/async; shm/call/cold; or call/async; call/cold",
    **dict.fromkeys(("rank.late_share", "rank.late"), "call/cold"),
    **dict.fromkeys(("rank.torch_late_share", "rank.torch_late"), "call/dist/cold"),
    **dict.fromkeys(("rank.async_late_share", "rank.async_late"), "shm/call/async; or call/async"),
    "host.link.latency": "shift, the smallest",
}  # fmt: skip
_PROBES = {
    ProbeModel.HOST: _RANK_PROBES | {"host.memory_bandwidth": "shift, the largest"},
    ProbeModel.HOSTS: _RANK_PROBES | {
        "host.link.bandwidth": "shift, long ones; within a host ping", "host.nic.latency": "shift, the smallest",
        "host.nic.bandwidth": "shift, long ones",
        **dict.fromkeys(("host.link.burst", "host.nic.burst"), "shift/rested; shift, long ones"),
    },
    ProbeModel.NETWORK: {
        "host.nic.latency": "shift", "host.nic.bandwidth": "shift", "rank.reduce_bandwidth": "reduce",
        "rank.send_overhead": "shift, several in flight",
    },
}  # fmt: skip
_SHARED_MEMORY_PROBES = {
    "host.shared_memory.send_overhead": "shm/copy, the smallest",
    "host.shared_memory.receive_overhead": "shm/copy, the smallest",
    "host.shared_memory.latency": "shm/shift",
    "host.shared_memory.call": "shm/call; shm/shift",
    "host.shared_memory.cold_call": "shm/call/cold; shm/call/warm",
    **dict.fromkeys(("host.shared_memory.late_share", "host.shared_memory.late"), "shm/call/cold"),
    "host.shared_memory.rate.copy_bandwidth": "shm/copy",
    "host.shared_memory.rate.reduce_bandwidth": "shm/add",
    "host.shared_memory.rate.reduce_into_bandwidth": "shm/shift",
}


def calibrate(
    measurements: Measurements, name: str = "calibrated", model: ProbeModel | None = None, file: str = "probes"
) -> ProbeFit:
    """Fit a network to the probes of `measurements`; its collectives are not used.

    model: None: `fitting_model`. file: name of the source in the network file.

    Raises ValueError for too few probes.

        >>> from ringsim import Measurements, calibrate, predict_time, ring_all_reduce
        >>> fit = calibrate(Measurements.load("measured.json"))  # doctest: +SKIP
        >>> predict_time(ring_all_reduce(8), fit.cluster, 64 * 2**20)  # doctest: +SKIP
    """
    model = model or fitting_model(measurements)
    cluster = fitted_cluster(measurements, model, name)
    values = _values(cluster, model)
    random = np.random.default_rng(_SEED)
    draws = tuple(fitted_cluster(_redrawn(measurements, random), model, name) for _ in range(_RESAMPLED))
    drawn = [_values(draw, model) for draw in draws]
    ends = {key: np.quantile([fitted[key] for fitted in drawn], SURE_QUANTILES, method="nearest") for key in values}
    single = measurements.probes_of("shift", in_flight=1)
    residuals = tuple(
        (probe, shift_s(cluster, measurements.num_ranks, probe.size_bytes) / probe.median_s - 1) for probe in single
    )
    return ProbeFit(
        replace(cluster, calibration=probe_calibration(file, cluster, draws, measurements)),
        {key: Estimate(value, *ends[key].tolist()) for key, value in values.items()},
        _PROBES[model] | _SHARED_MEMORY_PROBES,
        residuals if measurements.num_ranks > 1 else (),
        draws,
    )


def num_hosts(measurements: Measurements) -> int:
    """Return the recorded number of hosts, else --nnodes of the command, else 1."""
    if rank_hosts := RankHosts.from_measurements(measurements):
        return rank_hosts.num_hosts
    match = re.search(r"--nnodes[ =]([1-9][0-9]{0,5})\b", str(measurements.provenance.get("command", "")))
    return int(match[1]) if match else 1


def fitting_model(measurements: Measurements) -> ProbeModel:
    """Return the model for the hosts of the measurements."""
    if num_hosts(measurements) == 1:
        return ProbeModel.HOST
    return ProbeModel.HOSTS if RankHosts.from_measurements(measurements) else ProbeModel.NETWORK


def _redrawn(measurements: Measurements, random: np.random.Generator) -> Measurements:
    probes = tuple(
        structs.replace(probe, times_s=tuple(random.choice(probe.times_s, len(probe.times_s)).tolist()))
        for probe in measurements.probes
    )
    return structs.replace(measurements, probes=probes)


def fitted_cluster(measurements: Measurements, model: ProbeModel, name: str) -> Network:
    """Return the fitted network without intervals. Raises ValueError for too few probes."""
    machine = measurements.provenance.get("machine", "unknown machine")
    parsed(values.Text, machine, "provenance.machine")
    source = f"measured: {machine}, probes of {measurements.num_ranks} ranks"
    if model is not ProbeModel.NETWORK:
        cores = measurements.provenance.get("cores")
        if cores is None:
            raise ValueError("provenance.cores is missing: say --model network, or measure again")
        parsed(values.Count, cores, "provenance.cores")
        if model is ProbeModel.HOST:
            return Network(name, calibrate_host(measurements, cores).spec, "one host, calibrated by ringsim", source)
        spec = calibrate_hosts(measurements, cores).spec
        return Network(name, spec, "several hosts, calibrated by ringsim", source)
    uniform = calibrate_uniform(measurements).spec
    # Each rank is a host, with half of the latency at each end: equivalent if a rank sends to one rank at a time.
    link = uniform.host.link
    nics = Nics(link.latency_s / 2, link.bandwidth_bytes_per_s)
    spec = Spec(host=Host(link=Link(), nics=nics), ranks_per_host=1, processor=uniform.processor)
    return Network(name, spec, "hosts of one rank each, calibrated by ringsim", source)


def _values(cluster: Network, model: ProbeModel) -> dict[str, float]:
    """Return the parameters; rates of shared memory are for messages that fill a slot."""
    numbers = quantities(cluster.spec)
    return {name: numbers[name] for name in (*_PROBES[model], *_SHARED_MEMORY_PROBES) if name in numbers}


def probe_calibration(file: str, cluster: Network, draws: Sequence[Network], measurements: Measurements) -> Calibration:
    """Return the calibration for the network file, with the first `NUM_DRAWS` of the draws."""
    fitted = quantities(cluster.spec)
    drawn = [quantities(draw.spec) for draw in draws[:NUM_DRAWS]]
    names = list(fitted)
    logarithms = np.array([[_log_ratio(draw.get(name), fitted[name]) for name in names] for draw in drawn])
    kept = [place for place, column in enumerate(logarithms.T) if column.any()]
    noise, latency_noise = _noises(cluster, measurements) if measurements.num_ranks > 1 else (0.0, 0.0)
    return Calibration(
        (file,),
        num_ranks=measurements.num_ranks if cluster.spec.ranks_per_host is None else None,
        noise=noise,
        latency_noise=latency_noise,
        parameters=tuple(names[place] for place in kept),
        draws=rounded_ratios(logarithms[:, kept]) if kept else (),
    )


def _log_ratio(drawn: float | None, fitted: float) -> float:
    """Return 0 if a value means no cost or no limit, since other parameters compensate for it."""
    return math.log(drawn / fitted) if drawn and fitted and math.isfinite(drawn) and math.isfinite(fitted) else 0.0


def _noises(cluster: Network, measurements: Measurements) -> tuple[float, float]:
    free_bytes = replace(cluster, spec=with_free_bytes(cluster.spec))
    residuals: list[float] = []
    byte_shares: list[float] = []
    for probe, simulated_s in _message_probes(measurements, cluster.shared_memory is not None):
        time_s = simulated_s(cluster)
        residuals += [math.log(time_s / block_s) for block_s in probe.times_s]
        byte_shares += [max(1 - simulated_s(free_bytes) / time_s, 0.0)] * len(probe.times_s)
    return noises(np.array(residuals), np.array(byte_shares))


def _message_probes(measurements: Measurements, is_shared: bool) -> Iterator[tuple[Probe, Callable[[Network], float]]]:
    """Yield the probes of rounds of messages, and functions from a network to simulated seconds."""
    num_ranks = measurements.num_ranks
    for probe in measurements.probes_of("shift", in_flight=1):
        yield probe, partial(shift_s, num_ranks=num_ranks, size_bytes=probe.size_bytes)
    for num_pairs in range(1, num_ranks // 2 + 1):
        for probe in measurements.probes_of("exchange", in_flight=1, subject=str(num_pairs)):
            yield probe, partial(exchange_s, num_ranks=num_ranks, num_pairs=num_pairs, size_bytes=probe.size_bytes)
    for probe in measurements.probes_of("shift", transport="shm") if is_shared else []:
        yield probe, partial(shift_s, num_ranks=num_ranks, size_bytes=probe.size_bytes, runtime=OURS.runtime)


# Noise alone must not move a prediction by more than the error at which we say that the model does not fit: beyond it
# nobody can tell a wrong model, or a better algorithm, from a busy moment of the machine.
TOO_WIDE = MISFIT


def with_interval(fit: ProbeFit, predict: Callable[[Network], float], num_draws: int | None = None) -> Estimate:
    """Return a prediction for the fitted network, with its interval (see `SURE`) over the bootstrap's networks.

    num_draws: limit of these networks, for slow predictions.
    """
    times = [predict(draw) for draw in fit.draws[:num_draws]]
    time_s = predict(fit.cluster)
    low_s, high_s = np.quantile(times or [time_s], SURE_QUANTILES, method="nearest").tolist()
    return Estimate(time_s, min(low_s, time_s), max(high_s, time_s))


@dataclass(frozen=True, slots=True)
class ProbeNoise:
    """The effect of a probe's noise on its predicted round of a ring."""

    probe: Probe
    predicted: Estimate

    @property
    def too_wide(self) -> bool:
        return self.largest_error > TOO_WIDE

    @property
    def largest_error(self) -> float:
        return max(map(abs, self.predicted.off_by))

    def line(self) -> str:
        (low_s, high_s), (low, high) = p10_p90(self.probe.times_s), self.predicted.off_by
        return warning_line("busy", size_bytes=self.probe.size_bytes, low_s=low_s, high_s=high_s, low=low, high=high)


def probe_noise(measurements: Measurements, fit: ProbeFit) -> ProbeNoise | None:
    """Return the larger noise of the shortest and the longest message; None without messages."""
    probes = measurements.probes_of("shift", in_flight=1)
    if not probes or measurements.num_ranks == 1:
        return None
    num_ranks = measurements.num_ranks

    def noise_of(probe: Probe) -> ProbeNoise:
        return ProbeNoise(probe, with_interval(fit, lambda cluster: shift_s(cluster, num_ranks, probe.size_bytes)))

    return max(map(noise_of, (probes[0], probes[-1])), key=lambda noise: noise.largest_error)


def busy_warning(measurements: Measurements, fit: ProbeFit) -> str:
    """Warn of probes that scatter too much for predictions."""
    noise = probe_noise(measurements, fit)
    return noise.line() if noise and noise.too_wide else ""
