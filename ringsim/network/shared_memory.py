"""`SharedMemoryNetwork`: the ranks of a host that read what they receive from each other's memory.

Nothing travels: the sender copies a chunk to shared memory, unless it is there already, and the receiver adds or copies
it from there (see `MemoryPasses`). Each rank does its part on one core. Tensors that do not fit into what a rank can
publish go in portions, one after the other.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec import structs

from ringsim.network.cluster import AnyNetwork
from ringsim.network.cluster_topology import processors_of
from ringsim.network.spec import MemoryRate, SharedMemory, Spec
from ringsim.network.topology import Floats, Ints, Paths, Processors, Resources, Topology


@dataclass(frozen=True, slots=True)
class SharedMemoryNetwork:
    """One host of `cluster`, through whose shared memory all messages go.

    touched_bytes: of memory that a rank touches from one collective to the next of the same tensor, which may then
    still be in the caches; None: as much as when the rates were found.

    Raises ValueError if the cluster has several hosts, or says nothing of shared memory.

        >>> from ringsim import Runtime, SharedMemoryNetwork, load_network, predict_time, ring_all_reduce
        >>> network = SharedMemoryNetwork(load_network("mine.toml"))  # doctest: +SKIP
        >>> predict_time(ring_all_reduce(2), network, 64 * 2**20, runtime=Runtime(in_order=True))  # doctest: +SKIP
    """

    cluster: AnyNetwork
    touched_bytes: int | None = None

    def __post_init__(self) -> None:
        if not shares_memory(self.cluster):
            raise ValueError(f"{self.place}: must be one host with a [host.shared_memory]")

    @property
    def name(self) -> str:
        """Return the name of the cluster."""
        return self.cluster.name

    @property
    def place(self) -> str:
        """Return the file of the cluster, or its name."""
        return self.cluster.place

    @property
    def spec(self) -> Spec:
        """Return the description of the cluster."""
        return self.cluster.spec

    def with_spec(self, **changes: Any) -> "SharedMemoryNetwork":
        """Return the same network with other values of these fields of its spec."""
        return replace(self, cluster=self.cluster.with_spec(**changes))

    @property
    def costs(self) -> SharedMemory:
        """Return what a message costs."""
        costs = self.spec.host.shared_memory
        assert costs is not None
        return costs

    def topology(self, num_ranks: int) -> Topology:
        """Return what the engines see of it if all ranks publish as much as they can."""
        return self.topology_at(num_ranks, self.rate(self.costs.slot_bytes))

    def rate(self, published_bytes: int) -> MemoryRate:
        """Return the rates if ranks publish `published_bytes` at a time."""
        touched_bytes = self.costs.touched_bytes if self.touched_bytes is None else self.touched_bytes
        return rate_at(self.costs, published_bytes, touched_bytes)

    def topology_at(self, num_ranks: int, rate: MemoryRate) -> Topology:
        """Return the same with these rates. Raises ValueError as `Cluster.topology` does."""
        self.cluster.topology(num_ranks)  # whether there is room for so many
        return _SharedMemoryTopology(self.spec, self.costs, num_ranks, rate)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the cluster for JSON."""
        return {**self.cluster.as_dict(), "transport": "shm"}


def memory_of(network: AnyNetwork) -> SharedMemoryNetwork | None:
    """Return the network if its messages go through shared memory; None otherwise."""
    return network if isinstance(network, SharedMemoryNetwork) else None


def shares_memory(network: AnyNetwork) -> bool:
    """Return whether the network is one host whose ranks share memory."""
    spec = network.spec
    one_host = not spec.placed_hosts and (spec.ranks_per_host is None or spec.num_hosts == 1)
    return one_host and spec.host.shared_memory is not None


def without_shared_memory(network: AnyNetwork) -> AnyNetwork:
    """Return the same network, on none of whose hosts memory is shared."""
    if memory := memory_of(network):
        network = memory.cluster
    spec = network.spec
    if spec.host.shared_memory is None and not spec.placed_hosts:
        return network
    placed = tuple(
        structs.replace(one, host=structs.replace(one.host, shared_memory=None)) for one in spec.placed_hosts
    )
    return network.with_spec(host=structs.replace(spec.host, shared_memory=None), placed_hosts=placed)


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


class _SharedMemoryTopology(Topology):
    """A rank's core for each rank, or the cores of the host where it has fewer than ranks."""

    def __init__(self, spec: Spec, costs: SharedMemory, num_ranks: int, rate: MemoryRate) -> None:
        self.num_ranks, self.jitter = num_ranks, spec.jitter
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
            reduce_bytes_per_s=rate.reduce_bytes_per_s,
            copy_bytes_per_s=rate.copy_bytes_per_s,
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
