"""`Spec`: the contents of a network file as data; `docs/reference/files.md` describes each table."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Self

import msgspec
from msgspec import structs

from ringsim.files import Record, values, without_unit
from ringsim.network.topology import Jitter


def _half_duplex(value: Any) -> bool:
    if value not in ("full", "half"):
        raise ValueError('must be "full" or "half"')
    return bool(value == "half")


def _name(value: Any) -> str:
    """Refuse dots, arrows and blanks, since resources are named after it."""
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


def _key(field: str) -> str:
    return _NAMES.get(field) or without_unit(field)


class Table(Record, frozen=True, rename=_key):
    """A table of a network file: values have units, keys are field names without units."""


class Link(Table, frozen=True):
    """A kind of link. burst_bytes: size of its token bucket in each direction, see `Resources`."""

    latency_s: values.Time = 0.0
    bandwidth_bytes_per_s: values.Rate = math.inf
    half_duplex: values.By[bool, _half_duplex] = msgspec.field(default=False, name="duplex")
    burst_bytes: values.Size = 0


class Nics(Link, frozen=True):
    """The network interfaces of a host, all alike; consecutive ranks share one. count: 0: one per rank."""

    count: Annotated[int, values.whole(0, values.MAX_COUNT)] = 1


class MemoryRate(Table, frozen=True):
    """The rates of one core while each rank publishes `published_bytes`: the more, the fewer are in the caches.

    They are for tensors spread over `SharedMemory.touched_bytes`; cached_...: for the same tensors each time.
    reduce_into_bytes_per_s: of additions of two inputs into a third memory.
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

    slot_bytes: that a rank can publish at a time; larger tensors go in portions.
    touched_bytes: memory that a rank walked through in the measurement of the rates.
    call_s to late_s: as in `Processor`. rates: by increasing `published_bytes`; at least one.
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

    cores: None: always enough. link: a rank's port to the other ranks of the host.
    memory_bytes_per_s: a message within the host uses it `copies` times per byte.
    shared_memory: only for our collectives.
    """

    cores: values.Count | None = None
    memory_bytes_per_s: values.Rate = math.inf
    copies: values.Ratio = 2.0
    link: Link = Link()
    nics: Nics = msgspec.field(default=Nics(), name="nic")
    shared_memory: SharedMemory | None = None


class PlacedHost(Record, frozen=True):
    """A host of `Spec.placed_hosts`."""

    name: str
    ranks: tuple[int, ...]
    host: Host


class Switch(Table, frozen=True):
    """The leaf switches.

    hosts_per_leaf: None: one switch for all hosts.
    uplink_bytes_per_s: of all uplinks of a leaf together, in each direction.
    oversubscription: instead, bandwidth of a leaf's NICs over that of its uplinks.
    """

    latency_s: values.Time = 0.0
    hosts_per_leaf: values.Count | None = None
    uplink_bytes_per_s: values.Rate = math.inf
    oversubscription: values.Ratio | None = None
    uplink_latency_s: values.Time = 0.0


class Cable(Link, frozen=True, kw_only=True):
    """A link between two hosts, two switches, or one of each."""

    between: values.By[tuple[str, str], _two_names]


class FabricPoint(Table, frozen=True):
    """The fraction of a NIC's bandwidth that a collective among `hosts` hosts reaches.

    low, high: its 10th and 90th percentile at different times; None: as `share`. They may rise with the hosts.
    """

    hosts: Annotated[int, values.whole(2, values.MAX_COUNT)]
    share: values.Ratio
    low: values.Ratio | None = None
    high: values.Ratio | None = None


class Processor(Table, frozen=True):
    """The costs of a rank at the two ends of a message, and of calls, besides messages and copies.

    first_touch_bytes_per_s: of copies into new memory, which no message does.
    cold_call_s, async_call_s: in addition to `call_s`, after a computation and for an asynchronous call.
    late_share: of the calls, that take `late_s` longer because a thread waits for a core.
    torch_...: of calls of torch.distributed.
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
    """A protocol of a library, which chooses the fastest for each collective.

    link_latency_s, hop_latency_s: of a hop within a host, and between hosts. share: of the bandwidths.
    """

    name: ResourceName
    start_s: values.Time = 0.0
    link_latency_s: values.Time = 0.0
    hop_latency_s: values.Time = 0.0
    tree_link_latency_s: values.Time = 0.0
    tree_hop_latency_s: values.Time = 0.0
    share: values.Ratio = 1.0


