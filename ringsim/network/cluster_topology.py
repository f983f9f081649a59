"""`ClusterTopology`: hosts, NICs, cores and switches as the engines see them; `SharedMemoryTopology`: one host.

Through shared memory the sender copies a chunk to it, unless it is there already, and the receiver adds or copies it
from there (see `MemoryPasses`).
"""

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from ringsim.files import values
from ringsim.network.fabric import Cables, Catalogue, Leaves, RankLayout, lay_out
from ringsim.network.spec import MemoryRate, SharedMemory, Spec
from ringsim.network.topology import NONE, Floats, Ints, Paths, Processors, Resources, Topology, connection_keys

Use = tuple[Ints, Floats | float]  # a column of paths: the resource, and how much of it a byte takes


class ClusterTopology(Topology):
    """The resources of each rank, host and NIC; a path combines those at its two ends.

    Raises ValueError if the spec has no room for `num_ranks` ranks, or names an unknown resource.
    """

    def __init__(self, spec: Spec, num_ranks: int) -> None:
        layout = lay_out(spec, num_ranks)
        catalogue = Catalogue(spec.slow_links, spec.failures)
        self.num_ranks = num_ranks
        self._layout = layout
        self._number_hosts(layout, catalogue)
        self._fabric: Cables | Leaves = (Cables if spec.cables else Leaves)(spec, layout, catalogue)
        self._fails = _failing_ranks(spec, num_ranks, catalogue)
        self.resources, self._extra_latency_s = catalogue.resources()
        self.processors = processors_of(spec, num_ranks, self._cores[layout.host_of_rank])
        self._core_s_per_byte = 1 / self.processors.copy_bytes_per_s
        self.jitter = spec.jitter
        self._switch_share = spec.library.switch_share or 1.0
        self.switch_of_rank = layout.host_of_rank if spec.library.switch_share else None

    def _number_hosts(self, layout: RankLayout, catalogue: Catalogue) -> None:
        hosts, host_of_rank = layout.hosts, layout.host_of_rank.tolist()
        ranks = [f"rank{rank}" for rank in range(len(host_of_rank))]
        self._rank_out, self._rank_in = catalogue.add_ports(ranks, [hosts[h].link for h in host_of_rank], ".port")
        nics = [hosts[host].nics for host in layout.host_of_nic]
        self._nic_out, self._nic_in = catalogue.add_ports(layout.nic_names, nics)
        memory = np.array([host.memory_bytes_per_s for host in hosts])
        self._memory = catalogue.add([f"{name}.memory" for name in layout.names], memory)
        cores = np.array([host.cores or np.inf for host in hosts])
        self._cores = catalogue.add([f"{name}.cores" for name in layout.names], cores)
        self._copies = np.array([host.copies for host in hosts])
        self._link_latency_s = np.array([host.link.latency_s for host in hosts])
        self._nic_latency_s = np.array([host.nics.latency_s for host in hosts])

    def paths(self, src: Ints, dst: Ints) -> Paths:
        return self._paths(src, dst, 1.0, 1.0)

    def connection_paths(self, src: Ints, dst: Ints, channel: Ints) -> Paths:
        if self.in_switch is None:
            return self.paths(src, dst)
        added, copied = self.in_switch.of(connection_keys(src, dst, channel, self.num_ranks))
        return self._paths(src, dst, *self._port_uses(added, copied))

    def _port_uses(self, added: Ints, copied: Ints) -> tuple[Floats, Floats]:
        """Return the use per byte of the sender's and the receiver's port if a switch adds up or copies the messages.

        NVLink SHARP: the switch reads the shares of all ranks and sends the owner their sum, or it gets the sum once
        and sends it to all, the owner included. Therefore k messages load k + 1 ports, and the owner's other direction
        once, each up to `library.switch_share` of its bandwidth.
        """
        merged = np.maximum(added, copied)
        many, one = (merged + 1) / merged / self._switch_share, 1 / merged / self._switch_share
        out = np.where(added > 1, many, np.where(copied > 1, one, 1.0))
        return out, np.where(added > 1, one, np.where(copied > 1, many, 1.0))

    def _paths(self, src: Ints, dst: Ints, out: Floats | float, into: Floats | float) -> Paths:
        """out, into: use per byte of both ports within a host."""
        src_host, dst_host = self._layout.host_of_rank[src], self._layout.host_of_rank[dst]
        is_local = src_host == dst_host
        host_path = self._fabric.host_path(src_host, dst_host)
        outside = self._nic_latency_s[src_host] + host_path.latency_s + self._nic_latency_s[dst_host]
        between_hosts = ((np.where(is_local, NONE, used), 1.0) for used in host_path.resources)
        uses = chain(self._ends(src, dst, is_local, out, into), between_hosts)
        resource, use = _table(uses, len(src))
        latency = np.where(is_local, self._link_latency_s[src_host], outside)
        copies = self.processors.copy_bytes_per_s
        return Paths(
            latency_s=latency + self._extra_latency(resource),
            bytes_per_s=np.minimum(copies[src], copies[dst]),
            resource=resource,
            use_per_byte=use,
        )

    def _ends(
        self, src: Ints, dst: Ints, is_local: np.ndarray, out: Floats | float, into: Floats | float
    ) -> Iterator[Use]:
        """Yield the resources at the two ends; within a host both ranks share the columns of memory and cores."""
        nic_of_rank = self._layout.nic_of_rank
        yield np.where(is_local, self._rank_out[src], self._nic_out[nic_of_rank[src]]), out
        yield np.where(is_local, self._rank_in[dst], self._nic_in[nic_of_rank[dst]]), into
        host_of_rank = self._layout.host_of_rank
        half = self._copies / 2
        for resource, per_byte in ((self._memory, half[host_of_rank]), (self._cores, self._core_s_per_byte)):
            at_src = per_byte[src] + np.where(is_local, per_byte[dst], 0.0)
            yield np.where(at_src > 0, resource[host_of_rank[src]], NONE), at_src
            yield np.where(~is_local & (per_byte[dst] > 0), resource[host_of_rank[dst]], NONE), per_byte[dst]
        yield self._fails[src], 1.0
        yield self._fails[dst], 1.0

    def _extra_latency(self, resource: Ints) -> Floats | float:
        if not self._extra_latency_s.any():
            return 0.0
        return np.asarray(np.where(resource == NONE, 0.0, self._extra_latency_s[resource]).sum(axis=1))


