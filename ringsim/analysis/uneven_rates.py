"""`find_slow_parts`: NICs and links that by their rates are slower than most others of their kind in a cluster."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from ringsim.network import AnyNetwork, Spec
from ringsim.units import format_rate

SLOW = 1.05  # times as long: less is not worth a word


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
