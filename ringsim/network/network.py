"""`Network`: what sending and reducing cost on a topology where all pairs of ranks are alike."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Self

import numpy as np

from ringsim.network.topology import NONE, Floats, Ints, Paths, Processors, Resources, Topology

PRIVATE_LINKS = "private_links: there are no such networks any more; describe hosts with a cable between each two"


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
            if name.endswith("_per_s"):
                if not value > 0:
                    raise ValueError(f"{name} {value}: must be greater than 0")
            elif not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} {value}: must be finite and not negative")

    def topology(self, num_ranks: int) -> Topology:
        """What the engines see of it."""
        return _Uniform(self, num_ranks)

    def as_dict(self) -> dict[str, float | None]:
        """The fields for JSON; an infinite rate becomes None."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, float | None]) -> Self:
        """Return the network of which this is `as_dict`. Raises ValueError for the private links of older versions."""
        values = {name: math.inf if value is None else value for name, value in fields.items()}
        if values.pop("private_links", False):
            raise ValueError(PRIVATE_LINKS)
        return cls(**values)


class _Uniform(Topology):
    """Two ports for each rank, out and in; or none, where nothing limits them."""

    def __init__(self, network: Network, num_ranks: int) -> None:
        self._network = network
        self.num_ranks = num_ranks
        rate = network.bandwidth_bytes_per_s
        self._has_ports = math.isfinite(rate)
        self.resources = _ports(num_ranks, rate) if self._has_ports else Resources.none()
        self.jitter = None
        self.processors = Processors(
            send_overhead_s=_same(network.gap_s, num_ranks),
            receive_overhead_s=_same(network.receive_overhead_s, num_ranks),
            reduce_bytes_per_s=_same(network.reduce_bytes_per_s, num_ranks),
            cores=np.broadcast_to(np.int64(NONE), num_ranks),
            copy_bytes_per_s=_same(math.inf, num_ranks),
        )

    def paths(self, src: Ints, dst: Ints) -> Paths:
        used = [src, self.num_ranks + dst] if self._has_ports else []
        resource = np.array(used, dtype=np.int64).reshape(len(used), len(src)).T
        return Paths(
            latency_s=_same(self._network.latency_s, len(src)),
            bytes_per_s=_same(math.inf, len(src)),
            resource=resource,
            use_per_byte=np.broadcast_to(1.0, resource.shape),
        )


def _ports(num_ranks: int, bytes_per_s: float) -> Resources:
    """First what goes out of each rank, then what comes in."""
    names = _port_names(num_ranks)
    return Resources(names, _same(bytes_per_s, len(names)), _same(math.inf, len(names)))


@lru_cache(maxsize=4)  # short predictions would otherwise take a few per cent more, again and again
def _port_names(num_ranks: int) -> tuple[str, ...]:
    return tuple(f"rank{rank}.{way}" for way in ("out", "in") for rank in range(num_ranks))


def _same(value: float, length: int) -> Floats:
    return np.broadcast_to(np.float64(value), length)
