"""`shift_s`: the simulated time of a round of the shift probe."""

from ringsim.algorithms import ring_all_gather
from ringsim.network import AnyNetwork
from ringsim.schedule import Schedule
from ringsim.simulation import predict_time


def shift_s(network: AnyNetwork, num_ranks: int, size_bytes: int) -> float:
    """Returns the simulated seconds of a round in which every rank sends `size_bytes` to its right neighbour."""
    ring = ring_all_gather(num_ranks)
    step = ring.steps[0]
    columns = [(step.src, step.dst, step.chunk, step.reduce)]
    shift = Schedule.from_columns(ring.collective, "shift", num_ranks, num_ranks, columns)
    return predict_time(shift, network, num_ranks * size_bytes, in_order=True)
