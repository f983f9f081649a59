"""`calibrate_logs`: from the logs of a cluster to a `Cluster` with the protocols of its library.

Each time is what `protocol_time` says for the parameters; they are the most likely ones given the times and what is
known before, which is NCCL's own model (version 2.30, src/graph/tuning.cc): its latencies and shares of the bandwidth,
each believed only up to a factor. Bandwidths of links and NICs come from the times alone. So a log of one node count
gives a network for others: what it cannot tell apart, such as the start and the hops, keeps the ratio that NCCL has,
and a parameter that changes no time is NCCL's. What a ring within a host needs to fill, of which NCCL's model says
nothing, is believed as it is on other clusters.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ringsim.calibration.cases import FittedParameter, TimedCase, repeated
from ringsim.calibration.doubts import contradiction_line, nic_line, senders_per_host
from ringsim.calibration.posterior import Posterior, fit
from ringsim.calibration.protocol_time import TESTS, Bools, QuestionColumns, Rates, times_s
from ringsim.calibration.ring_steps import with_ring_steps
from ringsim.measurements import PT2PT_BANDWIDTH
from ringsim.network import CalibratedCells, Calibration, Cluster, Floats, Host, Library, Link, Nics, Protocol, Spec

# NCCL's model. Microseconds: start, hops of the ring within and across hosts, the same of trees; share of bandwidth.
_NCCL = {
    "LL": (6.6, 0.6, 2.7, 0.6, 5.0, 0.25),
    "LL128": (14.0, 1.9, 4.0, 1.25, 8.5, 0.92),
    "Simple": (8.4, 3.4, 14.0, 4.0, 14.0, 1.0),
}
_TREE_SHARE = 0.92
_RING_FILL = 0.2  # of public logs of NVLink on 2 to 8 GPUs: 0.1 to 0.4
_SWITCH_SHARE = 0.85  # Hopper's, there called nvlsEfficiency
_ADDING_SWITCHES = ("H100", "H200", "H800", "H20", "GH200")  # GPUs that hang on switches which add
# How far each may be off: 0.5 is a factor of 1.65 in one case of three. What crosses hosts depends on the network, TCP
# or InfiniBand, and is known least. Simple's share is 1 by definition.
_START, _LINK_HOP, _HOP, _MESSAGE_START, _TREE_HOPS, _TREE, _FILL = 0.5, 0.5, 1.5, 1.5, 0.3, 0.1, 0.5
_SHARES = {"LL": 0.4, "LL128": 0.1, "Simple": 1e-6}
_VENDOR = 1.0  # a vendor's figure for a NIC: what crosses hosts reaches a share of it, or uses one NIC of several
_ANY = 20.0  # of a logarithm: nothing is known before
NOISE = 0.05  # of a time, when a run is repeated
_IMPORTANT = 0.2  # of a time: what a parameter must change it by, to have been seen in it
_NOTICEABLE = 0.01  # of a time: by what it must change at least with NCCL's value of a parameter, to tell another one
_STREAM_BYTES = 2**20
_BANDWIDTHS = ("host.link.bandwidth", "host.nic.bandwidth")  # of which NCCL's model says nothing


@dataclass(frozen=True, slots=True)
class LogFit:
    """A network, the cases it was fitted to, and how well it reproduces them."""

    cluster: Cluster
    parameters: tuple[FittedParameter, ...]
    cases: tuple[TimedCase, ...]
    errors: tuple[float, ...]


def calibrate_logs(cases: Sequence[TimedCase], name: str, nics: Nics | None = None) -> LogFit:
    """Fit a network to all cases that there is a formula for.

    nics: of each host, if they are known. Their bandwidth is a belief: the times of several hosts say what is reached
    of it, and the latencies need not make up for the difference.
    Raises ValueError if too little was measured.

        >>> from pathlib import Path
        >>> from ringsim import calibrate_logs, cases_of_tables, read_logs
        >>> fit = calibrate_logs(cases_of_tables(read_logs([Path("nccl-tests.log")])), "mine")  # doctest: +SKIP
    """
    used = [case for case in cases if case.collective in TESTS and not _counts_messages(case)]
    if len({(case.collective, case.size_bytes, case.num_ranks) for case in used}) < 3:
        raise ValueError(
            f"{cases[0].file if cases else 'the logs'}: {len(used)} timings of {', '.join(TESTS)}: too few to fit; "
            "at least 3 sizes are needed, best from some KiB to some 100 MiB"
        )
    layout = _Layout(used, nics)
    fitted = _fit(layout, used)
    cluster = with_ring_steps(_cluster(name, layout, layout.rates(fitted.posterior.mode), used), used)
    modes = [_fit(layout, some).posterior.mode for some in _each_log_alone(used)]
    parameters = _parameters(layout, fitted, modes, used)
    errors = tuple(float(error) for error in np.expm1(fitted.posterior.residuals))
    return LogFit(cluster, parameters, tuple(used), errors)


def _counts_messages(case: TimedCase) -> bool:
    """Return whether a case is a stream of small messages, whose number takes time and not their bytes."""
    return case.collective == PT2PT_BANDWIDTH and case.size_bytes < _STREAM_BYTES


def _each_log_alone(cases: Sequence[TimedCase]) -> Iterator[list[TimedCase]]:
    """Yield, for each log that others repeat, the cases without those others': logs may contradict each other."""
    groups = repeated(cases)
    for file in sorted({case.file for some in groups for case in some}):
        others = {id(case) for some in groups if file in {case.file for case in some} for case in some}
        yield [case for case in cases if case.file == file or id(case) not in others]