class RingStep(Table, frozen=True):
    """The measured time of a step of a ring across hosts, without the start, with messages of `message_bytes`."""

    message_bytes: values.Size
    time_s: values.Time


class Tuning(Table, frozen=True):
    """The algorithms of a collective library, in addition to its protocols; `nccl_model` has the formulas.

    tree_share, switch_share, pat_share: of the bandwidth; None: the library has no trees, in-network reduction or PAT.
    switch_latency_s: None: the start and two hops of the last protocol.
    switch_hop_latency_s: where trees join the switches of several hosts; None: no such trees.
    message_start: factor of `start_s` for a single message.
    two_host_passes: how many times all bytes of an all_reduce on trees leave each of two hosts.
    channels: of a large call; 0: not known. link_channels: of a ring within a host; 0: the same.
    ring_steps: by message size; empty: times follow from the protocols. ring_ranks: per host in their measurement.
    ring_overhead_s: the least time of a step of a ring across hosts.
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
    ring_overhead_s: values.Time = 0.0


class SlowRank(Table, frozen=True):
    """A straggler: its overheads, reductions and copies take `slowdown` times as much time."""

    rank: values.Whole
    slowdown: values.Slowdown


class SlowLink(Table, frozen=True):
    """A resource with another bandwidth, with it divided by `slowdown`, or with additional latency."""

    link: str
    bandwidth_bytes_per_s: values.Rate | None = None
    slowdown: values.Slowdown = 1.0
    latency_s: values.Time = 0.0


class Failure(Table, frozen=True):
    """From `at_s` on, a resource has no capacity, or no message gets to or from a rank."""

    link: str | None = None
    rank: values.Whole | None = None
    at_s: values.Time = 0.0


class Spec(Table, frozen=True):
    """The hosts of a network, their connections and their faults.

    host, ranks_per_host, num_hosts: if all hosts are alike; None: any number. `placed_hosts` replace them.
    cables: between the hosts; they replace `switch`.
    fabric: by increasing hosts, with shares that do not increase; see `Network.on_hosts`.
    protocols, library: of a collective library; the engines use `switch_share` only.
    """

    host: Host = Host()
    ranks_per_host: values.Count | None = None
    num_hosts: values.Count | None = None
    placed_hosts: tuple[PlacedHost, ...] = msgspec.field(default=(), name="hosts")
    cables: tuple[Cable, ...] = msgspec.field(default=(), name="links")
    switch: Switch = Switch()
    fabric: tuple[FabricPoint, ...] = ()
    processor: Processor = msgspec.field(default=Processor(), name="rank")
    slow_ranks: tuple[SlowRank, ...] = msgspec.field(default=(), name="slow_rank")
    slow_links: tuple[SlowLink, ...] = msgspec.field(default=(), name="slow_link")
    failures: tuple[Failure, ...] = msgspec.field(default=(), name="failure")
    jitter: Jitter | None = None
    protocols: tuple[Protocol, ...] = msgspec.field(default=(), name="protocol")
    library: Tuning = Tuning()

    @property
    def max_ranks(self) -> int | None:
        """None: any number."""
        if self.placed_hosts:
            return sum(len(placed.ranks) for placed in self.placed_hosts)
        if self.num_hosts is None or self.ranks_per_host is None:
            return None
        return self.num_hosts * self.ranks_per_host


class MessageCosts(NamedTuple):
    """The costs of a message on a uniform network; see `Network.uniform`."""

    latency_s: float
    bandwidth_bytes_per_s: float
    reduce_bytes_per_s: float = math.inf
    gap_s: float = 0.0
    receive_overhead_s: float = 0.0

    @classmethod
    def from_spec(cls, spec: Spec) -> Self:
        link, rank = spec.host.link, spec.processor
        overheads_s = rank.send_overhead_s, rank.receive_overhead_s
        return cls(link.latency_s, link.bandwidth_bytes_per_s, rank.reduce_bytes_per_s, *overheads_s)

    @property
    def spec(self) -> Spec:
        processor = Processor(self.gap_s, self.receive_overhead_s, self.reduce_bytes_per_s)
        return Spec(host=Host(link=Link(self.latency_s, self.bandwidth_bytes_per_s)), processor=processor)


def with_numbers(part: Any, change: Callable[[str, str, float], Any], place: str = "") -> Any:
    """Return a spec, or part of one, with `change(place, field, number)` in place of each number.

    place: keys of the file, such as "host.nic.latency"; the same for all tables of a list.
    """
    if isinstance(part, tuple):
        return tuple(with_numbers(inner, change, place) for inner in part)
    if not isinstance(part, msgspec.Struct):
        return part
    changed = {}
    for field, key in zip(part.__struct_fields__, part.__struct_encode_fields__, strict=True):
        inner, there = getattr(part, field), f"{place}.{key}".removeprefix(".")
        changed[field] = change(there, field, inner) if values.is_number(inner) else with_numbers(inner, change, there)
    return structs.replace(part, **changed)


def quantities(spec: Spec) -> dict[str, float]:
    """Return the numbers of the tables by place, as in `with_numbers`; of a list of tables, the last one's."""
    numbers: dict[str, float] = {}

    def noted(place: str, _field: str, number: float) -> float:
        numbers[place] = number
        return number

    with_numbers(spec, noted)
    return {place: number for place, number in numbers.items() if "." in place}


