"""`Spec`: what a network file says, as data; `docs/reference/files.md` describes each of its tables."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from ringsim.files import values
from ringsim.network.topology import Jitter


@dataclass(frozen=True, slots=True)
class Link:
    """One link of a kind; half duplex: both directions share its bandwidth.

    burst_bytes: that it saves up while it is not in use, in each direction, and then lets pass at once (token bucket).
    """

    latency_s: float = 0.0
    bandwidth_bytes_per_s: float = math.inf
    half_duplex: bool = False
    burst_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Nics(Link):
    """The network interfaces of a host, all alike; its ranks are dealt out to them in equal runs.

    count: 0: as many as the host has ranks.
    """

    count: int = 1


@dataclass(frozen=True, slots=True)
class MemoryRate:
    """The rates of one core where each rank publishes so much in its shared memory: bytes a second.

    published_bytes: of one rank; the more there is, the less of it is in the caches.
    copy_bytes_per_s, reduce_bytes_per_s, reduce_into_bytes_per_s: what it copies to or from shared memory, adds from
    there to a tensor, and adds to a tensor from there with the sum elsewhere, if the rank's tensors are in
    `SharedMemory.touched_bytes` of memory, in turn. cached_...: if they are the same ones each time.
    """

    published_bytes: int
    copy_bytes_per_s: float = math.inf
    reduce_bytes_per_s: float = math.inf
    reduce_into_bytes_per_s: float = math.inf
    cached_copy_bytes_per_s: float = math.inf
    cached_reduce_bytes_per_s: float = math.inf
    cached_reduce_into_bytes_per_s: float = math.inf


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The costs of messages between ranks of a host that read from each other's memory.

    slot_bytes: what a rank can publish at a time; a tensor with more goes in portions, one after the other.
    latency_s: from publishing to the receiver's noticing. call_s: what a call takes beside its messages and copies.
    cold_call_s: what it takes longer after a computation. late_share, late_s: as of a `Processor`.
    touched_bytes: of memory that a rank walked through while the rates were found.
    rates: by growing `published_bytes`; at least one.
    """

    slot_bytes: int
    touched_bytes: int
    send_overhead_s: float = 0.0
    receive_overhead_s: float = 0.0
    latency_s: float = 0.0
    call_s: float = 0.0
    cold_call_s: float = 0.0
    late_share: float = 0.0
    late_s: float = 0.0
    rates: tuple[MemoryRate, ...] = (MemoryRate(1),)


@dataclass(frozen=True, slots=True)
class Host:
    """The cores, the memory and the links of a host.

    cores: None where there are always enough.
    memory_bytes_per_s: what its memory copies in a second; a message within the host uses it `copies` times a byte.
    link: a rank's port to the other ranks of the host.
    shared_memory: through which our own collectives go within the host, see `SharedMemoryNetwork`; None: they do not.
    """

    cores: int | None = None
    memory_bytes_per_s: float = math.inf
    copies: float = 2.0
    link: Link = Link()
    nics: Nics = Nics()
    shared_memory: SharedMemory | None = None


@dataclass(frozen=True, slots=True)
class PlacedHost:
    """A host with a name, and the ranks it holds."""

    name: str
    ranks: tuple[int, ...]
    host: Host