class _Layout:
    """The parameters that there are, in their order, and what they mean."""

    def __init__(self, cases: Sequence[TimedCase], nics: Nics | None) -> None:
        self.nics = nics
        self.within = any(case.num_nodes == 1 for case in cases)
        self.across = any(case.num_nodes > 1 for case in cases)
        self.adds = any(gpu in case.device for case in cases for gpu in _ADDING_SWITCHES)
        self.names = [*_BANDWIDTHS]
        for protocol in _NCCL:
            self.names += [f"{protocol} {key}" for key in ("start", "link_latency", "hop_latency", "share")]
        self.names += ["tree_share", "tree_latency", "message_start", "ring_fill"]

    def beliefs(self, questions: QuestionColumns, log_times: Floats) -> tuple[Floats, Floats]:
        """Return the logarithms of the prior and its deviations."""
        values, off = [self._fastest(questions, log_times, 1), self._fastest(questions, log_times, 2)], [_ANY, _ANY]
        if self.nics:
            values[1], off[1] = self.nics.bandwidth_bytes_per_s, _VENDOR
        for protocol, (start, link, hop, _, _, share) in _NCCL.items():
            values += [start * 1e-6, link * 1e-6, hop * 1e-6, share]
            off += [_START, _LINK_HOP, _HOP, _SHARES[protocol]]
        values += [_TREE_SHARE, 1.0, 1.0, _RING_FILL]
        return np.log(values), np.array([*off, _TREE, _TREE_HOPS, _MESSAGE_START, _FILL])

    def _fastest(self, questions: QuestionColumns, log_times: Floats, num_nodes: int) -> float:
        """Return a first guess of the bandwidth: bytes over time, where that is most."""
        where = questions.nodes == 1 if num_nodes == 1 else questions.nodes > 1
        return float((questions.size / np.exp(log_times))[where].max()) if where.any() else 1e9

    def rates(self, logarithms: Floats) -> Rates:
        """Return the rates that these parameters stand for."""
        values = np.exp(logarithms).tolist()
        link, nic = values[:2]
        tree_share, tree, message_start, ring_fill = values[-4:]
        protocols = []
        for index, (name, (_, link_us, hop_us, tree_link_us, tree_hop_us, _)) in enumerate(_NCCL.items()):
            start, link_hop, hop, share = values[2 + 4 * index : 6 + 4 * index]
            protocols.append(Protocol(
                name, start, link_hop, hop, link_hop * tree_link_us / link_us, tree * hop * tree_hop_us / hop_us, share
            ))  # fmt: skip
        library = Library(
            tree_share,
            _SWITCH_SHARE if self.adds else None,
            message_start=message_start,
            ring_fill=ring_fill if self.within else 0.0,
        )
        return Rates(
            link if self.within else math.inf,
            nic if self.across or self.nics else math.inf,
            self.nics.count if self.nics else 1,
            tuple(protocols),
            library,
        )


class _Fitted(NamedTuple):
    """A posterior; told: (num_times, num_parameters), whether the time depends on the parameter."""

    posterior: Posterior
    prior_deviation: Floats
    told: Bools


