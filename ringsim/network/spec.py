"""`Spec`: what a network file says, as data; `docs/reference/files.md` describes each of its tables."""

import math
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import structs

from ringsim.files import Record, values
from ringsim.network.topology import Jitter


def _half_duplex(value: Any) -> bool:
    if value not in ("full", "half"):
        raise ValueError('must be "full" or "half"')
    return bool(value == "half")


def _name(value: Any) -> str:
    """Return a name that resources can be named after, hence without dots, arrows and blanks."""
    if not isinstance(value, str) or not value.replace("_", "").replace("-", "").isalnum():
        raise ValueError("a name must be text of letters, digits, _ and - only")
    return value


def _two_names(value: Any) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2 or value[0] == value[1]:
        raise ValueError('must be two different names, such as ["a", "switch1"]')
    return _name(value[0]), _name(value[1])


ResourceName = values.By[str, _name]
# Keys that are not the names of their fields without units.
_NAMES = {"hosts_per_leaf": "hosts", "ranks_per_host": "ranks", "num_hosts": "count"}
_RATES = ("bandwidth", "uplink")  # others are called what they are the bandwidth of, such as copy_bandwidth


def _key(field: str) -> str:
    if field.endswith("_bytes_per_s"):
        stem = field.removesuffix("_bytes_per_s")
        return stem if stem in _RATES else f"{stem}_bandwidth"
    return _NAMES.get(field, field.removesuffix("_bytes").removesuffix("_s"))


class Table(Record, frozen=True, rename=_key):
    """A table of a network file, in which values have units, and keys are the names of fields without them."""


class Link(Table, frozen=True):
    """One link of a kind; half duplex: both directions share its bandwidth.

    burst_bytes: that it saves up while it is not in use, in each direction, and then lets pass at once (token bucket).
    """

    latency_s: values.Time = 0.0
    bandwidth_bytes_per_s: values.Rate = math.inf
    half_duplex: values.By[bool, _half_duplex] = msgspec.field(default=False, name="duplex")
    burst_bytes: values.Size = 0


class Nics(Link, frozen=True):
    """The network interfaces of a host, all alike; its ranks are dealt out to them in equal runs.

    count: 0: as many as the host has ranks.
    """

    count: Annotated[int, values.whole(0, values.MAX_COUNT)] = 1


class MemoryRate(Table, frozen=True):
    """The rates of one core where each rank publishes so much in its shared memory: bytes a second.

    published_bytes: of one rank; the more there is, the less of it is in the caches.
    copy_bytes_per_s, reduce_bytes_per_s, reduce_into_bytes_per_s: what it copies to or from shared memory, adds from
    there to a tensor, and adds to a tensor from there with the sum elsewhere, if the rank's tensors are in
    `SharedMemory.touched_bytes` of memory, in turn. cached_...: if they are the same ones each time.
    """

    published_bytes: values.Size
    copy_bytes_per_s: values.Rate = math.inf
    reduce_bytes_per_s: values.Rate = math.inf
    reduce_into_bytes_per_s: values.Rate = math.inf
    cached_copy_bytes_per_s: values.Rate = math.inf
    cached_reduce_bytes_per_s: values.Rate = math.inf
    cached_reduce_into_bytes_per_s: values.Rate = math.inf


class SharedMemory(Table, frozen=True):
    """The costs of messages between ranks of a host that read from each other's memory.

    slot_bytes: what a rank can publish at a time; a tensor with more goes in portions, one after the other.
    latency_s: from publishing to the receiver's noticing. call_s: what a call takes beside its messages and copies.
    cold_call_s: what it takes longer after a computation. late_share, late_s: as of a `Processor`.
    touched_bytes: of memory that a rank walked through while the rates were found.
    rates: by growing `published_bytes`; at least one.
    """

    slot_bytes: values.Size
    touched_bytes: values.Size
    send_overhead_s: values.Time = 0.0
    receive_overhead_s: values.Time = 0.0
    latency_s: values.Time = 0.0
    call_s: values.Time = 0.0
    cold_call_s: values.Time = 0.0
    late_share: values.Share = 0.0
    late_s: values.Time = 0.0
    rates: tuple[MemoryRate, ...] = msgspec.field(default=(), name="rate")


