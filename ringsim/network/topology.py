"""`Topology`: a network as the engines see it, for one number of ranks.

Whatever several messages or ranks can share (a port, a NIC, an uplink, the copying of a host's memory, its
cores) is a *resource*: a name and a capacity. A message uses some of each resource on its path for every byte, and
what is done at its ends uses the cores there. That is all an engine knows: hosts and switches are `Network`'s.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
    """Everything that can be shared; a column per field, each of shape (num_resources,).

    capacity: bytes a second, or cores (core-seconds a second).
    fails_at_s: from then on it gives nothing; infinite where it does not fail.
    burst_bytes: the size of its token bucket; 0 where it has none. The bucket is full at 0, fills at the rate of the
    capacity less what is used, and until it is empty what uses the resource is limited by everything else only.
    """

    names: tuple[str, ...]
    capacity: Floats
    fails_at_s: Floats
    burst_bytes: Floats

    @classmethod
    def steady(cls, names: tuple[str, ...], capacity: Floats) -> "Resources":
        """Return resources that give as much at any time."""
        return cls(names, capacity, np.full(len(names), np.inf), np.zeros(len(names)))


@dataclass(frozen=True, slots=True, eq=False)
class Processors:
    """The costs of the ranks at the two ends of a message; a column per field, each of shape (num_ranks,).

    send_overhead_s, receive_overhead_s: for a message, before its bytes go and when it is applied.
    reduce_bytes_per_s: of a received chunk, on its own core.
    cores: the resource on which the rank's overheads and reductions run, each on one core at most; NONE: there
    are always enough.
    copy_bytes_per_s: what one core copies of a message. Where cores are scarce, a message and a reduction are given
    equal parts of them.
    """

    send_overhead_s: Floats
    receive_overhead_s: Floats
    reduce_bytes_per_s: Floats
    cores: Ints
    copy_bytes_per_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """The ways of messages from `src` to `dst`; a row per pair of ranks.

    latency_s: (num_pairs,), from the last byte's leaving to its arrival.
    bytes_per_s: (num_pairs,), of a message whatever else happens; infinite where only resources limit it.
    resource: (num_pairs, width), what the path uses, no resource twice in a row, NONE where the row is shorter.
    use_per_byte: (num_pairs, width), of that resource's capacity; 1 for a link, 2 for a memory that copies every
    byte twice, core-seconds for cores; 0 where there is no resource.
    """

    latency_s: Floats
    bytes_per_s: Floats
    resource: Ints
    use_per_byte: Floats

    def check(self) -> None:
        """Raise ValueError for a latency or a use that is not finite or is negative, and a rate that is not above 0."""
        require_costs("latency_s of path", self.latency_s)
        require_costs("use_per_byte of path", self.use_per_byte.max(axis=1, initial=0.0))
        require_costs("use_per_byte of path", self.use_per_byte.min(axis=1, initial=0.0))
        require_rates("bytes_per_s of path", self.bytes_per_s)

    def alone_bytes_per_s(self, resources: Resources) -> Floats:
        """Return the rate of a message that shares nothing: (num_pairs,)."""
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
    """Delays drawn at random, the same ones for the same seed.

    The latency of every message is lengthened by the fraction `latency` of itself on average, and its overheads
    and its reduction by `compute`; the lengthening is exponentially distributed.
    """

    seed: values.Whole = 0
    latency: values.Fraction = 0.0
    compute: values.Fraction = 0.0

    def factors(self, step: int, num_transfers: int) -> tuple[Floats, Floats]:
        """Return what to multiply latencies and computing with, for the transfers of a step."""
        drawn = np.random.default_rng([self.seed, step]).exponential(size=(2, num_transfers))
        return 1 + self.latency * drawn[0], 1 + self.compute * drawn[1]


@dataclass(frozen=True, slots=True, eq=False)
class InSwitch:
    """Connections whose messages the switch of a host adds up or copies; a row each, in the order of `key`.

    key: (num_connections,), that of the channel, the source and the destination, see `connection_keys`.
    added: (num_connections,), how many messages of a step the switch adds up to one on its way to their destination;
    1: it does not. copied: (num_connections,), to how many it copies one message of their source; 1: it does not.
    """

    key: Ints
    added: Ints
    copied: Ints

    def of(self, key: Ints) -> tuple[Ints, Ints]:
        """Return `added` and `copied` of these connections, each (num_keys,); 1 for those not among the rows."""
        if not len(self.key):
            return np.ones_like(key), np.ones_like(key)
        row = np.minimum(np.searchsorted(self.key, key), len(self.key) - 1)
        known = self.key[row] == key
        return np.where(known, self.added[row], 1), np.where(known, self.copied[row], 1)


def connection_keys(src: Ranks, dst: Ranks, channel: Ranks, num_ranks: int) -> Ints:
    """Return, for each transfer, a number for its connection alone: for its src, dst and channel."""
    return (channel.astype(np.int64) * num_ranks + src) * num_ranks + dst


def connection_ends(keys: Ints, num_ranks: int) -> tuple[Ints, Ints, Ints]:
    """Return the src, dst and channel that these `connection_keys` stand for."""
    sender, dst = np.divmod(keys, num_ranks)
    channel, src = np.divmod(sender, num_ranks)
    return src, dst, channel


class Topology(ABC):
    """A network of a known number of ranks.

    switch_of_rank: (num_ranks,), the switch that each rank hangs on, if these switches add up and copy messages; None:
    no switch does.
    in_switch: the connections on which they do; None: on none.
    """

    num_ranks: int
    resources: Resources
    processors: Processors
    jitter: Jitter | None
    switch_of_rank: Ints | None = None
    in_switch: InSwitch | None = None

    @abstractmethod
    def paths(self, src: Ints, dst: Ints) -> Paths:
        """Return the paths of these pairs, in their order. `src` and `dst` differ in every row."""

    def connection_paths(self, src: Ints, dst: Ints, channel: Ints) -> Paths:  # noqa: ARG002  of no switch that adds
        """Return the paths of messages on these channels, which the switch of a host may add up or copy."""
        return self.paths(src, dst)


def require_sound(topology: Topology) -> None:
    """Raise ValueError, which names the first, for a cost with which virtual time could not go on, such as NaN.

    The paths have their own check, as they are worked out later, and only those that are used.
    """
    processors, resources = topology.processors, topology.resources
    require_costs("send_overhead_s of rank", processors.send_overhead_s)
    require_costs("receive_overhead_s of rank", processors.receive_overhead_s)
    require_rates("reduce_bytes_per_s of rank", processors.reduce_bytes_per_s)
    require_rates("copy_bytes_per_s of rank", processors.copy_bytes_per_s)
    require_rates("capacity of", resources.capacity, resources.names)
    _require("fails_at_s of", resources.fails_at_s, resources.fails_at_s >= 0, "not negative", resources.names)


def require_costs(quantity: str, values: Floats) -> None:
    """Raise ValueError unless all are finite and not negative."""
    _require(quantity, values, (values >= 0) & (values < np.inf), "finite and not negative")


def require_rates(quantity: str, values: Floats, names: Sequence[str] = ()) -> None:
    """Raise ValueError unless all are greater than 0; infinite: without limit."""
    _require(quantity, values, values > 0, "greater than 0", names)


def _require(quantity: str, values: Floats, good: npt.NDArray[np.bool_], rule: str, names: Sequence[str] = ()) -> None:
    if not good.all():
        first = int(np.argmin(good))
        raise ValueError(f"{quantity} {names[first] if names else first} is {values[first]}: must be {rule}")
