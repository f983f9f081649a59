"""`find_troubles`: which of a schedule's pairs of ranks, and which ranks, are slower than the others or fail.

Slow is what a network file declares to be (`[[slow_link]]`, `[[slow_rank]]`), and what by its own rate is slower than
most others of its kind.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from ringsim.analysis.graph_layout import pairs_of
from ringsim.files import finite_or_none
from ringsim.network import NONE, AnyNetwork, Floats, Spec, Topology
from ringsim.schedule import Ints, Schedule
from ringsim.units import format_rate, format_time

SLOW = 1.05  # times as long: less is not worth a word
_ROUNDING = 1e-9
_NAMED = 3  # pairs of ranks in a sentence, and slow parts


class PartKind(Enum):
    """The kinds of parts that are compared with one another."""

    NIC = "nics"
    HOST_LINK = "link"
    CABLE = "cable"


@dataclass(frozen=True, slots=True)
class SlowPart:
    """A part of a cluster with its rate, and the typical one of its kind.

    place: the number of its host or of its link between hosts, in the order of the cluster's description.
    """

    kind: PartKind
    place: int
    name: str
    bytes_per_s: float
    typical_bytes_per_s: float

    def __str__(self) -> str:
        """Such as "the NIC of host c gives 125 MB/s, most give 1.25 GB/s"."""
        typical = self.typical_bytes_per_s
        others = "most have no limit" if math.isinf(typical) else f"most give {format_rate(typical)}"
        return f"{self.name} gives {format_rate(self.bytes_per_s)}, {others}"


def find_slow_parts(network: AnyNetwork) -> tuple[SlowPart, ...]:
    """Return the parts that are slower than the typical one of their kind, the slowest first.

    Typical is the median, of an even number the upper one: of two NICs the slower one is the slow one. Only hosts that
    are described one by one, and links between them, can differ.
    """
    spec, parts = network.spec, []
    for kind in PartKind:
        rates = _rates(spec, kind)
        typical = sorted(rates)[len(rates) // 2] if rates else 0.0
        parts += [
            SlowPart(kind, place, _name(spec, kind, place), rate, typical)
            for place, rate in enumerate(rates)
            if rate * SLOW < typical
        ]
    return tuple(sorted(parts, key=lambda part: part.bytes_per_s / part.typical_bytes_per_s))


def even_out(network: AnyNetwork, parts: Sequence[SlowPart]) -> AnyNetwork:
    """Return the same cluster with these parts as fast as the typical ones of their kind."""
    for part in parts:
        network = _with_rate(network, part)
    return network


def _rates(spec: Spec, kind: PartKind) -> list[float]:
    links: list[Any] = (
        list(spec.cables)
        if kind is PartKind.CABLE
        else [getattr(placed.host, kind.value) for placed in spec.placed_hosts]
    )
    return [link.bandwidth_bytes_per_s for link in links]


def _name(spec: Spec, kind: PartKind, place: int) -> str:
    if kind is PartKind.CABLE:
        return "the link between {} and {}".format(*spec.cables[place].between)
    placed = spec.placed_hosts[place]
    if kind is PartKind.HOST_LINK:
        return f"each link within host {placed.name}"
    return f"{'the NIC' if placed.host.nics.count == 1 else 'each NIC'} of host {placed.name}"


def _with_rate(network: AnyNetwork, part: SlowPart) -> AnyNetwork:
    spec = network.spec
    if part.kind is PartKind.CABLE:
        cables = list(spec.cables)
        cables[part.place] = replace(cables[part.place], bandwidth_bytes_per_s=part.typical_bytes_per_s)
        return network.with_spec(cables=tuple(cables))
    hosts = list(spec.placed_hosts)
    host, field = hosts[part.place].host, part.kind.value
    link = replace(getattr(host, field), bandwidth_bytes_per_s=part.typical_bytes_per_s)
    hosts[part.place] = replace(hosts[part.place], host=replace(host, **{field: link}))
    return network.with_spec(placed_hosts=tuple(hosts))


@dataclass(frozen=True, slots=True)
class TroubledPair:
    """A pair of ranks whose path is slower than it would be on the sound network, or fails.

    slowdown: the time of one of the schedule's chunks over that on the sound network, all of whose NICs and links are
    as fast as most of them. fails_at_s: None: never.
    """

    src: int
    dst: int
    slowdown: float
    fails_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class TroubledRank:
    """A straggler, or a rank that fails; the fields are as above, the slowdown that of its computing."""

    rank: int
    slowdown: float
    fails_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Troubles:
    """All that is wrong with a network, as far as a schedule meets it.

    parts: NICs and links that are slow by their own rates.
    """

    pairs: tuple[TroubledPair, ...] = ()
    ranks: tuple[TroubledRank, ...] = ()
    parts: tuple[SlowPart, ...] = ()


def sound_network(network: AnyNetwork) -> AnyNetwork:
    """Return the same network without slow links, slow ranks and failures."""
    is_sound = not (network.spec.slow_links or network.spec.slow_ranks or network.spec.failures)
    return network if is_sound else network.with_spec(slow_links=(), slow_ranks=(), failures=())


def find_troubles(schedule: Schedule, network: AnyNetwork, size_bytes: int) -> Troubles:
    """Return what is slow or fails of what the schedule uses. Raises ValueError as `network.topology` does."""
    parts = find_slow_parts(network)
    sound = sound_network(even_out(network, parts))
    if network == sound:
        return Troubles()
    topology, sound_topology = (some.topology(schedule.num_ranks) for some in (network, sound))
    return Troubles(
        _troubled_pairs(schedule, topology, sound_topology, size_bytes),
        _troubled_ranks(network, schedule.num_ranks),
        tuple(part for part in parts if _is_met(schedule, network, part, size_bytes)),
    )


def _is_met(schedule: Schedule, network: AnyNetwork, part: SlowPart, size_bytes: int) -> bool:
    """Whether some transfer would be faster if this part alone were as fast as the others."""
    topology, better = (some.topology(schedule.num_ranks) for some in (network, even_out(network, [part])))
    return any(pair.slowdown > SLOW for pair in _troubled_pairs(schedule, topology, better, size_bytes))


def _troubled_pairs(schedule: Schedule, topology: Topology, sound: Topology, size: int) -> tuple[TroubledPair, ...]:
    src, dst = pairs_of(schedule).T
    if not len(src):
        return ()
    chunk_bytes = size / schedule.num_chunks
    slowdown = _message_s(topology, src, dst, chunk_bytes) / _message_s(sound, src, dst, chunk_bytes)
    fails_at_s = _fails_at_s(topology, src, dst)
    return tuple(
        TroubledPair(int(src[row]), int(dst[row]), float(slowdown[row]), finite_or_none(float(fails_at_s[row])))
        for row in np.flatnonzero((slowdown > 1 + _ROUNDING) | np.isfinite(fails_at_s)).tolist()
    )


def _message_s(topology: Topology, src: Ints, dst: Ints, num_bytes: float) -> Floats:
    paths = topology.paths(src, dst)
    seconds: Floats = paths.latency_s + num_bytes / paths.alone_bytes_per_s(topology.resources)
    return np.maximum(seconds, 1e-15)  # on a network where nothing takes time nothing is slow


def _fails_at_s(topology: Topology, src: Ints, dst: Ints) -> Floats:
    """When the first failure on each path is; infinite if there is none."""
    resource = topology.paths(src, dst).resource
    fails_at_s = np.append(topology.resources.fails_at_s, np.inf)
    earliest: Floats = fails_at_s[np.where(resource == NONE, -1, resource)].min(axis=1, initial=np.inf)
    return earliest


def _troubled_ranks(network: AnyNetwork, num_ranks: int) -> tuple[TroubledRank, ...]:
    slowdowns = {slow.rank: slow.slowdown for slow in network.spec.slow_ranks}
    fails = {failure.rank: failure.at_s for failure in network.spec.failures if failure.rank is not None}
    return tuple(
        TroubledRank(rank, slowdowns.get(rank, 1.0), fails.get(rank))
        for rank in sorted(slowdowns.keys() | fails.keys())
        if rank < num_ranks
    )


def slow_pairs(troubles: Troubles) -> set[tuple[int, int]]:
    """Return sender and receiver of each pair whose messages take noticeably longer than they should."""
    return {(pair.src, pair.dst) for pair in troubles.pairs if pair.slowdown > SLOW}


def format_troubles(troubles: Troubles) -> str:
    """Return what is slow or fails as a sentence, of pairs the first few; empty if all is well."""
    slow = [pair for pair in troubles.pairs if pair.slowdown > SLOW]
    slowest = max((pair.slowdown for pair in slow), default=1.0)
    parts = [f"chunks take up to {slowest:.3g} times as long {_ways(slow)}"] if slow else []
    parts += [str(part) for part in troubles.parts[:_NAMED]]
    parts += [f"{len(troubles.parts) - _NAMED} more are slow"] if len(troubles.parts) > _NAMED else []
    for rank in troubles.ranks:
        if rank.slowdown > 1:
            parts.append(f"rank {rank.rank} takes {rank.slowdown:g} times as long to compute as the others")
        if rank.fails_at_s is not None:
            parts.append(f"rank {rank.rank} fails at {format_time(rank.fails_at_s)}")
    dead = {rank.rank for rank in troubles.ranks if rank.fails_at_s is not None}
    # What a rank that fails takes with it need not be said again.
    failing = [pair for pair in troubles.pairs if pair.fails_at_s is not None and not dead & {pair.src, pair.dst}]
    if failing:
        first_s = min(pair.fails_at_s for pair in failing if pair.fails_at_s is not None)
        parts.append(f"after {format_time(first_s)} nothing gets {_ways(failing)}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _ways(pairs: Sequence[TroubledPair]) -> str:
    named = ", ".join(f"from rank {pair.src} to rank {pair.dst}" for pair in pairs[:_NAMED])
    others = len(pairs) - _NAMED
    return named + (f", and on {others} more ways" if others > 0 else "")
