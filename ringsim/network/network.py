"""`Network`: the costs of messages and reductions between ranks, and the timings it was calibrated from."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Self

import msgspec
import numpy as np

from ringsim.files import Record, finite_or_none, naming_place, values
from ringsim.network.cluster_topology import ClusterTopology, SharedMemoryTopology
from ringsim.network.fabric import lay_out, on_hosts
from ringsim.network.spec import MessageCosts, SharedMemory, Spec, require_number, require_quantities, with_numbers
from ringsim.network.topology import Topology


class CalibratedCells(Record, frozen=True):
    """The sizes at which a collective was timed; rows: as in `Timing.rows`, empty in files of older versions."""

    collective: values.Name
    algorithm: values.Name
    num_ranks: values.NumRanks = msgspec.field(name="ranks")
    num_hosts: values.Count = msgspec.field(name="hosts")
    sizes_bytes: tuple[values.Positive, ...] = msgspec.field(name="sizes")
    rows: tuple[values.Text, ...] = ()


class Calibration(Record, frozen=True):
    """The timings that a network was fitted to.

    senders_per_host: most ranks of a host that sent to other hosts at once, if `host.nic` is all NICs of a host
    together; else None.
    num_ranks: of the probes, if all were on one host.
    noise, latency_noise: standard deviation of the logarithm of fitted over measured times, where bytes and where
    latencies dominate; None: the same.
    parameters, draws: equally likely networks, as ratios to the values of the parameters; empty if not known.
    """

    files: tuple[values.Text, ...] = msgspec.field(default=(), name="from")
    cells: tuple[CalibratedCells, ...] = ()
    senders_per_host: values.Count | None = None
    num_ranks: values.Count | None = msgspec.field(default=None, name="ranks")
    noise: Annotated[float, values.number(0, 100)] = 0.0  # a factor of e ** 100 is beyond that of any two times
    latency_noise: Annotated[float, values.number(0, 100)] | None = None
    parameters: tuple[values.Name, ...] = ()
    draws: tuple[tuple[values.Ratio, ...], ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.parameters)) < len(self.parameters):
            raise ValueError("parameters: one of them is listed twice: name each once")
        wrong = next((place for place, draw in enumerate(self.draws) if len(draw) != len(self.parameters)), None)
        if wrong is not None:
            raise ValueError(
                f"draws[{wrong}]: {len(self.draws[wrong])} numbers for {len(self.parameters)} parameters: give one each"
            )

    def used(
        self, collective: str, algorithm: str, num_ranks: int, num_hosts: int, size_bytes: int, rows: Collection[str]
    ) -> bool:
        """Return whether the calibration used one of these timings.

        rows: their digests; without digests, a timing with the other arguments counts as the same.
        """
        shape = collective, num_ranks, num_hosts
        alike = [
            cells
            for cells in self.cells
            if (cells.collective, cells.num_ranks, cells.num_hosts) == shape and size_bytes in cells.sizes_bytes
        ]
        return any(
            not set(rows).isdisjoint(cells.rows) if rows and cells.rows else cells.algorithm == algorithm
            for cells in alike
        )


BANDWIDTHS = ("host.link.bandwidth", "host.nic.bandwidth")
_OF_A_PROTOCOL = ("start", "link_latency", "hop_latency", "share")
OF_THE_LIBRARY = ("tree_share", "tree_latency", "message_start", "message_share", "ring_fill")


def parameter_names(protocols: Iterable[str]) -> list[str]:
    """Return the names of the parameters of a fit to logs, in order."""
    of_protocols = [f"{protocol} {key}" for protocol in protocols for key in _OF_A_PROTOCOL]
    return [*BANDWIDTHS, *of_protocols, *OF_THE_LIBRARY]


@dataclass(frozen=True, slots=True)
class Network:
    """Hosts with ranks, cores, memory and NICs, and their connections; see `load_network` and `Network.uniform`.

    source: a label (vendor figure, NCCL's own model, measured) and a reference.

    Raises ValueError for a negative or infinite time and for a rate not above 0, TypeError for costs in place of a
    spec.

        >>> from ringsim import load_network
        >>> load_network("gbe").topology(4).num_ranks
        4
    """

    UNIFORM: ClassVar = "uniform"  # the name of a network without one

    name: str
    spec: Spec
    description: str = ""
    source: str = ""
    file: str = ""
    calibration: Calibration | None = None

    @classmethod
    def uniform(
        cls,
        latency_s: float,
        bandwidth_bytes_per_s: float,
        reduce_bytes_per_s: float = math.inf,
        gap_s: float = 0.0,
        receive_overhead_s: float = 0.0,
    ) -> Self:
        """Return a network on which every rank has one full-duplex port, and all ports and pairs of ranks are alike.

        A message of m bytes takes `gap_s + m / rate` and arrives `latency_s` later. Applying it takes the receiving
        rank `receive_overhead_s`, and a reduction `m / reduce_bytes_per_s` more. Concurrent messages of one sender or
        one receiver share `bandwidth_bytes_per_s`, that of a port in each direction: the single-port model of Hockney
        1994 and LogGP (Alexandrov et al. 1995).

        latency_s: latencies of several messages overlap.
        gap_s: per message of a channel; gaps do not overlap (LogGP's g).
        receive_overhead_s: per message of a connection; likewise (LogGP's o, at the receiver).

        Raises ValueError for a value that is negative or not a number, and for a rate of zero.

            >>> from ringsim import Network, predict_time, ring_all_reduce
            >>> network = Network.uniform(latency_s=1e-5, bandwidth_bytes_per_s=1e9)
            >>> round(predict_time(ring_all_reduce(4), network, 4_000_000), 6)
            0.00606
        """
        costs = MessageCosts(latency_s, bandwidth_bytes_per_s, reduce_bytes_per_s, gap_s, receive_overhead_s)
        for name, value in costs._asdict().items():
            require_number(value, name)
        return cls(cls.UNIFORM, costs.spec)

    @classmethod
    def name_in(cls, described: Mapping[str, Any] | None) -> str:
        """Return the name in the result of `as_dict`."""
        return str((described or {}).get("name", cls.UNIFORM))

    def __repr__(self) -> str:
        if costs := self.message_costs:
            defaults = MessageCosts._field_defaults
            given = {name: value for name, value in costs._asdict().items() if value != defaults.get(name)}
            return f"Network.uniform({', '.join(f'{name}={value!r}' for name, value in given.items())})"
        return f"Network({self.name}: {self.description})" if self.description else f"Network({self.name})"

    def __post_init__(self) -> None:
        if not isinstance(self.spec, Spec):
            raise TypeError(
                f"spec {self.spec!r}: must be a Spec; "
                "Network.uniform(latency_s, bandwidth_bytes_per_s) makes a network from costs"
            )
        with naming_place(self.place):
            require_quantities(self.spec)

    @property
    def place(self) -> str:
        """Its file or name, for error messages."""
        return self.file or self.name

    @property
    def message_costs(self) -> MessageCosts | None:
        """The costs of a message; None unless `Network.uniform` made the network."""
        if self.name != self.UNIFORM or self.file:
            return None
        costs = MessageCosts.from_spec(self.spec)
        return costs if self.spec == costs.spec else None

    @property
    def shared_memory(self) -> SharedMemory | None:
        """The costs of messages through memory that all ranks share; None without it."""
        spec = self.spec
        one_host = not spec.placed_hosts and (spec.ranks_per_host is None or spec.num_hosts == 1)
        return spec.host.shared_memory if one_host else None

    def with_spec(self, **changes: Any) -> Self:
        return replace(self, spec=msgspec.structs.replace(self.spec, **changes))

    def with_numbers(self, change: Callable[[str, str, float], Any]) -> Self:
        return replace(self, spec=with_numbers(self.spec, change))

    def on_hosts(self, num_hosts: int) -> Self:
        """Return the network as a collective among this many hosts sees it: its NICs have the rate of `fabric`.

        Simulations take that rate only from here; formulas take it from `nic_share` as well.
        """
        return replace(self, spec=on_hosts(self.spec, num_hosts)) if self.spec.fabric else self

    def topology(self, num_ranks: int) -> Topology:
        """Return the topology for collectives among all its ranks; see `on_hosts` for others.

        Raises ValueError if there is no room for `num_ranks` ranks, or a slow or failing resource is unknown.
        """
        if self.message_costs:
            return _uniform_topology(self.spec, num_ranks)
        with naming_place(self.place):
            num_hosts = len(np.unique(lay_out(self.spec, num_ranks).host_of_rank)) if self.spec.fabric else 1
            return ClusterTopology(self.on_hosts(num_hosts).spec, num_ranks)

    def memory_topology(
        self, num_ranks: int, published_bytes: int | None = None, touched_bytes: int | None = None
    ) -> SharedMemoryTopology:
        """Return the topology of the network's shared memory. Raises ValueError as `topology` does."""
        self.topology(num_ranks)  # refuses too many ranks
        return SharedMemoryTopology(self.spec, num_ranks, published_bytes, touched_bytes)

    def require_priced(self, num_ranks: int) -> None:
        """Raise ValueError if a message between neighbours takes no time, as the file gives no costs of links or NICs.

        A uniform network may have such messages.
        """
        if self.message_costs or num_ranks < 2:
            return
        topology, src = self.topology(num_ranks), np.arange(num_ranks)
        dst = (src + 1) % num_ranks
        paths, costs = topology.paths(src, dst), topology.processors
        capacity = np.append(topology.resources.capacity, np.inf)[paths.resource]  # of NONE, the last
        is_free = np.isinf(capacity).all(axis=1) & np.isinf(paths.bytes_per_s) & (paths.latency_s == 0)
        is_free &= costs.send_overhead_s[src] + costs.receive_overhead_s[dst] == 0
        if is_free.any():
            rank = int(is_free.argmax())
            hosts = lay_out(self.spec, num_ranks).host_of_rank[[rank, dst[rank]]]
            key = "host.link" if hosts[0] == hosts[1] else "host.nic"
            shared = "; host.shared_memory is for --backend ring only" if self.spec.host.shared_memory else ""
            raise ValueError(
                f"{self.place}: messages take no time on it from rank {rank} to rank {dst[rank]}: "
                f"give {key}.bandwidth or {key}.latency{shared}"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return JSON fields without the calibration, or the costs of a uniform network; infinity becomes None."""
        if costs := self.message_costs:
            return {name: finite_or_none(value) for name, value in costs._asdict().items()}
        names = "name", "spec", "description", "source", "file"
        return {name: finite_or_none(getattr(self, name)) for name in names}


@lru_cache(maxsize=4)  # short predictions would otherwise take several times as long, again and again
def _uniform_topology(spec: Spec, num_ranks: int) -> Topology:
    return ClusterTopology(spec, num_ranks)