def _table(uses: Iterable[Use], num_pairs: int) -> tuple[Ints, Floats]:
    used = [(resource, use) for resource, use in uses if (resource != NONE).any()]
    resource = np.empty((num_pairs, len(used)), dtype=np.int64)
    use_per_byte = np.empty((num_pairs, len(used)))
    for column, (numbers, use) in enumerate(used):
        resource[:, column] = numbers
        use_per_byte[:, column] = np.where(numbers == NONE, 0.0, use)
    return resource, use_per_byte


def _failing_ranks(spec: Spec, num_ranks: int, catalogue: Catalogue) -> Ints:
    """Return the resource that fails with each rank, or NONE: (num_ranks,)."""
    for place, failure in enumerate(spec.failures):
        if failure.rank is not None:
            _check_rank(failure.rank, f"failure[{place}].rank", num_ranks)
    if all(failure.rank is None for failure in spec.failures):
        return np.full(num_ranks, NONE, dtype=np.int64)
    return catalogue.add([f"rank{rank}" for rank in range(num_ranks)], np.full(num_ranks, np.inf))


def processors_of(spec: Spec, num_ranks: int, cores: Ints, **instead: float) -> Processors:
    """Return the costs of all ranks, with slow ranks slower; instead: of the spec's costs."""
    slowdown = _slowdowns(spec, num_ranks)
    costs = {field: getattr(spec.processor, field) for field in _COSTS} | instead
    slowed = {field: cost / slowdown if field.endswith("_per_s") else cost * slowdown for field, cost in costs.items()}
    return Processors(cores=cores, **slowed)


_COSTS = ("send_overhead_s", "receive_overhead_s", "reduce_bytes_per_s", "copy_bytes_per_s")


def _slowdowns(spec: Spec, num_ranks: int) -> Floats:
    slowdown = np.ones(num_ranks)
    for place, slow in enumerate(spec.slow_ranks):
        _check_rank(slow.rank, f"slow_rank[{place}].rank", num_ranks)
        slowdown[slow.rank] *= slow.slowdown
        if slowdown[slow.rank] > values.MAX_RATIO:  # times would soon be infinite, and rates 0
            rule = f"all of rank {slow.rank} together must be at most {values.MAX_RATIO:g}"
            raise ValueError(f"slow_rank[{place}].slowdown = {slow.slowdown:g}: {rule}")
    return slowdown


def _check_rank(rank: int, place: str, num_ranks: int) -> None:
    if rank >= num_ranks:
        raise ValueError(f"{place} = {rank}: there are only ranks 0 to {num_ranks - 1}")


def rate_at(costs: SharedMemory, published_bytes: int, touched_bytes: int) -> MemoryRate:
    """Return the rates, whose inverse is interpolated in the logarithm of bytes.

    If a rank touches at most twice the bytes that it publishes (sent and received), they are in the caches.
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
    """One core per rank, or the cores of the host if it has fewer than ranks; `rate`: of one core."""

    def __init__(self, spec: Spec, num_ranks: int, published_bytes: int | None, touched_bytes: int | None) -> None:
        """published_bytes: by each rank at a time; None: a full slot.

        touched_bytes: memory that a rank touches between two collectives of the same tensor; None: as measured.
        """
        self.num_ranks, self.jitter, costs = num_ranks, spec.jitter, spec.host.shared_memory
        assert costs is not None
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
        own = {field: getattr(self.rate if field.endswith("_per_s") else costs, field) for field in _COSTS}
        self.processors: Processors = processors_of(spec, num_ranks, core_of_rank, **own)
        self._latency_s = costs.latency_s

    def paths(self, src: Ints, dst: Ints) -> Paths:  # noqa: ARG002  whose copies are the receiver's own work
        """Return the paths of sends, which are copies by the sender's core."""
        copies: Floats = self.processors.copy_bytes_per_s[src]
        return Paths(
            latency_s=np.full(len(src), self._latency_s),
            bytes_per_s=copies,
            resource=self.processors.cores[src][:, None],
            use_per_byte=(1 / copies)[:, None],
        )
