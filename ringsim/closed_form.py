"""The textbook times of ring collectives, to hold the simulator against."""

from ringsim.collective import Collective
from ringsim.network import Network


def ring_time_s(collective: Collective, num_ranks: int, size_bytes: float, network: Network) -> float | None:
    """Seconds that a ring takes on uniform links; None if the collective has no ring formula.

    With n ranks, S bytes in all, alpha = latency + both overheads, bandwidth B and reduction rate R:
    reduce_scatter (n-1)(alpha + S/(nB) + S/(nR)), all_gather (n-1)(alpha + S/(nB)), all_reduce their sum.
    Source: Thakur, Rabenseifner and Gropp 2005, section 4, with beta = 1/B and gamma = 1/R; Patarasuk and
    Yuan 2009. Valid where n divides S; otherwise a lower bound, since some chunks are larger.
    """
    chunk_bytes = size_bytes / num_ranks
    hop_s = network.latency_s + network.send_overhead_s + network.receive_overhead_s
    hop_s += chunk_bytes / network.bandwidth_bytes_per_s
    reduce_s = chunk_bytes / network.reduce_bytes_per_s
    rounds = num_ranks - 1
    times = {
        Collective.REDUCE_SCATTER: rounds * (hop_s + reduce_s),
        Collective.ALL_GATHER: rounds * hop_s,
        Collective.ALL_REDUCE: 2 * rounds * hop_s + rounds * reduce_s,
    }
    return times.get(collective)