class Host(Table, frozen=True):
    """The cores, the memory and the links of a host.

    cores: None where there are always enough.
    memory_bytes_per_s: what its memory copies in a second; a message within the host uses it `copies` times a byte.
    link: a rank's port to the other ranks of the host.
    shared_memory: through which our own collectives go within the host, see `SharedMemoryTopology`; None: they do not.
    """

    cores: values.Count | None = None
    memory_bytes_per_s: values.Rate = math.inf
    copies: values.Ratio = 2.0
    link: Link = Link()
    nics: Nics = msgspec.field(default=Nics(), name="nic")
    shared_memory: SharedMemory | None = None


class PlacedHost(Record, frozen=True):
    """A host with a name, and the ranks it holds."""

    name: str
    ranks: tuple[int, ...]
    host: Host


class Switch(Table, frozen=True):
    """The leaf switches.

    hosts_per_leaf: number of hosts on each leaf; None: one switch with all hosts on it.
    uplink_bytes_per_s: of all uplinks of a leaf together, in each direction.
    oversubscription: in place of `uplink_bytes_per_s`, the ratio of the bandwidth of the NICs below a leaf to that of
    its uplinks.
    """

    latency_s: values.Time = 0.0
    hosts_per_leaf: values.Count | None = None
    uplink_bytes_per_s: values.Rate = math.inf
    oversubscription: values.Ratio | None = None
    uplink_latency_s: values.Time = 0.0


class Cable(Link, frozen=True, kw_only=True):
    """A link between two hosts, two switches, or one of each."""

    between: values.By[tuple[str, str], _two_names]


class Processor(Table, frozen=True):
    """The costs of a rank at the two ends of a message.

    first_touch_bytes_per_s: at which it copies into memory that it touches for the first time; no message does.
    call_s, torch_call_s: what a call of ours, and of torch.distributed's, takes beside its messages and copies.
    cold_call_s, cold_torch_call_s: what either takes longer after a computation.
    async_call_s: what an asynchronous call of ours takes longer, as a thread of its group carries it out.
    late_share, torch_late_share, async_late_share: of such calls (the last: of asynchronous ones of ours), those that
    take longer by late_s, torch_late_s, async_late_s, as a thread waits for a core.
    """

    send_overhead_s: values.Time = 0.0
    receive_overhead_s: values.Time = 0.0
    reduce_bytes_per_s: values.Rate = math.inf
    copy_bytes_per_s: values.Rate = math.inf
    first_touch_bytes_per_s: values.Rate = math.inf
    call_s: values.Time = 0.0
    torch_call_s: values.Time = 0.0
    cold_call_s: values.Time = 0.0
    cold_torch_call_s: values.Time = 0.0
    async_call_s: values.Time = 0.0
    late_share: values.Share = 0.0
    late_s: values.Time = 0.0
    torch_late_share: values.Share = 0.0
    torch_late_s: values.Time = 0.0
    async_late_share: values.Share = 0.0
    async_late_s: values.Time = 0.0


class Protocol(Table, frozen=True):
    """One way in which a library sends its collectives; it takes the one by which a collective is over first.

    start_s: once per collective. link_latency_s, hop_latency_s: from rank to rank within a host, and from host to host;
    tree_...: the same on a tree. share: of the bandwidths of links and NICs.
    """

    name: ResourceName
    start_s: values.Time = 0.0
    link_latency_s: values.Time = 0.0
    hop_latency_s: values.Time = 0.0
    tree_link_latency_s: values.Time = 0.0
    tree_hop_latency_s: values.Time = 0.0
    share: values.Ratio = 1.0


class RingStep(Table, frozen=True):
    """The measured time of a step of a ring across hosts in which each rank sends `message_bytes`.

    It does not include the start of the collective.
    """

    message_bytes: values.Size
    time_s: values.Time