def scaled(spec: Spec, ratios: Mapping[str, float]) -> Spec:
    """Return the spec with numbers multiplied by `ratios`, by places as in `with_numbers`; unknown ones are ignored.

    Shares are limited to 1.
    """

    def times(place: str, field: str, number: float) -> float:
        if place not in ratios:
            return number
        product = number * ratios[place]
        return min(product, 1.0) if field.endswith("share") else round(product) if isinstance(number, int) else product

    larger: Spec = with_numbers(spec, times)
    return larger


FREE_BYTES_PER_S = 1e300  # bytes take no time, yet it is a rate: a network on which nothing costs anything is refused


def with_free_bytes(spec: Spec) -> Spec:
    """Return the spec with bytes that take no time; latencies and overheads remain, and slow cores."""

    def free(_place: str, field: str, number: float) -> float:
        return FREE_BYTES_PER_S if field.endswith("_per_s") else 0 if field == "burst_bytes" else number

    free_spec: Spec = with_numbers(spec, free)
    links = (
        slow if slow.link.endswith(".cores") else structs.replace(slow, slowdown=1.0) for slow in free_spec.slow_links
    )
    return structs.replace(free_spec, slow_links=tuple(links))


def require_quantities(value: object, place: str = "") -> None:
    """Raise ValueError for the first invalid number of a spec."""
    if values.is_number(value):
        require_number(value, place)
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            require_quantities(inner, f"{place}[{index}]")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            require_quantities(getattr(value, name), f"{place}.{name}".removeprefix("."))


def require_number(value: float, place: str) -> None:
    """Raise ValueError for an invalid number; `place` ends in the kind of quantity."""
    if place.endswith("_per_s"):
        rule = "" if value > 0 else "greater than 0"
    elif place.endswith("late_share"):
        rule = "" if 0 <= value <= 1 else "from 0 to 1"
    elif place.endswith(("slowdown", "oversubscription", "share")):
        rule = "" if 0 < value < math.inf else "finite and greater than 0"
    else:
        rule = "" if 0 <= value < math.inf else "finite and not negative"
    if rule:
        raise ValueError(f"{place} {value}: must be {rule}")
