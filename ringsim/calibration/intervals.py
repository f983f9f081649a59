"""`intervals`: between which times the true one lies with a probability of `INSIDE`, by the network file alone.

Three things keep a prediction from being right, and add up as independent errors of a logarithm do: the parameters are
not known for certain (draws from the posterior), times scatter about every formula (the residuals of the fit), and
another collective, or other hosts, are not quite like those that were calibrated.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ringsim.calibration.posterior import Posterior
from ringsim.calibration.protocol_time import Rates, bytes_s, rates_of, times_s
from ringsim.calibration.questions import Question, QuestionColumns
from ringsim.network import Cluster

INSIDE = 0.8
_DEVIATIONS = 1.2816  # on either side of the middle of a normal distribution are 40 % of it
_NUM_DRAWS = 16
_FARTHEST = 3.0  # of a logarithm: what is not known at all is not drawn from farther away
_FIGURES = 4
# Of a time of what was not calibrated, as found on public logs: where bytes take it, and where latencies do.
_BYTES_ELSEWHERE, _LATENCY_ELSEWHERE = 0.08, 0.3


NOT_BOUNDED = "not bounded"  # in tables, in place of an interval that says nothing


class Interval(NamedTuple):
    """The seconds between which a time is expected."""

    low_s: float
    high_s: float


def is_bounded(low: float, high: float) -> bool:
    """Return whether an interval says something: is narrower than what is drawn of what is not known at all.

    >>> is_bounded(1.0, 100.0), is_bounded(1.0, 1000.0)
    (True, False)
    """
    return high < low * math.exp(2 * _FARTHEST)


def draw_ratios(posterior: Posterior) -> tuple[tuple[float, ...], ...]:
    """Return draws from the posterior: how many times the mode each parameter is. They go in opposite pairs."""
    values, vectors = np.linalg.eigh(posterior.covariance)
    normal = np.random.default_rng(0).standard_normal((_NUM_DRAWS // 2, len(values)))
    half = np.clip(normal * np.sqrt(np.maximum(values, 0)) @ vectors.T, -_FARTHEST, _FARTHEST)
    drawn = np.exp(np.concatenate([half, -half])).tolist()
    return tuple(tuple(float(f"{ratio:.{_FIGURES}g}") for ratio in draw) for draw in drawn)


def intervals(network: Cluster, questions: Sequence[Question]) -> list[Interval]:
    """Return the interval of each question; none if the network was not fitted to logs."""
    calibration = network.calibration
    if calibration is None or not calibration.draws or not questions:
        return []
    columns, rates = QuestionColumns.from_questions(questions), rates_of(network.spec)
    time_s = times_s(rates, columns)
    drawn = [
        times_s(_scaled(rates, dict(zip(calibration.parameters, draw, strict=True))), columns)
        for draw in calibration.draws
    ]
    known = {(cells.collective, cells.num_ranks, cells.num_hosts) for cells in calibration.cells}
    byte_share = np.minimum(bytes_s(rates, columns) / time_s, 1.0)
    elsewhere = byte_share * _BYTES_ELSEWHERE + (1 - byte_share) * _LATENCY_ELSEWHERE
    is_elsewhere = np.array([(asked.test, asked.num_ranks, asked.num_nodes) not in known for asked in questions])
    variance = np.mean(np.log(np.array(drawn) / time_s) ** 2, axis=0) + calibration.noise**2
    factor = np.exp(_DEVIATIONS * np.sqrt(variance + np.where(is_elsewhere, elsewhere, 0.0) ** 2))
    return [Interval(*ends) for ends in np.stack([time_s / factor, time_s * factor], axis=1).tolist()]


def _scaled(rates: Rates, ratios: Mapping[str, float]) -> Rates:
    """Return the rates with parameters, named as in `LogParameters`, that are so many times as large."""

    def ratio(name: str) -> float:
        return ratios.get(name, 1.0)

    protocols = [
        replace(
            protocol,
            start_s=protocol.start_s * ratio(f"{protocol.name} start"),
            link_latency_s=protocol.link_latency_s * ratio(f"{protocol.name} link_latency"),
            hop_latency_s=protocol.hop_latency_s * ratio(f"{protocol.name} hop_latency"),
            tree_link_latency_s=protocol.tree_link_latency_s * ratio(f"{protocol.name} link_latency"),
            tree_hop_latency_s=protocol.tree_hop_latency_s
            * ratio(f"{protocol.name} hop_latency")
            * ratio("tree_latency"),
            share=min(protocol.share * ratio(f"{protocol.name} share"), 1.0),
        )
        for protocol in rates.protocols
    ]
    library = rates.library
    library = replace(
        library,
        tree_share=library.tree_share and min(library.tree_share * ratio("tree_share"), 1.0),
        message_start=library.message_start * ratio("message_start"),
        message_share=min(library.message_share * ratio("message_share"), 1.0),
        ring_fill=library.ring_fill * ratio("ring_fill"),
    )
    return replace(
        rates,
        link_bytes_per_s=rates.link_bytes_per_s * ratio("host.link.bandwidth"),
        nic_bytes_per_s=rates.nic_bytes_per_s * ratio("host.nic.bandwidth"),
        protocols=tuple(protocols),
        library=library,
    )