class Tuning(Table, frozen=True):
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

    tree_share: values.Ratio | None = None
    switch_share: values.Ratio | None = None
    switch_latency_s: values.Time | None = None
    switch_hop_latency_s: values.Time | None = None
    message_start: values.Ratio = 1.0
    message_share: values.Ratio = 1.0
    two_host_passes: values.Ratio = 1.0
    pat_share: values.Ratio | None = None
    channels: values.Count = 0
    link_channels: values.Count = 0
    ring_steps: tuple[RingStep, ...] = msgspec.field(default=(), name="ring_step")
    ring_ranks: values.Count = 1
    ring_fill: values.Fraction = 0.0


class SlowRank(Table, frozen=True):
    """A straggler: its overheads, reductions and copies take `slowdown` times as long."""

    rank: values.Whole
    slowdown: values.Slowdown


class SlowLink(Table, frozen=True):
    """A resource with another bandwidth, one that is divided by `slowdown`, or a longer latency."""

    link: str
    bandwidth_bytes_per_s: values.Rate | None = None
    slowdown: values.Slowdown = 1.0
    latency_s: values.Time = 0.0


class Failure(Table, frozen=True):
    """From `at_s` on, a resource gives nothing, or nothing gets to or from a rank."""

    link: str | None = None
    rank: values.Whole | None = None
    at_s: values.Time = 0.0


class Spec(Table, frozen=True):
    """The hosts of a network, how they hang together, and what is wrong with them.

    host, ranks_per_host, num_hosts: all hosts are alike; None: as many as are asked for.
    protocols, library: of a collective library; of them the engines know `switch_share` only.
    placed_hosts: if there are any, these are the hosts, and the three fields above say nothing.
    cables: if there are any, they connect the hosts, and `switch` says nothing.
    """

    host: Host = Host()
    ranks_per_host: values.Count | None = None
    num_hosts: values.Count | None = None
    placed_hosts: tuple[PlacedHost, ...] = msgspec.field(default=(), name="hosts")
    cables: tuple[Cable, ...] = msgspec.field(default=(), name="links")
    switch: Switch = Switch()
    processor: Processor = msgspec.field(default=Processor(), name="rank")
    slow_ranks: tuple[SlowRank, ...] = msgspec.field(default=(), name="slow_rank")
    slow_links: tuple[SlowLink, ...] = msgspec.field(default=(), name="slow_link")
    failures: tuple[Failure, ...] = msgspec.field(default=(), name="failure")
    jitter: Jitter | None = None
    protocols: tuple[Protocol, ...] = msgspec.field(default=(), name="protocol")
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
    if is_dataclass(value) and not isinstance(value, type):
        names: Iterable[str] = [field.name for field in fields(value)]
        replaced: Callable[..., Any] = partial(replace, value)
    elif isinstance(value, msgspec.Struct):
        names, replaced = value.__struct_fields__, partial(structs.replace, value)
    else:
        return value
    changed = {}
    for name in names:
        inner = getattr(value, name)
        changed[name] = change(name, inner) if values.is_number(inner) else with_numbers(inner, change)
    return replaced(**changed)


FREE_BYTES_PER_S = 1e300  # bytes take no time, yet it is a rate: a network on which nothing costs anything is refused


def with_free_bytes(spec: Spec) -> Spec:
    """Return the spec on which bytes take no time, and only latencies and overheads do.

    Slow links keep their longer latency, and slow cores stay slow, as overheads take time on them.
    """

    def free(field: str, number: float) -> float:
        return FREE_BYTES_PER_S if field.endswith("_per_s") else 0 if field == "burst_bytes" else number

    free_spec: Spec = with_numbers(spec, free)
    links = (
        slow if slow.link.endswith(".cores") else structs.replace(slow, slowdown=1.0) for slow in free_spec.slow_links
    )
    return structs.replace(free_spec, slow_links=tuple(links))


def require_quantities(value: object, place: str = "") -> None:
    """Raise ValueError, which names the first, for a number of a spec that cannot be: files are checked before."""
    if isinstance(value, float):
        require_number(value, place)
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            require_quantities(inner, f"{place}[{index}]")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            require_quantities(getattr(value, name), f"{place}.{name}".removeprefix("."))


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
