"""`find_troubles`: which of a schedule's pairs of ranks, and which ranks, are slower than the others or fail.

Slow is what a network file declares to be (`[[slow_link]]`, `[[slow_rank]]`), and what by its own rate is slower than
most others of its kind.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from msgspec.structs import replace

from ringsim.analysis.graph_layout import pairs_of
from ringsim.files import finite_or_none
from ringsim.network import NONE, Floats, Network, Spec, Topology
from ringsim.schedule import Ints, Schedule
from ringsim.units import format_rate, format_time

SLOW = 1.05  # times as long: less is not worth a word
_ROUNDING = 1e-9
_NAMED = 3  # pairs of ranks in a sentence, and slow parts


@dataclass(frozen=True, slots=True)
class SlowPart:
    """A part of a cluster with its rate, and the typical one of its kind.

    kind: the field of a host, or `cables`. place: the number of its host or cable, in the order of the description.
    """

    kind: str
    place: int
    name: str
    bytes_per_s: float
    typical_bytes_per_s: float

    def __str__(self) -> str:
        """Such as "the NIC of host c gives 125 MB/s, most give 1.25 GB/s"."""
        typical = self.typical_bytes_per_s
        others = "most have no limit" if math.isinf(typical) else f"most give {format_rate(typical)}"
        return f"{self.name} gives {format_rate(self.bytes_per_s)}, {others}"


def _find_slow_parts(spec: Spec) -> list[SlowPart]:
    """Return the parts that are slower than the typical one of their kind, the slowest first.

    Typical is the median, of an even number the upper one: of two NICs the slower one is the slow one. Only hosts that
    are described one by one, and links between them, can differ.
    """
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
    """Return the same cluster with this part as fast as the typical one of its kind."""
    rate, spec = {"bandwidth_bytes_per_s": part.typical_bytes_per_s}, network.spec
    if part.kind == "cables":
        return network.with_spec(cables=_replaced(spec.cables, part.place, **rate))
    host = spec.placed_hosts[part.place].host
    better = replace(host, **{part.kind: replace(getattr(host, part.kind), **rate)})
    return network.with_spec(placed_hosts=_replaced(spec.placed_hosts, part.place, host=better))


def _replaced(items: tuple[Any, ...], place: int, **changes: Any) -> tuple[Any, ...]:
    return (*items[:place], replace(items[place], **changes), *items[place + 1 :])


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


def find_troubles(schedule: Schedule, network: Network, size_bytes: int) -> Troubles:
    """Return what is slow or fails of what the schedule uses. Raises ValueError as `network.topology` does."""
    parts = _find_slow_parts(network.spec)
    sound = reduce(_evened_out, parts, network)
    if network.spec.slow_links or network.spec.slow_ranks or network.spec.failures:
        sound = sound.with_spec(slow_links=(), slow_ranks=(), failures=())
    if network == sound:
        return Troubles()
    topology = network.topology(schedule.num_ranks)

    def troubled_pairs(better: Network) -> tuple[TroubledPair, ...]:
        return _troubled_pairs(schedule, topology, better.topology(schedule.num_ranks), size_bytes)

    def is_met(part: SlowPart) -> bool:
        """Return whether some transfer would be faster if this part alone were as fast as the others."""
        return any(pair.slowdown > SLOW for pair in troubled_pairs(_evened_out(network, part)))

    ranks = _troubled_ranks(network, schedule.num_ranks)
    return Troubles(troubled_pairs(sound), ranks, tuple(filter(is_met, parts)))


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
    """Return the time of the first failure on each path; infinite if there is none."""
    resource = topology.paths(src, dst).resource
    fails_at_s = np.append(topology.resources.fails_at_s, np.inf)
    return np.asarray(fails_at_s[np.where(resource == NONE, -1, resource)].min(axis=1, initial=np.inf))


def _troubled_ranks(network: Network, num_ranks: int) -> tuple[TroubledRank, ...]:
    slowdowns = {slow.rank: slow.slowdown for slow in network.spec.slow_ranks}
    fails = {failure.rank: failure.at_s for failure in network.spec.failures if failure.rank is not None}
    ranks = sorted(rank for rank in slowdowns.keys() | fails.keys() if rank < num_ranks)
    return tuple(TroubledRank(rank, slowdowns.get(rank, 1.0), fails.get(rank)) for rank in ranks)


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
