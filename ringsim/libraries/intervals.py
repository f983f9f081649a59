"""`intervals`: the bounds of a time with probability `INSIDE`, from the network file alone.

Three independent errors of the logarithm are combined: the parameters are uncertain (draws of them), times scatter
about every formula and simulation (the residuals of the fit), and other collectives or hosts differ from the calibrated
ones. An interval also covers the error of guessed NICs, see `guessed_from`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from msgspec import structs

from ringsim.estimates import FARTHEST, INSIDE, INSIDE_DEVIATIONS, Estimate
from ringsim.libraries.call import Call, CallColumns
from ringsim.libraries.nccl_model import Rates, bytes_s, rates_of, times_s
from ringsim.measurements import RING_TESTS
from ringsim.network import BANDWIDTHS, OF_THE_LIBRARY, Calibration, Floats, Network, scaled, with_free_bytes
from ringsim.schedule import Bools

NUM_DRAWS = 16
_FIGURES = 4
_FEW = 5  # of residuals: so few do not tell how far four of five lie
# Errors of times that were not calibrated, from public logs: of the part of bytes, and of latencies.
_BYTES_ELSEWHERE, _LATENCY_ELSEWHERE = 0.06, 0.3


def draw_ratios(covariance: Floats) -> tuple[tuple[float, ...], ...]:
    """Return draws from a posterior, as ratios of each parameter to its mode, in opposite pairs.

    covariance: of the logarithms, (num_parameters, num_parameters).
    """
    values, vectors = np.linalg.eigh(covariance)
    normal = np.random.default_rng(0).standard_normal((NUM_DRAWS // 2, len(values)))
    half = normal * np.sqrt(np.maximum(values, 0)) @ vectors.T
    return rounded_ratios(np.concatenate([half, -half]))


def rounded_ratios(logarithms: Floats) -> tuple[tuple[float, ...], ...]:
    """Return draws, (num_draws, num_parameters), as in a network file."""
    drawn = np.exp(np.clip(logarithms, -FARTHEST, FARTHEST)).tolist()
    return tuple(tuple(float(f"{ratio:.{_FIGURES}g}") for ratio in draw) for draw in drawn)


def noises(residuals: Floats, byte_share: Floats, least: float = 0.0) -> tuple[float, float]:
    """Return `noise` and `latency_noise` of a calibration, so that the share `INSIDE` of the residuals lies within.

    residuals, byte_share: (num_times,), logarithms of predicted over measured, and the share of the bytes in a time.

    A quantile assumes no distribution, and shows contradictory logs, of which the fit follows only some.
    """
    is_bytes = byte_share >= 0.5
    classes = [residuals[of_class] if of_class.sum() >= _FEW else residuals for of_class in (is_bytes, ~is_bytes)]
    quantiles = [float(np.quantile(np.abs(some), INSIDE)) if len(some) else 0.0 for some in classes]
    noise, latency_noise = (max(least, round(quantile / INSIDE_DEVIATIONS, 4)) for quantile in quantiles)
    return noise, latency_noise


def byte_share(rates: Rates, columns: CallColumns) -> Floats:
    """Return the share of the bytes in each time, (num_calls,).

    The measured steps of a ring are left out, since they do not separate latency from bytes.
    """
    rates = replace(rates, library=structs.replace(rates.library, ring_steps=()))
    return np.minimum(bytes_s(rates, columns) / times_s(rates, columns), 1.0)


def intervals(network: Network, calls: Sequence[Call]) -> list[Estimate]:
    """Return the interval of each call by the formulas; none if the network has no uncertainty."""
    calibration = network.calibration
    if calibration is None or not calibration.draws or not calls:
        return []
    columns, rates = CallColumns.from_calls(calls), rates_of(network.spec)
    time_s = times_s(rates, columns)
    drawn_s = np.array([times_s(drawn, columns) for drawn in _drawn_rates(network, calibration)])
    known = {(cells.collective, cells.num_ranks, cells.num_hosts) for cells in calibration.cells}
    is_known = np.array([(asked.collective, asked.num_ranks, asked.num_nodes) in known for asked in calls])
    factor = _factors(calibration, time_s, drawn_s, byte_share(rates, columns), is_known)
    other_s = _with_other_nics_s(network, rates, columns, time_s)
    ends = np.minimum(time_s, other_s) / factor, np.maximum(time_s, other_s) * factor
    return [Estimate(*row) for row in np.stack([time_s, *ends], axis=1).tolist()]


@dataclass(frozen=True, slots=True)
class SimulatedDraws:
    """A network from probes, likely alternatives to it, and the network if bytes took no time."""

    network: Network
    calibration: Calibration
    draws: list[Network]
    free_bytes: Network

    @classmethod
    def from_network(cls, network: Network) -> Self | None:
        """Return the draws; None for a network without uncertainty, and for one from logs.

        A simulation leaves out most of the effects that were fitted to logs.
        """
        calibration = network.calibration
        if calibration is None or not calibration.draws or network.spec.protocols:
            return None
        draws = drawn_networks(network, calibration)
        return cls(network, calibration, draws, replace(network, spec=with_free_bytes(network.spec)))

    def interval(self, time_s: float, predict: Callable[[Network], float]) -> Estimate | None:
        if not 0 < time_s < np.inf:
            return None
        drawn_s = np.array([[predict(draw)] for draw in self.draws])
        byte_share = np.array([max(1 - predict(self.free_bytes) / time_s, 0.0)])
        factor = float(_factors(self.calibration, np.array([time_s]), drawn_s, byte_share, np.array([False]))[0])
        return Estimate(time_s, time_s / factor, time_s * factor)


def _factors(calibration: Calibration, time_s: Floats, drawn_s: Floats, byte_share: Floats, is_known: Bools) -> Floats:
    """Return the factor by which each time may be longer or shorter, (num_times,).

    drawn_s: (num_draws, num_times). is_known: the same collective on as many ranks and hosts was calibrated.
    """

    def mixed(of_bytes: float, of_latency: float | None) -> Floats:
        return byte_share * of_bytes + (1 - byte_share) * (of_bytes if of_latency is None else of_latency)

    uncertain = np.mean(np.log(drawn_s / time_s) ** 2, axis=0)
    noise = mixed(calibration.noise, calibration.latency_noise)
    elsewhere = np.where(is_known, 0.0, mixed(_BYTES_ELSEWHERE, _LATENCY_ELSEWHERE))
    return np.asarray(np.exp(INSIDE_DEVIATIONS * np.sqrt(uncertain + noise**2 + elsewhere**2)))


def drawn_networks(network: Network, calibration: Calibration) -> list[Network]:
    """Return networks that are about as likely as one from probes."""
    drawn = (dict(zip(calibration.parameters, draw, strict=True)) for draw in calibration.draws)
    return [replace(network, spec=scaled(network.spec, ratios)) for ratios in drawn]


def _drawn_rates(network: Network, calibration: Calibration) -> list[Rates]:
    if not network.spec.protocols:
        return [rates_of(drawn.spec) for drawn in drawn_networks(network, calibration)]
    rates = rates_of(network.spec)
    return [_scaled(rates, dict(zip(calibration.parameters, draw, strict=True))) for draw in calibration.draws]


def _with_other_nics_s(network: Network, rates: Rates, columns: CallColumns, time_s: Floats) -> Floats:
    """Return the times, (num_calls,), if all senders of a host share the observed rate of its guessed NICs.

    The logs allow no rate further from the guess.
    """
    other_s, senders = time_s.copy(), np.where(columns.nodes > 1, np.ceil(columns.senders), 0)
    for num_senders in set(senders[senders > 0].tolist()):
        known = guessed_from(network, int(num_senders))
        if known is not None:
            shared = replace(rates, num_nics=1, nic_bytes_per_s=known * rates.nic_bytes_per_s)
            other_s = np.where(senders == num_senders, times_s(shared, columns), other_s)
    return other_s


# The parameters that multiply the rates; {} is the name of the protocol.
_OF_PROTOCOLS = {
    "start_s": ("{} start",),
    "link_latency_s": ("{} link_latency",),
    "hop_latency_s": ("{} hop_latency",),
    "tree_link_latency_s": ("{} link_latency",),
    "tree_hop_latency_s": ("{} hop_latency", "tree_latency"),
    "share": ("{} share",),
}
_OF_LIBRARY = {name: (name,) for name in OF_THE_LIBRARY if name != "tree_latency"}  # which is of hops, above
_OF_RATES = {"link_bytes_per_s": BANDWIDTHS[:1], "nic_bytes_per_s": BANDWIDTHS[1:]}


def _scaled(rates: Rates, ratios: Mapping[str, float]) -> Rates:
    def changes(scaled: Any, places: Mapping[str, tuple[str, ...]], protocol: str = "") -> dict[str, Any]:
        changed = {}
        for field, names in places.items():
            if (value := getattr(scaled, field)) is not None:
                for name in names:
                    value *= ratios.get(name.format(protocol), 1.0)
                changed[field] = min(value, 1.0) if field.endswith("share") else value
        return changed

    protocols = [structs.replace(some, **changes(some, _OF_PROTOCOLS, some.name)) for some in rates.protocols]
    library = structs.replace(rates.library, **changes(rates.library, _OF_LIBRARY))
    return replace(rates, protocols=tuple(protocols), library=library, **changes(rates, _OF_RATES))


def senders_per_host(calls: Iterable[Call]) -> set[int]:
    """Return how many ranks of a host send to other hosts at once, over all calls."""
    across = [call for call in calls if call.num_nodes > 1]
    return {math.ceil(senders) for senders in CallColumns.from_calls(across).senders} if across else set()


def guessed_from(cluster: Network, num_senders: int) -> int | None:
    """Return how many ranks of a host sent in the logs from which the rate of `num_senders` is guessed.

    None if it is no guess: the NICs were given, or the logs have as many senders, or more and also several numbers of
    senders, which show the number of NICs.
    """
    calibration = cluster.calibration
    if calibration is None or calibration.senders_per_host is None or cluster.spec.host.nics.count:
        return None
    seen, most = _seen(calibration), calibration.senders_per_host
    if most > max(seen, default=0):  # groups of ranks, which the cells do not tell, sent at once
        seen = {most}
    if num_senders in seen:
        return None
    if num_senders > max(seen):
        return max(seen)
    several = len(_seen(calibration, RING_TESTS)) > 1  # several by the rule of the fit, see `assumptions`
    return None if several else min(senders for senders in seen if senders > num_senders)


def _seen(calibration: Calibration, tests: tuple[str, ...] = ()) -> set[int]:
    return senders_per_host(
        Call(cells.collective, 1, cells.num_ranks, cells.num_hosts)
        for cells in calibration.cells
        if not tests or cells.collective in tests
    )
