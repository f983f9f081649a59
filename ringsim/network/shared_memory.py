"""`SharedMemoryTopology`: the ranks of a host that read what they receive from each other's memory.

Nothing travels: the sender copies a chunk to shared memory, unless it is there already, and the receiver adds or copies
it from there (see `MemoryPasses`). Each rank does its part on one core. Tensors that do not fit into what a rank can
publish go in portions, one after the other.
"""

import numpy as np

from ringsim.network.cluster_topology import processors_of
from ringsim.network.spec import MemoryRate, SharedMemory, Spec
from ringsim.network.topology import Floats, Ints, Paths, Processors, Resources, Topology


def rate_at(costs: SharedMemory, published_bytes: int, touched_bytes: int) -> MemoryRate:
    """Return the rates for what a rank publishes, and touches, at a time.

    Between those that are known seconds are interpolated, by the logarithm of bytes. A rank that touches no more than
    twice what it publishes, as much as it sends and receives, finds it in the caches.
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
    """A core for each rank, or the cores of the host where it has fewer than ranks.

    rate: of a core.
    """

    def __init__(
        self,
        spec: Spec,
        num_ranks: int,
        costs: SharedMemory,
        published_bytes: int | None = None,
        touched_bytes: int | None = None,
    ) -> None:
        """published_bytes: by each rank at a time; None: as much as it can.

        touched_bytes: of memory that a rank touches from one collective to the next of the same tensor, which may then
        still be in the caches; None: as much as when the rates were found.
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
        """Return the paths of sends, which are the sender's copying on its core."""
        copies: Floats = self.processors.copy_bytes_per_s[src]
        return Paths(
            latency_s=np.full(len(src), self._latency_s),
            bytes_per_s=copies,
            resource=self.processors.cores[src][:, None],
            use_per_byte=(1 / copies)[:, None],
        )
