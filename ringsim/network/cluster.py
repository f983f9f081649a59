"""`AnyNetwork`: all that programs ask of a network; `Cluster`: hosts, and the timings that they were fitted to."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol, Self

import msgspec
import numpy as np

from ringsim.files import Record, finite_or_none, naming_place, values
from ringsim.network.cluster_topology import ClusterTopology
from ringsim.network.spec import Spec, require_quantities
from ringsim.network.topology import Topology


class CalibratedCells(Record, frozen=True):
    """The sizes at which one collective was timed on a number of ranks and hosts.

    rows: a digest of each timing that was used, as in `Timing.rows`; empty in files of older versions.
    """

    collective: values.Name
    algorithm: values.Name
    num_ranks: values.NumRanks = msgspec.field(name="ranks")
    num_hosts: values.Count = msgspec.field(name="hosts")
    sizes_bytes: tuple[values.Positive, ...] = msgspec.field(name="sizes")
    rows: tuple[values.Text, ...] = ()


class Calibration(Record, frozen=True):
    """The timings that a network was fitted to.

    files: the names of the logs or measurements, without their folders.
    senders_per_host: the most ranks of a host that sent to other hosts at once, if the bandwidth of its NICs is that of
    all of them together; None where `host.nic` says how many NICs there are, or nothing crossed hosts.
    num_ranks: that were probed, if all of them were on one host; None otherwise.
    noise, latency_noise: how far times lie from the fit, as a deviation of their logarithms, where bytes take them and
    where latencies do; None: as much. parameters, draws: what was fitted, and some equally likely networks: how many
    times as large each of these is there. 0 and none where not known.
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
        """Return whether one of these timings of the collective was among them.

        rows: their digests. Where these are not known, here or in the file, a timing of the same collective, algorithm,
        size, ranks and hosts is taken for the same one.
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
    """Return the names of all parameters of a fit to logs, in their order, with these protocols."""
    of_protocols = [f"{protocol} {key}" for protocol in protocols for key in _OF_A_PROTOCOL]
    return [*BANDWIDTHS, *of_protocols, *OF_THE_LIBRARY]


def require_priced(network: "AnyNetwork", num_ranks: int) -> None:
    """Raise ValueError if a message between two neighbouring ranks of a cluster would take no time.

    Whatever is simulated there would take none either, as the file does not say what links or NICs cost.
    """
    if not isinstance(network, Cluster) or num_ranks < 2:
        return
    topology, src = network.topology(num_ranks), np.arange(num_ranks - 1)
    paths, costs = topology.paths(src, src + 1), topology.processors
    capacity = np.append(topology.resources.capacity, np.inf)[paths.resource]  # of NONE, the last
    is_free = np.isinf(capacity).all(axis=1) & np.isinf(paths.bytes_per_s) & (paths.latency_s == 0)
    is_free &= costs.send_overhead_s[src] + costs.receive_overhead_s[src + 1] == 0
    if is_free.any():
        rank = int(np.flatnonzero(is_free)[0])
        per_host = network.spec.ranks_per_host or num_ranks
        key = "host.link" if network.spec.placed_hosts or rank // per_host == (rank + 1) // per_host else "host.nic"
        shared = "; host.shared_memory is for --backend ring only" if network.spec.host.shared_memory else ""
        raise ValueError(
            f"{network.place}: messages take no time on it from rank {rank} to rank {rank + 1}: "
            f"give {key}.bandwidth or {key}.latency{shared}"
        )


class AnyNetwork(Protocol):
    """Hosts with ranks, as `spec` describes them; where all pairs of ranks are alike (`Network`) they share one host.

    Whoever wants to know whether a network has hosts, protocols of a library, or slow ranks asks its `spec`.
    """

    @property
    def name(self) -> str:
        """The name, for titles."""

    @property
    def place(self) -> str:
        """The file that it was read from, or its name; for error messages."""

    @property
    def spec(self) -> Spec:
        """The description by which the engines go."""

    def with_spec(self, **changes: Any) -> "AnyNetwork":
        """Return the same network with other values of these fields of its spec."""

    def topology(self, num_ranks: int) -> Topology:
        """Return the topology that the engines use. Raises ValueError if there is no room for `num_ranks` ranks."""

    def as_dict(self) -> Mapping[str, Any]:
        """Return what identifies it, for JSON."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts with ranks, cores, memory and NICs, and what connects them; `load_network` reads one from a file.

    source: a label (vendor figure, NCCL's own model, measured) and a reference.
    file: what it was read from, as it is named in error messages.
    calibration: the timings it was fitted to; None if it was not.

    Raises ValueError for a spec with a time that is not finite or is negative, or a rate that is not greater than 0.

        >>> from ringsim import load_network
        >>> load_network("gbe").topology(4).num_ranks
        4
    """

    name: str
    spec: Spec
    description: str = ""
    source: str = ""
    file: str = ""
    calibration: Calibration | None = None

    def __repr__(self) -> str:
        return f"Cluster({self.name}: {self.description})" if self.description else f"Cluster({self.name})"

    def __post_init__(self) -> None:
        with naming_place(self.place):
            require_quantities(self.spec)

    @property
    def place(self) -> str:
        """Return the file that it was read from, or its name."""
        return self.file or self.name

    def with_spec(self, **changes: Any) -> Self:
        """Return the same cluster with other values of these fields of its spec."""
        return replace(self, spec=msgspec.structs.replace(self.spec, **changes))

    def topology(self, num_ranks: int) -> Topology:
        """Return the topology that the engines use.

        Raises ValueError if there is no room for `num_ranks` ranks, or a slow or failing resource does not exist.
        """
        with naming_place(self.place):
            return ClusterTopology(self.spec, num_ranks)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, without the calibration's; an infinite rate becomes None."""
        names = "name", "spec", "description", "source", "file"
        return {name: finite_or_none(getattr(self, name)) for name in names}
