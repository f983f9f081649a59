"""`Topology`: a network as the engines see it, for one number of ranks.

A *resource* is anything with a capacity that messages or ranks share: a port, a NIC, an uplink, a host's memory or
cores. Each byte of a message uses the resources on its path, and its ends use cores.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringsim.files import Record, values

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.signedinteger]  # a timeline's columns have 32 bits, indices 64

NONE = -1  # where a resource is named: there is none


@dataclass(frozen=True, slots=True, eq=False)
class Resources:
    """All resources of a topology, as columns of shape (num_resources,).

    capacity: bytes per second, or cores.
    fails_at_s: time from which its capacity is 0; infinite if it does not fail.
    burst_bytes: size of its token bucket, which is full at time 0 and fills at the unused capacity. Until it is empty,
    the resource does not limit its users.
    """

    names: tuple[str, ...]
    capacity: Floats
    fails_at_s: Floats
    burst_bytes: Floats

    @classmethod
    def steady(cls, names: tuple[str, ...], capacity: Floats) -> "Resources":
        return cls(names, capacity, np.full(len(names), np.inf), np.zeros(len(names)))


@dataclass(frozen=True, slots=True, eq=False)
class Processors:
    """The costs of the ranks at the two ends of a message, as columns of shape (num_ranks,).

    send_overhead_s, receive_overhead_s: per message, before its bytes leave and when it is applied.
    reduce_bytes_per_s, copy_bytes_per_s: of a received chunk and of a message, on one core.
    cores: the resource for the rank's overheads, reductions and copies, each on at most one core; NONE: always enough
    cores. If they are scarce, a message and a reduction share them equally.
    """

    send_overhead_s: Floats
    receive_overhead_s: Floats
    reduce_bytes_per_s: Floats
    cores: Ints
    copy_bytes_per_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """The paths of messages, a row per pair of ranks.

    latency_s: (num_pairs,), from the last byte's leaving to its arrival.
    bytes_per_s: (num_pairs,), limit of a message without contention; infinite if only resources limit it.
    resource: (num_pairs, width), each once per row; NONE pads shorter rows.
    use_per_byte: (num_pairs, width), of the resource's capacity: 1 for a link, 2 for a memory that copies every byte
    twice, core-seconds for cores; 0 for NONE.
    """

    latency_s: Floats
    bytes_per_s: Floats
    resource: Ints
    use_per_byte: Floats

    def alone_bytes_per_s(self, resources: Resources) -> Floats:
        """Return the rates of messages without contention, (num_pairs,)."""
        if not self.resource.shape[1]:
            return self.bytes_per_s
        used = self.resource != NONE
        if used.all():  # as on uniform networks; a third of the time
            narrowest: Floats = (resources.capacity[self.resource] / self.use_per_byte).min(axis=1)
            return np.minimum(self.bytes_per_s, narrowest)
        limit = np.full(self.resource.shape, np.inf)
        limit[used] = resources.capacity[self.resource[used]] / self.use_per_byte[used]
        slowest: Floats = limit.min(axis=1)
        return np.minimum(self.bytes_per_s, slowest)


class Jitter(Record, frozen=True):
    """Random delays, reproducible by their seed.

    latency, compute: mean of the exponentially distributed fraction by which a message's latency, and its overheads
    and reduction, grow.
    """

    seed: values.Whole = 0
    latency: values.Fraction = 0.0
    compute: values.Fraction = 0.0

    def factors(self, step: int, num_transfers: int) -> tuple[Floats, Floats]:
        """Return the factors of latency and compute, (num_transfers,) each."""
        drawn = np.random.default_rng([self.seed, step]).exponential(size=(2, num_transfers))
        return 1 + self.latency * drawn[0], 1 + self.compute * drawn[1]


@dataclass(frozen=True, slots=True, eq=False)
class InSwitch:
    """Connections whose messages the switch of a host adds up or copies, as columns of shape (num_connections,).

    key: in ascending order, see `connection_keys`.
    added: messages of a step that the switch adds up to one for their destination; 1: no addition.
    copied: destinations of one message of the source; 1: no copies.
    """

    key: Ints
    added: Ints
    copied: Ints

    def of(self, key: Ints) -> tuple[Ints, Ints]:
        """Return `added` and `copied`, each (num_keys,); 1 for unknown connections."""
        if not len(self.key):
            return np.ones_like(key), np.ones_like(key)
        row = np.minimum(np.searchsorted(self.key, key), len(self.key) - 1)
        known = self.key[row] == key
        return np.where(known, self.added[row], 1), np.where(known, self.copied[row], 1)


def connection_keys(src: Ranks, dst: Ranks, channel: Ranks, num_ranks: int) -> Ints:
    """Return a number for each connection, from its src, dst and channel."""
    return (channel.astype(np.int64) * num_ranks + src) * num_ranks + dst


def connection_ends(keys: Ints, num_ranks: int) -> tuple[Ints, Ints, Ints]:
    """Return src, dst and channel of `connection_keys`."""
    sender, dst = np.divmod(keys, num_ranks)
    channel, src = np.divmod(sender, num_ranks)
    return src, dst, channel


class Topology(ABC):
    """A network of a known number of ranks.

    switch_of_rank: (num_ranks,), if switches add up and copy messages; else None.
    in_switch: the connections for which they do.
    """

    num_ranks: int
    resources: Resources
    processors: Processors
    jitter: Jitter | None
    switch_of_rank: Ints | None = None
    in_switch: InSwitch | None = None

    @abstractmethod
    def paths(self, src: Ints, dst: Ints) -> Paths:
        """Return the path of each pair; `src` and `dst` must differ."""

    def connection_paths(self, src: Ints, dst: Ints, channel: Ints) -> Paths:  # noqa: ARG002  of no switch that adds
        """Return the paths of messages that switches may add up or copy."""
        return self.paths(src, dst)
