"""`Network`: what sending and reducing cost on a topology where all pairs of ranks are alike."""

import math
from dataclasses import asdict, dataclass, fields

import numpy as np

from ringsim.network.topology import NONE, Floats, Ints, Paths, Processors, Resources, Topology


@dataclass(frozen=True, slots=True)
class Network:
    """Every pair of ranks has a link of its own, all alike; nothing is shared.

    A message of m bytes holds its link for `gap_s + m / bandwidth_bytes_per_s`, arrives `latency_s`
    after that, and is then applied, which takes `receive_overhead_s` of the receiving rank, and if it is reduced
    `m / reduce_bytes_per_s` more.

    latency_s: from the last byte's leaving to the receiver's having it. Pipelines: many messages can be on the way.
    bandwidth_bytes_per_s: of one link, in each direction.
    reduce_bytes_per_s: bytes of a received chunk that a rank adds in a second; infinite: reducing is free.
    gap_s: per message; does not pipeline, it spaces the messages of a pair (LogGP's g).
    receive_overhead_s: per message; spaces what a rank applies (LogGP's o, at the receiver).

    Raises ValueError for a value that is negative or not a number, or a rate that is zero.

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
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_per_s"):
                if not value > 0:
                    raise ValueError(f"{field.name} {value}: must be greater than 0")
            elif not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{field.name} {value}: must be finite and not negative")

    def topology(self, num_ranks: int) -> Topology:
        """What the engines see of it."""
        return _Uniform(self, num_ranks)

    def as_dict(self) -> dict[str, float | None]:
        """The fields for JSON; an infinite rate becomes None."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}


class _Uniform(Topology):
    """No resources: each pair is limited by its own link alone."""

    def __init__(self, network: Network, num_ranks: int) -> None:
        self._network = network
        self.num_ranks = num_ranks
        self.resources = Resources.none()
        self.jitter = None
        self.processors = Processors(
            send_overhead_s=_same(network.gap_s, num_ranks),
            receive_overhead_s=_same(network.receive_overhead_s, num_ranks),
            reduce_bytes_per_s=_same(network.reduce_bytes_per_s, num_ranks),
            cores=np.broadcast_to(np.int64(NONE), num_ranks),
            copy_bytes_per_s=_same(math.inf, num_ranks),
        )

    def paths(self, src: Ints, dst: Ints) -> Paths:  # noqa: ARG002  all pairs are alike
        return Paths(
            latency_s=_same(self._network.latency_s, len(src)),
            bytes_per_s=_same(self._network.bandwidth_bytes_per_s, len(src)),
            resource=np.empty((len(src), 0), dtype=np.int64),
            use_per_byte=np.empty((len(src), 0)),
        )


def _same(value: float, length: int) -> Floats:
    return np.broadcast_to(np.float64(value), length)