def _fit(layout: _Layout, cases: Sequence[TimedCase]) -> _Fitted:
    """Fit the parameters that some time depends on; the others are held at NCCL's values, until none is left to hold.

    A time depends on a parameter also if another protocol would be the fastest with NCCL's value of it: then small
    changes of the parameter change nothing, and yet the times keep it from being NCCL's.
    """
    questions = QuestionColumns.from_questions([case.question for case in cases])
    log_times = np.log([case.calibrated_s for case in cases])
    prior, deviation = layout.beliefs(questions, log_times)

    def model(at: Floats) -> Floats:
        logarithms: Floats = np.log(times_s(layout.rates(at), questions))
        return logarithms

    held = np.zeros(len(prior), bool)
    while True:
        posterior = fit(model, log_times, prior, deviation, NOISE, held)
        here, told = model(posterior.mode), np.abs(posterior.influence) > _IMPORTANT
        for index, value in enumerate(prior):
            elsewhere = posterior.mode.copy()
            elsewhere[index] = value
            told[:, index] |= np.abs(model(elsewhere) - here) > _NOTICEABLE
        untold = ~told.any(axis=0) & (deviation < _ANY)
        if not (untold & ~held).any():
            return _Fitted(posterior, deviation, told)
        held |= untold


def _cluster(name: str, layout: _Layout, rates: Rates, cases: Sequence[TimedCase]) -> Cluster:
    bulk = rates.protocols[-1]
    link = Link(bulk.link_latency_s, rates.link_bytes_per_s)
    nics = Nics(bulk.hop_latency_s / 2, rates.nic_bytes_per_s, count=rates.num_nics)  # one at each end
    per_host = max(-(-case.num_ranks // case.num_nodes) for case in cases)
    known = layout.across or layout.nics
    spec = Spec(
        host=Host(link=link, nics=nics if known else Nics()),
        ranks_per_host=per_host if known else None,
        protocols=rates.protocols,
        library=rates.library,
    )
    files = sorted({case.file_name for case in cases})
    devices = sorted({case.device for case in cases if case.device})
    senders = None if layout.nics else max(senders_per_host(case.question for case in cases), default=None)
    cluster = Cluster(
        name,
        spec,
        f"calibrated by ringsim: {', '.join(devices) or 'a cluster'}",
        f"measured: fitted to {', '.join(files)}; what they do not tell is NCCL's own model",
        calibration=Calibration(tuple(files), calibrated_cells(cases), senders),
    )
    doubts = "; ".join(filter(None, (contradiction_line(cases), nic_line(cluster, per_host))))
    return replace(cluster, source=f"{cluster.source}; {doubts}") if doubts else cluster


def calibrated_cells(cases: Sequence[TimedCase]) -> tuple[CalibratedCells, ...]:
    """Return the cases without their times, those together that differ in size alone."""
    alike: dict[tuple[str, str, int, int], list[TimedCase]] = {}
    for case in cases:
        alike.setdefault((case.collective, case.algorithm, case.num_ranks, case.num_nodes), []).append(case)
    return tuple(
        CalibratedCells(
            *key, tuple(sorted({case.size_bytes for case in some})), tuple(row for case in some for row in case.rows)
        )
        for key, some in sorted(alike.items())
    )


def _parameters(
    layout: _Layout, fitted: _Fitted, modes: Sequence[Floats], cases: Sequence[TimedCase]
) -> tuple[FittedParameter, ...]:
    """Return the parameters that the times determine, and those on which the prediction rests all the same.

    modes: what the logs say one at a time, where several have the same collective; no interval is narrower.
    """
    posterior, parameters = fitted.posterior, []
    for index, name in enumerate(layout.names):
        mode, deviation = posterior.mode[index], posterior.deviation[index]
        candidates = [mode - 1.96 * deviation, mode + 1.96 * deviation, *(mode[index] for mode in modes)]
        seen = tuple(cases[i] for i in np.flatnonzero(fitted.told[:, index]).tolist())
        if fitted.prior_deviation[index] < 1e-3 or (not seen and name in _BANDWIDTHS):
            continue  # given, or nothing that was measured depends on it
        low, value, high = np.exp([min(candidates), mode, max(candidates)]).tolist()
        parameters.append(FittedParameter(name, value, low, high, seen))
    return tuple(parameters)
