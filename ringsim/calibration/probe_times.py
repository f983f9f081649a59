"""The time of a shift by simulation, and what a call takes longer after a computation by its probes."""

from ringsim.algorithms import ring_all_gather
from ringsim.measurements import Measurements
from ringsim.network import AnyNetwork
from ringsim.schedule import Schedule
from ringsim.simulation import predict_time


def shift_s(network: AnyNetwork, num_ranks: int, size_bytes: int) -> float:
    """Return the simulated seconds of a round in which every rank sends `size_bytes` to its right neighbour."""
    ring = ring_all_gather(num_ranks)
    step = ring.steps[0]
    columns = [(step.src, step.dst, step.chunk, step.reduce)]
    shift = Schedule.from_columns(ring.collective, "shift", num_ranks, num_ranks, columns)
    return predict_time(shift, network, num_ranks * size_bytes, in_order=True)


def cold_call_s(measurements: Measurements, kind: str) -> float:
    """Return what a call of that kind ("call", "call/dist", "shm/call") takes longer after a walk through memory.

    A computation leaves neither the code of a call nor its data in the caches, and its threads asleep. 0 if there are
    no such probes.
    """
    cold, warm = (measurements.probes_of(f"{kind}/{state}") for state in ("cold", "warm"))
    return max(cold[0].median_s - warm[0].median_s, 0.0) if cold and warm else 0.0