@dataclass(frozen=True, slots=True)
class Switch:
    """The leaf switches.

    hosts_per_leaf: number of hosts on each leaf; None: one switch with all hosts on it.
    uplink_bytes_per_s: of all uplinks of a leaf together, in each direction.
    oversubscription: in place of `uplink_bytes_per_s`, the ratio of the bandwidth of the NICs below a leaf to that of
    its uplinks.
    """

    latency_s: float = 0.0
    hosts_per_leaf: int | None = None
    uplink_bytes_per_s: float = math.inf
    oversubscription: float | None = None
    uplink_latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Cable(Link):
    """A link between two hosts, two switches, or one of each."""

    between: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Processor:
    """The costs of a rank at the two ends of a message.

    first_touch_bytes_per_s: at which it copies into memory that it touches for the first time; no message does.
    call_s, torch_call_s: what a call of ours, and of torch.distributed's, takes beside its messages and copies.
    cold_call_s, cold_torch_call_s: what either takes longer after a computation.
    async_call_s: what an asynchronous call of ours takes longer, as a thread of its group carries it out.
    late_share, torch_late_share, async_late_share: of such calls (the last: of asynchronous ones of ours), those that
    take longer by late_s, torch_late_s, async_late_s, as a thread waits for a core.
    """

    send_overhead_s: float = 0.0
    receive_overhead_s: float = 0.0
    reduce_bytes_per_s: float = math.inf
    copy_bytes_per_s: float = math.inf
    first_touch_bytes_per_s: float = math.inf
    call_s: float = 0.0
    torch_call_s: float = 0.0
    cold_call_s: float = 0.0
    cold_torch_call_s: float = 0.0
    async_call_s: float = 0.0
    late_share: float = 0.0
    late_s: float = 0.0
    torch_late_share: float = 0.0
    torch_late_s: float = 0.0
    async_late_share: float = 0.0
    async_late_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way in which a library sends its collectives; it takes the one by which a collective is over first.

    start_s: once per collective. link_latency_s, hop_latency_s: from rank to rank within a host, and from host to host;
    tree_...: the same on a tree. share: of the bandwidths of links and NICs.
    """

    name: str
    start_s: float = 0.0
    link_latency_s: float = 0.0
    hop_latency_s: float = 0.0
    tree_link_latency_s: float = 0.0
    tree_hop_latency_s: float = 0.0
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class RingStep:
    """The measured time of a step of a ring across hosts in which each rank sends `message_bytes`.

    It does not include the start of the collective.
    """

    message_bytes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """The algorithms that a collective library chooses from, besides its protocols.

    tree_share: of the bandwidth, for an all_reduce on trees across hosts; None: it has no trees.
    switch_share: likewise for in-network reduction within a host; None: there is none.
    message_start: how many times `start_s` a single message takes.
    message_share: of the bandwidth of a NIC, that single messages between hosts reach.
    two_host_passes: how many times all bytes of an all_reduce on trees leave each of two hosts, once in NCCL's model;
        with more hosts it is twice.
    pat_share: of the bandwidth, for all_gather and reduce_scatter by PAT, between hosts of one rank; None: no PAT.
    switch_latency_s: of in-network reduction, beside its bytes; None: the start and two hops of the last protocol.
    switch_hop_latency_s: from host to host, where trees join the switches of several hosts; None: nothing joins them.
    channels: of a large call, each of which occupies a multiprocessor of the GPU; 0: not known.
    link_channels: likewise of a ring within a host; 0: as many.
    ring_steps: of a ring across hosts, in the order of message size; none: its time follows from the protocols.
    ring_ranks: ranks per host with which the ring steps were measured.
    ring_fill: of a ring within a host: additional steps whose bytes take time while the links fill.
    """

    tree_share: float | None = None
    switch_share: float | None = None
    switch_latency_s: float | None = None
    switch_hop_latency_s: float | None = None
    message_start: float = 1.0
    message_share: float = 1.0
    two_host_passes: float = 1.0
    pat_share: float | None = None
    channels: int = 0
    link_channels: int = 0
    ring_steps: tuple[RingStep, ...] = ()
    ring_ranks: int = 1
    ring_fill: float = 0.0


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A straggler: its overheads, reductions and copies take `slowdown` times as long."""

    rank: int
    slowdown: float


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A resource with another bandwidth, one that is divided by `slowdown`, or a longer latency."""

    link: str
    bandwidth_bytes_per_s: float | None = None
    slowdown: float = 1.0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Failure:
    """From `at_s` on, a resource gives nothing, or nothing gets to or from a rank."""

    link: str | None = None
    rank: int | None = None
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Spec:
    """The hosts of a network, how they hang together, and what is wrong with them.

    host, ranks_per_host, num_hosts: all hosts are alike; None: as many as are asked for.
    protocols, library: of a collective library; of them the engines know `switch_share` only.
    placed_hosts: if there are any, these are the hosts, and the three fields above say nothing.
    cables: if there are any, they connect the hosts, and `switch` says nothing.
    """

    host: Host = Host()
    ranks_per_host: int | None = None
    num_hosts: int | None = None
    placed_hosts: tuple[PlacedHost, ...] = ()
    cables: tuple[Cable, ...] = ()
    switch: Switch = Switch()
    processor: Processor = Processor()
    slow_ranks: tuple[SlowRank, ...] = ()
    slow_links: tuple[SlowLink, ...] = ()
    failures: tuple[Failure, ...] = ()
    jitter: Jitter | None = None
    protocols: tuple[Protocol, ...] = ()
    library: Tuning = Tuning()

    @property
    def max_ranks(self) -> int | None:
        """The number of ranks that there is room for; None: any number."""
        if self.placed_hosts:
            return sum(len(placed.ranks) for placed in self.placed_hosts)
        if self.num_hosts is None or self.ranks_per_host is None:
            return None
        return self.num_hosts * self.ranks_per_host


def with_numbers(value: Any, change: Callable[[str, float], Any]) -> Any:
    """Return a network, a spec or a part of one with `change(field, number)` in place of each number, at any depth."""
    if isinstance(value, tuple):
        return tuple(with_numbers(inner, change) for inner in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for field in fields(value):
        inner = getattr(value, field.name)
        changed[field.name] = change(field.name, inner) if values.is_number(inner) else with_numbers(inner, change)
    return replace(value, **changed)


FREE_BYTES_PER_S = 1e300  # bytes take no time, yet it is a rate: a network on which nothing costs anything is refused


def with_free_bytes(spec: Spec) -> Spec:
    """Return the spec on which bytes take no time, and only latencies and overheads do.

    Slow links keep their longer latency, and slow cores stay slow, as overheads take time on them.
    """

    def free(field: str, number: float) -> float:
        return FREE_BYTES_PER_S if field.endswith("_per_s") else 0 if field == "burst_bytes" else number

    free_spec: Spec = with_numbers(spec, free)
    links = (slow if slow.link.endswith(".cores") else replace(slow, slowdown=1.0) for slow in free_spec.slow_links)
    return replace(free_spec, slow_links=tuple(links))


def require_quantities(value: object, place: str = "") -> None:
    """Raise ValueError, which names the first, for a number of a spec that cannot be: files are checked before."""
    if isinstance(value, float):
        require_number(value, place)
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            require_quantities(inner, f"{place}[{index}]")
    elif is_dataclass(value):
        for field in fields(value):
            require_quantities(getattr(value, field.name), f"{place}.{field.name}".removeprefix("."))


def require_number(value: float, place: str) -> None:
    """Raise ValueError for a number that cannot be, by its unit, or that it is a share, which is in its name."""
    if place.endswith("_per_s"):
        rule = "" if value > 0 else "greater than 0"
    elif place.endswith("late_share"):
        rule = "" if 0 <= value <= 1 else "from 0 to 1"
    else:
        rule = "" if 0 <= value < math.inf else "finite and not negative"
    if rule:
        raise ValueError(f"{place} {value}: must be {rule}")
