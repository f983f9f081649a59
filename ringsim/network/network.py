"""`Network`: what sending and reducing cost on a topology where all pairs of ranks are alike."""

import math
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

from ringsim.network.cluster import AnyNetwork, Cluster
from ringsim.network.cluster_topology import ClusterTopology
from ringsim.network.spec import Host, Link, Processor, Spec, require_number
from ringsim.network.topology import Topology


@dataclass(frozen=True, slots=True)
class Network:
    """Every rank has one full-duplex port, as a host with one NIC has, and all ports and pairs of ranks are alike.

    A message of m bytes takes `gap_s + m / rate`, arrives `latency_s` after that, and is then applied, which takes
    `receive_overhead_s` of the receiving rank, and if it is reduced `m / reduce_bytes_per_s` more. Its rate is
    `bandwidth_bytes_per_s`, which it shares with all that its sender sends and its receiver receives meanwhile: the
    single-port model of Hockney 1994 and LogGP (Alexandrov et al. 1995).

    latency_s: from the last byte's leaving to the receiver's having it. Pipelines: many messages can be on the way.
    bandwidth_bytes_per_s: of a port, in each direction.
    reduce_bytes_per_s: bytes of a received chunk that a rank adds in a second; infinite: reducing is free.
    gap_s: per message; does not pipeline, it spaces the messages of a channel (LogGP's g).
    receive_overhead_s: per message; spaces what is applied of one connection (LogGP's o, at the receiver).

    Raises ValueError for a value that is negative or not a number, and for a rate that is zero.

        >>> from ringsim import Network, predict_time, ring_all_reduce
        >>> network = Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9)
        >>> round(predict_time(ring_all_reduce(4), network, 4_000_000), 6)
        0.00606
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    reduce_bytes_per_s: float = math.inf
    gap_s: float = 0.0
    receive_overhead_s: float = 0.0

    def __repr__(self) -> str:
        given = [field for field in fields(self) if getattr(self, field.name) != field.default]
        return f"Network({', '.join(f'{field.name}={getattr(self, field.name)!r}' for field in given)})"

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            require_number(value, name)

    @property
    def name(self) -> str:
        """Return the name that the commands give it."""
        return "uniform"

    @property
    def place(self) -> str:
        """Return the name; it is read from no file."""
        return self.name

    @property
    def spec(self) -> Spec:
        """Return its description: one host, whose ranks have a port each."""
        link = Link(self.latency_s, self.bandwidth_bytes_per_s)
        processor = Processor(self.gap_s, self.receive_overhead_s, self.reduce_bytes_per_s)
        return Spec(host=Host(link=link), processor=processor)

    def with_spec(self, **changes: Any) -> Cluster:
        """Return a cluster with other values of these fields of the spec."""
        return Cluster(self.name, self.spec).with_spec(**changes)

    def topology(self, num_ranks: int) -> Topology:
        """Return what the engines see of it: one host with all ranks, whose ports are `rank3.out` and `rank3.in`."""
        return _topology(self, num_ranks)

    def as_dict(self) -> dict[str, float | None]:
        """Return the fields for JSON; an infinite rate becomes None."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}


@lru_cache(maxsize=4)  # short predictions would otherwise take several times as long, again and again
def _topology(network: Network, num_ranks: int) -> Topology:
    return ClusterTopology(network.spec, num_ranks)


def uniform_of(network: AnyNetwork) -> Network | None:
    """Return the network if all its pairs of ranks are alike, so that formulas can hold; None otherwise."""
    return network if isinstance(network, Network) else None
