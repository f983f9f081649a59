"""`LogParameters`: the parameters of a fit to logs, and their priors; `fit` finds their posterior.

Priors are the latencies and shares of the bandwidth in NCCL's own model (version 2.30, src/graph/tuning.cc), each
within a factor. Bandwidths of links and NICs come from the times alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ringsim.calibration.timings import Timing
from ringsim.libraries import CallColumns, Rates, senders_per_host
from ringsim.measurements import RING_TESTS
from ringsim.network import BANDWIDTHS, OF_THE_LIBRARY, Floats, Nics, Protocol, Tuning, parameter_names
from ringsim.schedule import Bools

# NCCL's model. Microseconds: start, hops of the ring within and across hosts, the same of trees; share of bandwidth.
_NCCL = {
    "LL": (6.6, 0.6, 2.7, 0.6, 5.0, 0.25),
    "LL128": (14.0, 1.9, 4.0, 1.25, 8.5, 0.92),
    "Simple": (8.4, 3.4, 14.0, 4.0, 14.0, 1.0),
}
_TREE_SHARE = 0.92
_PAT_SHARE = 0.75
_MESSAGE_SHARE = 0.93  # of public logs of InfiniBand: 0.90 to 0.94
_RING_FILL = 0.2  # of public logs of NVLink on 2 to 8 GPUs: 0.1 to 0.4
_SWITCH_SHARE = 0.85  # Hopper's, there called nvlsEfficiency
# How far each may be off: 0.5 is a factor of 1.65 in one case of three. What crosses hosts depends on the network, TCP
# or InfiniBand, and is known least. Simple's share is 1 by definition.
_START, _LINK_HOP, _HOP, _MESSAGE_START, _TREE_HOPS, _TREE, _FILL = 0.5, 0.5, 1.5, 1.5, 0.3, 0.1, 0.5
_MESSAGE = 0.04
_SHARES = {"LL": 0.4, "LL128": 0.1, "Simple": 1e-6}
_VENDOR = 1.0  # a vendor's figure for a NIC: messages reach a share of it, or use one NIC of several
_MOST_NICS = 16  # of a host, where its ranks have not one each
ANY = 20.0  # of a logarithm: nothing is known before
_LATENCIES, _BANDWIDTHS = 1.0, math.log(2)  # offsets of further starting points from the prior


class Assumption(NamedTuple):
    """Facts that are not fitted; the likeliest combination is chosen.

    num_nics: of a host; 0: one per rank. two_host_passes: as in `Tuning`. adds: whether switches reduce.
    """

    num_nics: int
    two_host_passes: float
    adds: bool


def assumptions(cases: Sequence[Timing], nics: Nics | None) -> list[Assumption]:
    """Return all assumptions that the cases can tell apart, the default first.

    Only a ring in addition to an all_reduce separates fast algorithms from fast links.
    """
    rings = [case for case in cases if case.call.collective in RING_TESTS]
    across = [case for case in rings if case.call.num_nodes > 1]
    senders = senders_per_host(case.call for case in across)
    counts = [nics.count] if nics else [0, *(range(1, min(max(senders), _MOST_NICS + 1)) if len(senders) > 1 else ())]
    on_two = {case.call.collective == "all_reduce" for case in across if case.call.num_nodes == 2}
    may_add = any(case.may_use_switch for case in cases)
    on_one = {case.call.collective == "all_reduce" for case in rings if case.call.num_nodes == 1}
    return [
        Assumption(count, passes, adds)
        for adds in ((True, False) if may_add and len(on_one) > 1 else (may_add,))
        for count in counts
        for passes in ((2.0, 1.0) if len(on_two) > 1 else (2.0,))
    ]


class LogParameters:
    """The parameters in their order, and their meaning under an assumption."""

    def __init__(self, cases: Sequence[Timing], nics: Nics | None, assumption: Assumption) -> None:
        self.nics = nics
        self.assumption = assumption
        self.within = any(case.call.num_nodes == 1 for case in cases)
        self.across = any(case.call.num_nodes > 1 for case in cases)
        self._has_pat = any(case.call.settings.uses_pat for case in cases)
        self.names = parameter_names(_NCCL)

    def beliefs(self, calls: CallColumns, log_times: Floats) -> tuple[Floats, Floats]:
        """Return the logarithms of the prior and its deviations."""
        values, off = [self._fastest(calls, log_times, 1), self._fastest(calls, log_times, 2)], [ANY, ANY]
        if self.nics:
            values[1], off[1] = self.nics.bandwidth_bytes_per_s, _VENDOR
        for protocol, (start, link, hop, _, _, share) in _NCCL.items():
            values += [start * 1e-6, link * 1e-6, hop * 1e-6, share]
            off += [_START, _LINK_HOP, _HOP, _SHARES[protocol]]
        values += [_TREE_SHARE, 1.0, 1.0, _MESSAGE_SHARE, _RING_FILL]
        return np.log(values), np.array([*off, _TREE, _TREE_HOPS, _MESSAGE_START, _MESSAGE, _FILL])

    def starts(self, prior: Floats) -> list[Floats]:
        """Return starting points: the prior, with more latency, and with more bandwidth."""
        latencies = np.array([name.endswith("latency") for name in self.names])
        bandwidths = np.array([name in BANDWIDTHS for name in self.names])
        return [prior, prior + _LATENCIES * latencies, prior + _BANDWIDTHS * bandwidths]

    def _fastest(self, calls: CallColumns, log_times: Floats, num_nodes: int) -> float:
        """Return the largest rate of bytes per link or NIC, as a first guess."""
        where = calls.nodes == 1 if num_nodes == 1 else calls.nodes > 1
        used = np.where(calls.nodes == 1, 1, np.minimum(calls.senders, self.assumption.num_nics or math.inf))
        return float((calls.size / used / np.exp(log_times))[where].max()) if where.any() else 1e9

    def rates(self, logarithms: Floats) -> Rates:
        """Return the rates; shares of a bandwidth are at most 1."""
        values = np.exp(logarithms).tolist()
        link, nic = values[:2]
        last = dict(zip(OF_THE_LIBRARY, values[-len(OF_THE_LIBRARY) :], strict=True))
        protocols = []
        for index, (name, (_, link_us, hop_us, tree_link_us, tree_hop_us, _)) in enumerate(_NCCL.items()):
            start, link_hop, hop, share = values[2 + 4 * index : 6 + 4 * index]
            protocols.append(Protocol(
                name, start, link_hop, hop, link_hop * tree_link_us / link_us,
                last["tree_latency"] * hop * tree_hop_us / hop_us, min(share, 1.0)
            ))  # fmt: skip
        library = Tuning(
            min(last["tree_share"], 1.0),
            _SWITCH_SHARE if self.assumption.adds else None,
            message_start=last["message_start"],
            message_share=min(last["message_share"], 1.0),
            two_host_passes=self.assumption.two_host_passes,
            pat_share=_PAT_SHARE if self._has_pat else None,
            ring_fill=last["ring_fill"] if self.within else 0.0,
        )
        return Rates(
            link if self.within else math.inf,
            nic if self.across or self.nics else math.inf,
            self.assumption.num_nics or math.inf,
            tuple(protocols),
            library,
        )


_OUTLIER = 3.0  # in deviations: farther times count less (Student's t)
_MAX_STEPS = 300
_STEP = 1e-5  # of a logarithm, for derivatives
_CONVERGED = 1e-9
_GIVE_UP = 1e12
_HELD = 1e12  # the weight of a belief that is held to

Model = Callable[[Floats], Floats]  # logarithms of the parameters -> logarithms of the times


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """The distribution of the logarithms of the parameters after the fit.

    mode, covariance: (num_parameters,) and (num_parameters, num_parameters).
    residuals: (num_times,), logarithm of predicted over measured.
    influence: (num_times, num_parameters), derivative of the logarithm of each time.
    cost: -2 log posterior density, plus a constant.
    """

    mode: Floats
    covariance: Floats
    residuals: Floats
    influence: Floats
    cost: float

    @property
    def deviation(self) -> Floats:
        """(num_parameters,)."""
        return np.sqrt(np.diag(self.covariance))


def fit(
    model: Model, log_times: Floats, prior: Floats, prior_deviation: Floats, noise: float, held: Bools, start: Floats
) -> Posterior:
    """Return the mode of the posterior near `start` (Levenberg-Marquardt), and its width there (Laplace).

    noise: standard deviation of the logarithm of a time; larger residuals widen the posterior.
    held: (num_parameters,), those that keep prior and deviation.
    """
    mode, belief = np.where(held, prior, start), 1 / prior_deviation**2
    weight = np.where(held, _HELD, belief)

    def cost(at: Floats) -> float:
        misfit = _OUTLIER**2 * np.log1p(((model(at) - log_times) / noise / _OUTLIER) ** 2).sum()
        return float(misfit + (weight * (at - prior) ** 2).sum())

    damping, least = 1e-2, cost(mode)
    for _ in range(_MAX_STEPS):
        gradient, curvature, _ = _around(model, mode, log_times, noise)
        gradient, curvature = gradient + weight * (mode - prior), curvature + np.diag(weight)
        step, cost_there, damping = _descend(cost, mode, gradient, curvature, damping, least)
        if step is None:
            break
        mode, gain, least = mode - step, least - cost_there, cost_there
        if gain < _CONVERGED * max(least, 1.0):
            break
    _, curvature, influence = _around(model, mode, log_times, noise)
    residuals = model(mode) - log_times
    scale = max(1.0, _deviation_of(residuals) / noise) ** 2
    covariance = np.linalg.inv(curvature / scale + np.diag(belief))
    return Posterior(mode, np.asarray(covariance, np.float64), residuals, influence, least)


def _deviation_of(residuals: Floats) -> float:
    return float(np.median(np.abs(residuals))) / 0.6745


def _around(model: Model, at: Floats, log_times: Floats, noise: float) -> tuple[Floats, Floats, Floats]:
    """Return the gradient and curvature of half the misfit, and the derivatives of the times."""
    here = model(at)
    columns = [(model(at + _STEP * unit) - here) / _STEP for unit in np.eye(len(at))]
    influence = np.stack(columns, axis=1)
    off = (here - log_times) / noise
    weights = 1 / (1 + (off / _OUTLIER) ** 2) / noise
    return influence.T @ (weights * off), influence.T @ (influence * (weights / noise)[:, None]), influence


def _descend(
    cost: Callable[[Floats], float], at: Floats, gradient: Floats, curvature: Floats, damping: float, least: float
) -> tuple[Floats | None, float, float]:
    """Return a step that lowers the cost, or None, the cost after it, and the next damping."""
    while damping < _GIVE_UP:
        step: Floats = np.asarray(
            np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient), np.float64
        )
        cost_there = cost(at - step)
        if cost_there <= least:
            return step, cost_there, max(damping / 5, 1e-9)
        damping *= 4
    return None, least, damping
