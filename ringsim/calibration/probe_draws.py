"""`probe_calibration`: what a network from probes says of how sure it is, from which its predictions get intervals.

Nothing in it comes from collectives: the parameters vary as the fits to probes drawn anew do, and times scatter about
predictions as the blocks of probes of messages scatter about their simulation. The longest and the shortest messages of
a shift were fitted, so that only their scatter is in that; messages of other sizes, and those of pairs of ranks, show
how far the model is off as well.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ringsim.calibration.intervals import NUM_DRAWS, noises, rounded_ratios
from ringsim.calibration.probe_times import exchange_s, shift_s
from ringsim.measurements import Measurements, Probe
from ringsim.network import Calibration, Cluster, SharedMemoryNetwork, quantities, shares_memory, with_free_bytes


def probe_calibration(file: str, cluster: Cluster, draws: Sequence[Cluster], measurements: Measurements) -> Calibration:
    """Return what the network file says of a fit to the probes of `measurements`.

    draws: fits to probes drawn anew, of which the first few are kept.
    """
    fitted = quantities(cluster.spec)
    drawn = [quantities(draw.spec) for draw in draws[:NUM_DRAWS]]
    names = list(fitted)
    logarithms = np.array([[_log_ratio(draw.get(name), fitted[name]) for name in names] for draw in drawn])
    kept = [place for place, column in enumerate(logarithms.T) if column.any()]
    noise, latency_noise = _noises(cluster, measurements) if measurements.num_ranks > 1 else (0.0, 0.0)
    return Calibration(
        (file,),
        noise=noise,
        latency_noise=latency_noise,
        parameters=tuple(names[place] for place in kept),
        draws=rounded_ratios(logarithms[:, kept]) if kept else (),
    )


def _log_ratio(drawn: float | None, fitted: float) -> float:
    """Return 0 where one of them says that there is no such cost, or no limit: then other parameters make up for it."""
    return math.log(drawn / fitted) if drawn and fitted and math.isfinite(drawn) and math.isfinite(fitted) else 0.0


def _noises(cluster: Cluster, measurements: Measurements) -> tuple[float, float]:
    free_bytes = replace(cluster, spec=with_free_bytes(cluster.spec))
    residuals: list[float] = []
    byte_shares: list[float] = []
    for probe, simulated_s in _message_probes(measurements, shares_memory(cluster)):
        time_s = simulated_s(cluster)
        residuals += [math.log(time_s / block_s) for block_s in probe.times_s]
        byte_shares += [max(1 - simulated_s(free_bytes) / time_s, 0.0)] * len(probe.times_s)
    return noises(np.array(residuals), np.array(byte_shares))


def _message_probes(measurements: Measurements, is_shared: bool) -> Iterator[tuple[Probe, Callable[[Cluster], float]]]:
    """Yield the probes of which each block is a round of messages, and how long that is in a simulation.

    is_shared: whether the network says what messages through shared memory cost.
    """
    num_ranks = measurements.num_ranks
    for probe in measurements.probes_of("shift", in_flight=1):
        yield probe, partial(shift_s, num_ranks=num_ranks, size_bytes=probe.size_bytes)
    for num_pairs in range(1, num_ranks // 2 + 1):
        for probe in measurements.probes_of(f"exchange/{num_pairs}", in_flight=1):
            yield probe, partial(exchange_s, num_ranks=num_ranks, num_pairs=num_pairs, size_bytes=probe.size_bytes)
    for probe in measurements.probes_of("shm/shift") if is_shared else []:
        yield probe, partial(_shared_shift_s, num_ranks=num_ranks, size_bytes=probe.size_bytes)


def _shared_shift_s(cluster: Cluster, num_ranks: int, size_bytes: int) -> float:
    return shift_s(SharedMemoryNetwork(cluster), num_ranks, size_bytes)
