"""`calibrate_logs`: fit a `Network` with the library's protocols to the logs of a cluster.

The fit finds the most likely `log_parameters` of `nccl_model`. Parameters that the logs cannot separate, such as the
start and the hops, keep NCCL's ratio; therefore the log of one number of hosts gives a network for others.

`with_ring_steps`: NCCL chooses protocol and chunk size of a ring across hosts by the bytes per rank. Steps and bends in
its times, which start, latency and bandwidth cannot express, therefore occur at the same bytes per rank on more hosts.
This holds neither within a host nor for trees.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from msgspec import structs

from ringsim.calibration.log_parameters import ANY, LogParameters, Posterior, assumptions, fit
from ringsim.calibration.timings import FittedParameter, Timing, repeated
from ringsim.calibration.warnings import contradiction_warning, implausible_warning, nic_warning, settings_warning
from ringsim.estimates import SURE_DEVIATIONS
from ringsim.libraries import CallColumns, byte_share, draw_ratios, launch_s, noises, predict, senders_per_host, times_s
from ringsim.measurements import RING_TESTS, TESTS
from ringsim.network import BANDWIDTHS, CalibratedCells, Calibration, Floats, Host, Link, Network, Nics, RingStep, Spec
from ringsim.schedule import Bools
from ringsim.units import plural

NOISE = 0.05  # of a time, when a run is repeated
_IMPORTANT = 0.2  # of a time: least influence of a parameter on which the time depends
_NOTICEABLE = 0.01  # of a time: least change with NCCL's value of a parameter that excludes this value
_UNDECIDED = 4.0  # of a cost: an optimum less likely by a factor below e squared may also be true


@dataclass(frozen=True, slots=True)
class LogFit:
    """A fitted network, its cases, and their relative errors."""

    cluster: Network
    parameters: tuple[FittedParameter, ...]
    cases: tuple[Timing, ...]
    errors: tuple[float, ...]

    @property
    def warnings(self) -> dict[str, str]:
        """One line for each kind; "" for none."""
        return {
            "contradictory": contradiction_warning(self.cases),
            "guessed_nics": nic_warning(self.cluster, self.cluster.spec.ranks_per_host or 0),
            "implausible": implausible_warning(self.parameters),
            "not_followed": settings_warning(self.cluster, [case.call for case in self.cases]),
        }


def calibrate_logs(cases: Sequence[Timing], name: str, nics: Nics | None = None) -> LogFit:
    """Fit a network to all cases that have a formula.

    nics: of each host, if known. Their bandwidth is a prior: the times of several hosts show the share that is reached.
    Raises ValueError if too little was measured.

        >>> from ringsim import calibrate_logs, cases_of_tables, read_logs
        >>> fit = calibrate_logs(cases_of_tables(read_logs(["nccl-tests.log"])), "mine")  # doctest: +SKIP
    """
    used = [case for case in cases if not case.call.why_unknown]
    if len({(case.call.collective, case.call.size_bytes, case.call.num_ranks) for case in used}) < 3:
        raise ValueError(
            f"{cases[0].file if cases else 'the logs'}: {plural(len(used), 'timing')} of {', '.join(TESTS)}: too few "
            "to fit; give logs with at least 3 sizes, ideally from some KiB to some 100 MiB"
        )
    fits = [_fit(LogParameters(used, nics, assumption), used) for assumption in assumptions(used, nics)]
    best = min(fits, key=lambda fitted: fitted.posterior.cost)
    layout = best.layout
    cluster = with_ring_steps(_cluster(name, best, used), used)
    optima = [optimum for fitted in fits for optimum in (fitted.posterior, *fitted.others)]
    modes = [optimum.mode for optimum in optima if optimum.cost < best.posterior.cost + _UNDECIDED]
    modes += [_fit(layout, some).posterior.mode for some in _each_log_alone(used)]
    parameters = _parameters(best, modes, used)
    errors = tuple(float(error) for error in np.expm1(best.posterior.residuals))
    return LogFit(cluster, parameters, tuple(used), errors)


def _each_log_alone(cases: Sequence[Timing]) -> Iterator[list[Timing]]:
    """For each log that others repeat, yield all cases but its repetitions in other logs."""
    groups = repeated(cases)
    for file in sorted({case.file for some in groups for case in some}):
        others = {id(case) for some in groups if file in {case.file for case in some} for case in some}
        yield [case for case in cases if case.file == file or id(case) not in others]


class _Fitted(NamedTuple):
    """A posterior under an assumption; others: optima from other starts.

    depends: (num_times, num_parameters), whether the time depends on the parameter.
    """

    layout: LogParameters
    posterior: Posterior
    prior_deviation: Floats
    depends: Bools
    others: tuple[Posterior, ...]


def _fit(layout: LogParameters, cases: Sequence[Timing]) -> _Fitted:
    """Fit the parameters on which a time depends, and hold the others at NCCL's values.

    A time may also exclude NCCL's value, which would make another protocol the fastest, though small changes have no
    effect.
    """
    calls = CallColumns.from_calls([case.call for case in cases])
    log_times = np.log([case.calibrated_s for case in cases])
    prior, deviation = layout.beliefs(calls, log_times)

    def model(at: Floats) -> Floats:
        return np.log(times_s(layout.rates(at), calls))

    def fitted(held: Bools, start: Floats) -> Posterior:
        return fit(model, log_times, prior, deviation, NOISE, held, start)

    held = np.zeros(len(prior), bool)
    optima = sorted((fitted(held, start) for start in layout.starts(prior)), key=lambda optimum: optimum.cost)
    posterior = optima[0]
    while True:
        here, depends = model(posterior.mode), np.abs(posterior.influence) > _IMPORTANT
        for index, value in enumerate(prior):
            elsewhere = posterior.mode.copy()
            elsewhere[index] = value
            depends[:, index] |= np.abs(model(elsewhere) - here) > _NOTICEABLE
        undetermined = ~depends.any(axis=0) & (deviation < ANY)
        if not (undetermined & ~held).any():
            return _Fitted(layout, posterior, deviation, depends, tuple(optima[1:]))
        held |= undetermined
        posterior = fitted(held, posterior.mode)


def _cluster(name: str, fitted: _Fitted, cases: Sequence[Timing]) -> Network:
    layout, posterior = fitted.layout, fitted.posterior
    rates = layout.rates(posterior.mode)
    bulk = rates.protocols[-1]
    link = Link(bulk.link_latency_s, rates.link_bytes_per_s)
    nics = Nics(bulk.hop_latency_s / 2, rates.nic_bytes_per_s, count=layout.assumption.num_nics)  # one at each end
    per_host = max(-(-case.call.num_ranks // case.call.num_nodes) for case in cases)
    known = layout.across or layout.nics
    spec = Spec(
        host=Host(link=link, nics=nics if known else Nics()),
        ranks_per_host=per_host if known else None,
        protocols=rates.protocols,
        library=rates.library,
    )
    files = sorted({case.file_name for case in cases})
    devices = sorted({case.device for case in cases if case.device})
    calls = CallColumns.from_calls([case.call for case in cases])
    noise, latency_noise = noises(posterior.residuals, byte_share(rates, calls), NOISE)
    senders = None if layout.nics else max(senders_per_host(case.call for case in cases), default=None)
    cluster = Network(
        name,
        spec,
        f"calibrated by ringsim: {', '.join(devices) or 'a cluster'}",
        f"measured: fitted to {', '.join(files)}; what they do not tell is NCCL's own model",
        calibration=Calibration(
            tuple(files),
            calibrated_cells(cases),
            senders,
            noise=noise,
            latency_noise=latency_noise,
            parameters=tuple(layout.names),
            draws=draw_ratios(posterior.covariance),
        ),
    )
    warnings = filter(None, (contradiction_warning(cases), nic_warning(cluster, per_host)))
    return replace(cluster, source="; ".join([cluster.source, *warnings]))


def calibrated_cells(cases: Sequence[Timing]) -> tuple[CalibratedCells, ...]:
    """Return the cases without times, grouped by all but the size."""
    alike: dict[tuple[str, str, int, int], list[Timing]] = {}
    for case in cases:
        alike.setdefault(case.group, []).append(case)
    sizes = {key: tuple(sorted({case.call.size_bytes for case in some})) for key, some in alike.items()}
    return tuple(
        CalibratedCells(*key, sizes[key], tuple(row for case in some for row in case.rows))
        for key, some in sorted(alike.items())
    )


def _parameters(fitted: _Fitted, modes: Sequence[Floats], cases: Sequence[Timing]) -> tuple[FittedParameter, ...]:
    """Return the parameters that the times determine or predictions use; every interval contains the `modes`."""
    posterior, parameters = fitted.posterior, []
    for index, name in enumerate(fitted.layout.names):
        mode, deviation = posterior.mode[index], posterior.deviation[index]
        reach = SURE_DEVIATIONS * deviation
        candidates = [mode - reach, mode + reach, *(mode[index] for mode in modes)]
        seen = tuple(cases[i] for i in np.flatnonzero(fitted.depends[:, index]).tolist())
        if fitted.prior_deviation[index] < 1e-3 or (not seen and name in BANDWIDTHS):
            continue  # given, or nothing that was measured depends on it, and NCCL's model says nothing of it
        low, value, high = np.exp([min(candidates), mode, max(candidates)]).tolist()
        parameters.append(FittedParameter(value, low, high, name, seen))
    return tuple(parameters)


FEWEST = 3  # sizes of messages: with fewer the protocols say more
SHORTEST = 1.5  # times the start: shorter times tell little of steps


def with_ring_steps(cluster: Network, cases: Sequence[Timing]) -> Network:
    """Return `cluster` with the ring steps of the shape with most hosts, then with most ranks per host.

    Shapes with too few sizes are skipped; sizes outside a shape's range come from fewer hosts. Rings are the
    collectives for which `cluster` chooses one.
    """
    across = [case for case in cases if case.call.num_nodes > 1 and _may_be_ring(case)]
    if not across:
        return cluster
    taken = predict(cluster, [case.call for case in across])
    rings = [case for case, (_, algorithm) in zip(across, taken, strict=True) if algorithm.startswith("ring ")]
    start_s = launch_s(cluster.spec.protocols)
    by_shape: dict[tuple[int, float], dict[int, list[float]]] = {}  # by the hosts, and the ranks of each
    for case in rings:
        if case.calibrated_s > SHORTEST * start_s:
            rounds = 2 if case.call.collective == "all_reduce" else 1
            step_s = (case.calibrated_s - start_s) / rounds / (case.call.num_ranks - 1)
            seconds = by_shape.setdefault((case.call.num_nodes, case.call.num_ranks / case.call.num_nodes), {})
            seconds.setdefault(math.ceil(case.call.size_bytes / case.call.num_ranks), []).append(step_s)
    known = [shape for shape, seconds in by_shape.items() if len(seconds) >= FEWEST and shape[1].is_integer()]
    if not known:
        return cluster
    most = max(known)
    for shape in sorted(by_shape, reverse=True):
        if shape[1] == most[1]:  # sizes that the rings of more hosts do not reach, as there they are trees
            smallest, largest = min(seconds := by_shape[most]), max(seconds)
            seconds |= {at: times for at, times in by_shape[shape].items() if not smallest <= at <= largest}
    steps = tuple(RingStep(message, time_s) for message, time_s in _nondecreasing(by_shape[most]).items())
    library = structs.replace(cluster.spec.library, ring_steps=steps, ring_ranks=int(most[1]))
    return cluster.with_spec(library=library)


def _nondecreasing(seconds: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return a non-decreasing step time for each message size.

    Isotonic regression of the logarithms by least absolute deviations (pool adjacent violators): one disturbed time
    does not raise the others.
    """
    pools: list[tuple[list[int], list[float]]] = []
    for message, times in sorted(seconds.items()):
        pools.append(([message], list(times)))
        while len(pools) > 1 and _median_s(pools[-2][1]) > _median_s(pools[-1][1]):
            messages, own = pools.pop()
            pools[-1] = (pools[-1][0] + messages, pools[-1][1] + own)
    return {message: _median_s(times) for messages, times in pools for message in messages}


def _median_s(times: Sequence[float]) -> float:
    return math.exp(statistics.median(map(math.log, times)))


def _may_be_ring(case: Timing) -> bool:
    call = case.call
    return case.algorithm in ("nccl", "ring") and call.collective in RING_TESTS and call.settings.groups == 1
