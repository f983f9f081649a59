"""`SharedMemoryTopology`: the ranks of one host, which read received chunks from each other's memory.

The sender copies a chunk to shared memory, unless it is there already, and the receiver adds or copies it from there
(see `MemoryPasses`). Tensors larger than a slot go in portions.
"""

import numpy as np

from ringsim.network.cluster_topology import processors_of
from ringsim.network.spec import MemoryRate, SharedMemory, Spec
from ringsim.network.topology import Floats, Ints, Paths, Processors, Resources, Topology


def rate_at(costs: SharedMemory, published_bytes: int, touched_bytes: int) -> MemoryRate:
    """Return the rates for the bytes that a rank publishes at a time and the bytes that it touches.

    Seconds per byte are interpolated in the logarithm of bytes. If a rank touches at most twice the bytes that it
    publishes (sent and received), they are in the caches.
    """
    at = np.log([rate.published_bytes for rate in costs.rates])
    published = max(published_bytes, 1)

    def seconds(name: str) -> float:
        return float(np.interp(np.log(published), at, [1 / getattr(rate, name) for rate in costs.rates]))

    ends = np.log([2 * published, max(costs.touched_bytes, 2 * published + 1)])
    missing = float(np.interp(np.log(max(touched_bytes, 1)), ends, [0.0, 1.0]))  # the part that is not in the caches
    rates = {}
    for name in ("copy_bytes_per_s", "reduce_bytes_per_s", "reduce_into_bytes_per_s"):
        taken_s = missing * seconds(name) + (1 - missing) * seconds(f"cached_{name}")
        rates[name] = 1 / taken_s if taken_s else np.inf
    return MemoryRate(published, **rates)


class SharedMemoryTopology(Topology):
    """One core per rank, or the cores of the host if it has fewer than ranks.

    rate: of one core.
    """

    def __init__(
        self,
        spec: Spec,
        num_ranks: int,
        costs: SharedMemory,
        published_bytes: int | None = None,
        touched_bytes: int | None = None,
    ) -> None:
        """published_bytes: by each rank at a time; None: a full slot.

        touched_bytes: memory that a rank touches between two collectives of the same tensor; None: as measured.
        """
        self.num_ranks, self.jitter = num_ranks, spec.jitter
        published_bytes = costs.slot_bytes if published_bytes is None else published_bytes
        self.rate = rate_at(costs, published_bytes, costs.touched_bytes if touched_bytes is None else touched_bytes)
        cores = spec.host.cores
        if cores is not None and cores < num_ranks:
            self.resources = Resources.steady(("host0.cores",), np.array([float(cores)]))
            core_of_rank = np.zeros(num_ranks, dtype=np.int64)
        else:
            names = tuple(f"rank{rank}.core" for rank in range(num_ranks))
            self.resources = Resources.steady(names, np.ones(num_ranks))
            core_of_rank = np.arange(num_ranks)
        self.processors: Processors = processors_of(
            spec,
            num_ranks,
            core_of_rank,
            send_overhead_s=costs.send_overhead_s,
            receive_overhead_s=costs.receive_overhead_s,
            reduce_bytes_per_s=self.rate.reduce_bytes_per_s,
            copy_bytes_per_s=self.rate.copy_bytes_per_s,
        )
        self._latency_s = costs.latency_s

    def paths(self, src: Ints, dst: Ints) -> Paths:  # noqa: ARG002  whose copies are the receiver's own work
        """Return the paths of sends: copies by the sender's core."""
        copies: Floats = self.processors.copy_bytes_per_s[src]
        return Paths(
            latency_s=np.full(len(src), self._latency_s),
            bytes_per_s=copies,
            resource=self.processors.cores[src][:, None],
            use_per_byte=(1 / copies)[:, None],
        )
