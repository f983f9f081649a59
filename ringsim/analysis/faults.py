"""Slow, failing and hanging parts: `find_slow_parts` before a run, `find_blocked` after it.

Slow are links and ranks declared slow in the network file, and NICs and links below the rate of most others of their
kind.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ringsim.analysis.graph_layout import pairs_of
from ringsim.files import finite_or_none
from ringsim.network import NONE, Floats, Network, Spec, Topology
from ringsim.schedule import Ints, Schedule
from ringsim.simulation import Timeline
from ringsim.text_table import MAX_NAMED, as_sentence, first_named, text_template
from ringsim.units import ROUNDING, format_time

Activities = tuple[npt.NDArray[np.signedinteger], Floats, Floats]
SLOW = 1.05  # times as long, from which a part is called slow


@dataclass(frozen=True, slots=True)
class SlowPart:
    """A NIC or link with its rate, and the typical rate of its kind.

    kind: field of a host, or `cables`. place: index in the network file.
    """

    kind: str
    place: int
    name: str
    bytes_per_s: float
    typical_bytes_per_s: float


def _slow_links(spec: Spec) -> list[SlowPart]:
    """Return the parts below the (upper) median rate of their kind, the slowest first."""
    hosts = [(placed.name, placed.host) for placed in spec.placed_hosts]
    kinds: dict[str, list[tuple[str, Any]]] = {
        "nics": [
            (f"{'the' if host.nics.count == 1 else 'each'} NIC of host {name}", host.nics) for name, host in hosts
        ],
        "link": [(f"each link within host {name}", host.link) for name, host in hosts],
        "cables": [("the link between {} and {}".format(*cable.between), cable) for cable in spec.cables],
    }
    parts = []
    for kind, named in kinds.items():
        rates = [link.bandwidth_bytes_per_s for _, link in named]
        typical = sorted(rates)[len(rates) // 2] if rates else 0.0
        slow = [(place, rate) for place, rate in enumerate(rates) if rate * SLOW < typical]
        parts += [SlowPart(kind, place, named[place][0], rate, typical) for place, rate in slow]
    return sorted(parts, key=lambda part: part.bytes_per_s / part.typical_bytes_per_s)


def _without_part(network: Network, part: SlowPart) -> Network:
    rate, spec = {"bandwidth_bytes_per_s": part.typical_bytes_per_s}, network.spec
    if part.kind == "cables":
        return network.with_spec(cables=_replaced(spec.cables, part.place, **rate))
    host = spec.placed_hosts[part.place].host
    better = replace(host, **{part.kind: replace(getattr(host, part.kind), **rate)})
    return network.with_spec(placed_hosts=_replaced(spec.placed_hosts, part.place, host=better))


def _replaced(items: tuple[Any, ...], place: int, **changes: Any) -> tuple[Any, ...]:
    return (*items[:place], replace(items[place], **changes), *items[place + 1 :])


@dataclass(frozen=True, slots=True)
class AffectedPair:
    """A pair of ranks whose path is slowed by slow parts, or fails.

    slowdown: of the time of one chunk. fails_at_s: None: never.
    """

    src: int
    dst: int
    slowdown: float
    fails_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class AffectedRank:
    """A straggler, or a rank that fails. slowdown: of its computing. fails_at_s: None: never."""

    rank: int
    slowdown: float
    fails_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class SlowParts:
    """The slow and failing parts that a schedule uses. parts: slow by their own rates."""

    pairs: tuple[AffectedPair, ...] = ()
    ranks: tuple[AffectedRank, ...] = ()
    parts: tuple[SlowPart, ...] = ()


def find_slow_parts(schedule: Schedule, network: Network, size_bytes: int) -> SlowParts:
    """Return the parts that the schedule uses. Raises the ValueErrors of `network.topology`."""
    parts = _slow_links(network.spec)
    sound = reduce(_without_part, parts, network)
    if network.spec.slow_links or network.spec.slow_ranks or network.spec.failures:
        sound = sound.with_spec(slow_links=(), slow_ranks=(), failures=())
    if network == sound:
        return SlowParts()
    topology = network.topology(schedule.num_ranks)

    def affected_pairs(better: Network) -> tuple[AffectedPair, ...]:
        return _affected_pairs(schedule, topology, better.topology(schedule.num_ranks), size_bytes)

    def is_met(part: SlowPart) -> bool:
        return any(pair.slowdown > SLOW for pair in affected_pairs(_without_part(network, part)))

    ranks = _affected_ranks(network, schedule.num_ranks)
    return SlowParts(affected_pairs(sound), ranks, tuple(filter(is_met, parts)))


def _affected_pairs(schedule: Schedule, topology: Topology, sound: Topology, size: int) -> tuple[AffectedPair, ...]:
    src, dst = pairs_of(schedule).T
    if not len(src):
        return ()
    chunk_bytes = size / schedule.num_chunks
    slowdown = message_s(topology, src, dst, chunk_bytes) / message_s(sound, src, dst, chunk_bytes)
    at_s = fails_at_s(topology, src, dst)
    return tuple(
        AffectedPair(int(src[row]), int(dst[row]), float(slowdown[row]), finite_or_none(float(at_s[row])))
        for row in np.flatnonzero((slowdown > 1 + ROUNDING) | np.isfinite(at_s)).tolist()
    )


def message_s(topology: Topology, src: Ints, dst: Ints, num_bytes: float) -> Floats:
    """Return the seconds of a message alone between pairs of ranks, (num_pairs,)."""
    paths = topology.paths(src, dst)
    seconds: Floats = paths.latency_s + num_bytes / paths.alone_bytes_per_s(topology.resources)
    return np.maximum(seconds, 1e-15)  # where nothing takes time nothing is slow


def fails_at_s(topology: Topology, src: Ints, dst: Ints) -> Floats:
    """Return when the paths of pairs of ranks fail, (num_pairs,); infinite: never."""
    resource, never = topology.paths(src, dst).resource, np.inf  # the last element stands for NONE
    return np.asarray(np.append(topology.resources.fails_at_s, never)[resource].min(axis=1, initial=never))


def _affected_ranks(network: Network, num_ranks: int) -> tuple[AffectedRank, ...]:
    slowdowns = {slow.rank: slow.slowdown for slow in network.spec.slow_ranks}
    fails = {failure.rank: failure.at_s for failure in network.spec.failures if failure.rank is not None}
    ranks = sorted(rank for rank in slowdowns.keys() | fails.keys() if rank < num_ranks)
    return tuple(AffectedRank(rank, slowdowns.get(rank, 1.0), fails.get(rank)) for rank in ranks)


def slow_pairs(slow_parts: SlowParts) -> set[tuple[int, int]]:
    """Return sender and receiver of each slow pair."""
    return {(pair.src, pair.dst) for pair in slow_parts.pairs if pair.slowdown > SLOW}


def format_slow_parts(slow_parts: SlowParts) -> str:
    """Return a sentence on slow and failing parts, with the first few pairs; or ""."""
    dead = {rank.rank for rank in slow_parts.ranks if rank.fails_at_s is not None}
    # Pairs of a failing rank are not repeated.
    failing = [pair for pair in slow_parts.pairs if pair.fails_at_s is not None and not dead & {pair.src, pair.dst}]
    slow = [pair for pair in slow_parts.pairs if pair.slowdown > SLOW]
    template = text_template(Path(__file__).with_name("slow_parts.j2"))
    clauses = template.render(slow=slow, parts=slow_parts.parts, ranks=slow_parts.ranks, failing=failing).splitlines()
    return as_sentence("; ".join(clauses)) if clauses else ""


@dataclass(frozen=True, slots=True)
class BlockedTransfer:
    """A transfer that is never applied."""

    step: int
    src: int
    dst: int
    chunk: int


@dataclass(frozen=True, slots=True)
class BlockedRank:
    """A rank that never finishes.

    last_active_s: end of its last activity; 0 if there is none.
    doing: "sends", "adds" (or copies) or "waits", for `transfer`, without end.
    peer: the other rank of the transfer. failed: resources on its path.
    """

    rank: int
    last_active_s: float
    doing: str
    peer: int
    transfer: BlockedTransfer
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BlockedRun:
    """A run that never finishes; nothing happens after `until_s`.

    first: unapplied transfers in step order. failed: resources that stop transfers, and when they failed.
    """

    until_s: float
    num_transfers: int
    num_unfinished: int
    first: tuple[BlockedTransfer, ...]
    failed: tuple[tuple[str, float], ...]
    ranks: tuple[BlockedRank, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"failed": [{"name": name, "failed_at_s": at_s} for name, at_s in self.failed]}


def find_blocked(timeline: Timeline, topology: Topology) -> BlockedRun | None:
    """Return why a run never finishes; None if it finishes."""
    never = np.flatnonzero(~np.isfinite(timeline.applied_s))
    if not len(never):
        return None
    ranks, resources = tuple(_blocked_ranks(timeline, topology)), topology.resources
    names = dict.fromkeys(name for rank in ranks if rank.doing != "waits" for name in rank.failed)
    return BlockedRun(
        until_s=timeline.until_s,
        num_transfers=len(timeline),
        num_unfinished=len(never),
        first=tuple(_transfer(timeline, row) for row in never[:MAX_NAMED].tolist()),
        failed=tuple((name, float(resources.fails_at_s[resources.names.index(name)])) for name in names),
        ranks=ranks,
    )


def _transfer(timeline: Timeline, row: int) -> BlockedTransfer:
    return BlockedTransfer(*(int(getattr(timeline, name)[row]) for name in ("step", "src", "dst", "chunk")))


def _blocked_ranks(timeline: Timeline, topology: Topology) -> Iterator[BlockedRank]:
    """Yield the ranks that never finish, with the first unfinished activity, or else the first wait."""
    last_active = last_active_s(timeline)
    unended = ~np.isfinite(timeline.applied_s)
    begun_to_send = np.isfinite(timeline.start_s) & ~np.isfinite(timeline.sent_s)
    begun_to_apply = np.isfinite(timeline.apply_s) & unended
    activities: dict[int, tuple[str, int]] = {}
    for doing, its_rank, rows in (
        ("sends", timeline.src, begun_to_send),
        ("adds", timeline.dst, begun_to_apply),
        ("waits", timeline.dst, unended),
    ):
        for row in np.flatnonzero(rows).tolist():
            activities.setdefault(int(its_rank[row]), (doing, row))
    for rank, (doing, row) in sorted(activities.items()):
        transfer = _transfer(timeline, row)
        peer = transfer.dst if doing == "sends" else transfer.src
        failed = _failed(topology, transfer, timeline.until_s)
        yield BlockedRank(rank, float(last_active[rank]), doing, peer, transfer, failed)


def activities(timeline: Timeline) -> tuple[Activities, Activities]:
    """Return the sends and the applications: rank, begin and end of each, (num_transfers,)."""
    sends = timeline.src, timeline.start_s, timeline.sent_s
    return sends, (timeline.dst, timeline.apply_s, timeline.applied_s)


def last_active_s(timeline: Timeline) -> Floats:
    """Return the time of each rank's last event, (num_ranks,)."""
    latest = np.zeros(timeline.num_ranks)
    for rank, begin, end in activities(timeline):
        np.maximum.at(latest, rank, np.where(np.isfinite(end), end, np.where(np.isfinite(begin), begin, 0.0)))
    return latest


