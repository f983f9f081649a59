"""`find_slow_parts`: the ranks, and pairs of ranks of a schedule, that are slow or fail.

Slow are links and ranks declared in the network file (`[[slow_link]]`, `[[slow_rank]]`), and NICs and links below
the rate of most others of their kind.
"""

from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from ringsim.analysis.graph_layout import pairs_of
from ringsim.files import finite_or_none
from ringsim.network import NONE, Floats, Network, Spec, Topology
from ringsim.schedule import Ints, Schedule
from ringsim.text_table import as_sentence, text_template

SLOW = 1.05  # times as long, from which a part is called slow
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class SlowPart:
    """A NIC or link with its rate, and the typical rate of its kind.

    kind: field of a host, or `cables`. place: index of the host or cable in the network file.
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


def _evened_out(network: Network, part: SlowPart) -> Network:
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
    sound = reduce(_evened_out, parts, network)
    if network.spec.slow_links or network.spec.slow_ranks or network.spec.failures:
        sound = sound.with_spec(slow_links=(), slow_ranks=(), failures=())
    if network == sound:
        return SlowParts()
    topology = network.topology(schedule.num_ranks)

    def affected_pairs(better: Network) -> tuple[AffectedPair, ...]:
        return _affected_pairs(schedule, topology, better.topology(schedule.num_ranks), size_bytes)

    def is_met(part: SlowPart) -> bool:
        return any(pair.slowdown > SLOW for pair in affected_pairs(_evened_out(network, part)))

    ranks = _affected_ranks(network, schedule.num_ranks)
    return SlowParts(affected_pairs(sound), ranks, tuple(filter(is_met, parts)))


def _affected_pairs(schedule: Schedule, topology: Topology, sound: Topology, size: int) -> tuple[AffectedPair, ...]:
    src, dst = pairs_of(schedule).T
    if not len(src):
        return ()
    chunk_bytes = size / schedule.num_chunks
    slowdown = _message_s(topology, src, dst, chunk_bytes) / _message_s(sound, src, dst, chunk_bytes)
    fails_at_s = _fails_at_s(topology, src, dst)
    return tuple(
        AffectedPair(int(src[row]), int(dst[row]), float(slowdown[row]), finite_or_none(float(fails_at_s[row])))
        for row in np.flatnonzero((slowdown > 1 + _ROUNDING) | np.isfinite(fails_at_s)).tolist()
    )


def _message_s(topology: Topology, src: Ints, dst: Ints, num_bytes: float) -> Floats:
    paths = topology.paths(src, dst)
    seconds: Floats = paths.latency_s + num_bytes / paths.alone_bytes_per_s(topology.resources)
    return np.maximum(seconds, 1e-15)  # where nothing takes time nothing is slow


def _fails_at_s(topology: Topology, src: Ints, dst: Ints) -> Floats:
    resource = topology.paths(src, dst).resource
    fails_at_s = np.append(topology.resources.fails_at_s, np.inf)
    return np.asarray(fails_at_s[np.where(resource == NONE, -1, resource)].min(axis=1, initial=np.inf))


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