def _failed(topology: Topology, transfer: BlockedTransfer, until_s: float) -> tuple[str, ...]:
    resources, cores = topology.resources, topology.processors.cores
    path = topology.paths(np.array([transfer.src]), np.array([transfer.dst])).resource[0].tolist()
    used = dict.fromkeys([*path, int(cores[transfer.src]), int(cores[transfer.dst])])
    fails_at = {number: float(resources.fails_at_s[number]) for number in used if number != NONE}
    # A transfer that uses the first failed resource cannot end after its failure.
    first_s = min(fails_at.values(), default=np.inf)
    return tuple(resources.names[number] for number, at_s in fails_at.items() if at_s <= max(until_s, first_s) < np.inf)


def format_blocked(blocked: BlockedRun) -> list[str]:
    """Return lines of text; steps count from 1."""
    first = blocked.first[0]
    ranks = [
        f"rank {rank.rank} was last active at {format_time(rank.last_active_s)} and {hanging_text(rank)}"
        for rank in blocked.ranks
    ]
    return [
        f"{blocked.num_unfinished} of {blocked.num_transfers} transfers cannot happen, from step {first.step + 1}, "
        f"rank {first.src} -> {first.dst}, chunk {first.chunk}; nothing finishes after {format_time(blocked.until_s)}",
        *(f"{name} failed at {format_time(at_s)}" for name, at_s in blocked.failed),
        *first_named(ranks, "more ranks"),
    ]


_HANGING = {
    "sends": "sends to rank {peer} without end: chunk {chunk}, step {step}",
    "adds": "adds without end what rank {peer} sent: chunk {chunk}, step {step}",
    "waits": "waits for rank {peer}: chunk {chunk}, step {step}",
}


def hanging_text(rank: BlockedRank, first_step: int = 1) -> str:
    """Describe a rank's endless activity; steps count from `first_step`."""
    transfer = rank.transfer
    return _HANGING[rank.doing].format(peer=rank.peer, chunk=transfer.chunk, step=transfer.step + first_step)
