"""`RankLayout`: the host and NIC of each rank; `Leaves`, `Cables`: the switches or cables between hosts.

`nic_share`: the rate of NICs by the number of hosts, where switches and cables are not known.
"""

import json
import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from ringsim.network.spec import Cable, FabricPoint, Failure, Host, Link, SlowLink, Spec
from ringsim.network.topology import NONE, Floats, Ints, Resources


class Catalogue:
    """The numbered resources of a topology during its construction.

    A resource without a limit gets no number, unless the file says that it is slow or fails.
    """

    def __init__(self, slow_links: Sequence[SlowLink], failures: Sequence[Failure]) -> None:
        self._slow_links = slow_links
        self._failures = failures
        self._special = {slow.link for slow in slow_links} | {failure_name(failure) for failure in failures}
        self._offered: dict[str, None] = {}  # only kept to look up slow and failing links
        self._names: list[str] = []
        self._capacity: list[Floats] = []
        self._burst: list[Floats] = []

    def add(self, names: Sequence[str], capacity: Floats, burst_bytes: Floats | None = None) -> Ints:
        """Return the number of each resource, or NONE."""
        keep = np.isfinite(capacity)
        if self._special:
            self._offered.update(dict.fromkeys(names))
            keep |= np.array([name in self._special for name in names], dtype=bool)
        numbers = np.full(len(names), NONE, dtype=np.int64)
        kept = np.flatnonzero(keep)
        numbers[kept] = len(self._names) + np.arange(len(kept))
        self._names += [name for name, is_kept in zip(names, keep, strict=True) if is_kept]
        self._capacity.append(capacity[kept])
        self._burst.append(np.zeros(len(kept)) if burst_bytes is None else burst_bytes[kept])
        return numbers

    def add_ports(self, names: Sequence[str], links: Sequence[Link], half_duplex_suffix: str = "") -> tuple[Ints, Ints]:
        """Return the outgoing and the incoming resource of each link; they are the same in half duplex."""
        half = np.array([link.half_duplex for link in links], dtype=bool)
        capacity = np.array([link.bandwidth_bytes_per_s for link in links])
        burst = np.array([float(link.burst_bytes) for link in links])
        named = list(zip(names, half, strict=True))
        out = self.add([name + (half_duplex_suffix if is_half else ".out") for name, is_half in named], capacity, burst)
        into = out.copy()
        into[~half] = self.add([f"{name}.in" for name, is_half in named if not is_half], capacity[~half], burst[~half])
        return out, into

    def resources(self) -> tuple[Resources, Floats]:
        """Return the resources and their additional latencies.

        Raises ValueError for an unknown slow or failing one.
        """
        number_of = {name: number for number, name in enumerate(self._names)}
        capacity = np.concatenate([*self._capacity, np.empty(0)])
        fails_at, latency = np.full(len(capacity), np.inf), np.zeros(len(capacity))
        for place, slow in enumerate(self._slow_links):
            number = number_of[self._found(slow.link, f"slow_link[{place}].link")]
            capacity[number] = _slowed(capacity[number], slow, f"slow_link[{place}]")
            latency[number] += slow.latency_s
        for place, failure in enumerate(self._failures):
            number = number_of[self._found(failure_name(failure), f"failure[{place}].link")]
            fails_at[number] = min(fails_at[number], failure.at_s)
        burst = np.concatenate([*self._burst, np.empty(0)])
        return Resources(tuple(self._names), capacity, fails_at, burst), latency

    def _found(self, name: str, place: str) -> str:
        if name in self._offered:
            return name
        nearest = ", ".join(get_close_matches(name, self._offered, n=3))
        near = f"; near: {nearest}" if nearest else ""
        raise ValueError(f"{place} = {json.dumps(name)}: there is none on this many ranks{near}")


def failure_name(failure: Failure) -> str:
    """Return the name of the failing resource."""
    return f"rank{failure.rank}" if failure.link is None else failure.link


def _slowed(capacity: float, slow: SlowLink, place: str) -> float:
    if slow.bandwidth_bytes_per_s is not None:
        if slow.link.endswith(".cores"):
            raise ValueError(f'{place}.bandwidth: "{slow.link}" are cores: give a slowdown')
        capacity = slow.bandwidth_bytes_per_s
    if slow.slowdown != 1 and np.isinf(capacity):
        raise ValueError(f'{place}.slowdown = {slow.slowdown:g}: "{slow.link}" has no limit: give a bandwidth')
    if capacity / slow.slowdown == 0:
        raise ValueError(f'{place}.slowdown = {slow.slowdown:g}: nothing is left of "{slow.link}"')
    return capacity / slow.slowdown


@dataclass(frozen=True, slots=True, eq=False)
class RankLayout:
    """The hosts, and the host and NIC of each rank, (num_ranks,).

    host_of_nic: (num_nics,); the NICs of a host are consecutive.
    """

    names: tuple[str, ...]
    hosts: tuple[Host, ...]
    host_of_rank: Ints
    nic_of_rank: Ints
    host_of_nic: Ints

    @property
    def nic_names(self) -> list[str]:
        """Such as host0.nic1."""
        counts = np.bincount(self.host_of_nic).tolist()
        return [f"{name}.nic{i}" for name, count in zip(self.names, counts, strict=True) for i in range(count)]


def lay_out(spec: Spec, num_ranks: int) -> RankLayout:
    """Place the ranks on the hosts. Raises ValueError if there is no room."""
    if num_ranks < 1:
        raise ValueError(f"num_ranks {num_ranks}: must be at least 1")
    if spec.max_ranks is not None and num_ranks > spec.max_ranks:
        raise ValueError(f"its hosts have {spec.max_ranks} ranks: {num_ranks} were asked for")
    return _as_listed(spec, num_ranks) if spec.placed_hosts else _all_alike(spec, num_ranks)


def _all_alike(spec: Spec, num_ranks: int) -> RankLayout:
    per_host = spec.ranks_per_host or num_ranks
    host_of_rank, place = np.divmod(np.arange(num_ranks), per_host)
    num_hosts = int(host_of_rank[-1]) + 1
    names = tuple(f"host{host}" for host in range(num_hosts))
    room = np.full(num_hosts, per_host)  # a rank has the NIC of its place, but no NIC idles that a rank could use
    room[-1] = min(per_host, max(int(place[-1]) + 1, spec.host.nics.count or per_host))
    return _with_nics(names, (spec.host,) * num_hosts, host_of_rank, place, room)


def _as_listed(spec: Spec, num_ranks: int) -> RankLayout:
    everyone = spec.max_ranks or 0
    host_of_rank, place = np.empty(everyone, dtype=np.int64), np.empty(everyone, dtype=np.int64)
    for host, placed in enumerate(spec.placed_hosts):
        host_of_rank[list(placed.ranks)] = host
        place[list(placed.ranks)] = np.arange(len(placed.ranks))
    names = tuple(placed.name for placed in spec.placed_hosts)
    hosts = tuple(placed.host for placed in spec.placed_hosts)
    sizes = np.array([len(placed.ranks) for placed in spec.placed_hosts])
    return _with_nics(names, hosts, host_of_rank[:num_ranks], place[:num_ranks], sizes)


def _with_nics(
    names: tuple[str, ...], hosts: tuple[Host, ...], host_of_rank: Ints, place: Ints, sizes: Ints
) -> RankLayout:
    """place: (num_ranks,), index on the host; sizes: (num_hosts,), ranks that share the NICs."""
    counts = np.array([host.nics.count or size for host, size in zip(hosts, sizes.tolist(), strict=True)])
    first = np.cumsum(counts) - counts
    nic_of_rank = first[host_of_rank] + place * counts[host_of_rank] // sizes[host_of_rank]
    return RankLayout(names, hosts, host_of_rank, nic_of_rank, np.repeat(np.arange(len(hosts)), counts))


def nic_share(fabric: Sequence[FabricPoint], num_hosts: Floats) -> Floats:
    """Return the fraction of a NIC's bandwidth for collectives among these numbers of hosts, in their shape.

    It is linear in the logarithm of the hosts between the points, and constant beyond them.
    """
    if not fabric:
        return np.ones_like(num_hosts)
    hosts, share = zip(*((point.hosts, point.share) for point in fabric), strict=True)
    return np.asarray(np.interp(np.log(num_hosts), np.log(hosts), share))


def slowdown(fabric: Sequence[FabricPoint], num_hosts: int, quantile: float, num_draws: int = 1) -> float:
    """Return how many times as long as usual a call among some hosts takes, by `low` and `high` of the fabric.

    The logarithms of the times are taken to be normal to each side of their median, 1, with the 10th and the 90th
    percentile where those of the rates are (a two-piece normal distribution).

    quantile: of the slowest of `num_draws` independent calls, see `Gpu.slowness`.
    """
    if num_hosts < 2 or not fabric:
        return 1.0
    normal = NormalDist()
    exponent = normal.inv_cdf(quantile ** (1 / num_draws)) / normal.inv_cdf(0.9)
    end = "low" if exponent > 0 else "high"
    points = [replace(point, share=getattr(point, end) or point.share) for point in fabric]
    usual, other = (float(nic_share(some, np.array(float(num_hosts)))) for some in (fabric, points))
    return math.exp(abs(exponent) * math.log(usual / other))


_NICS = re.compile(r".+\.nic\d+")


def on_hosts(spec: Spec, num_hosts: int) -> Spec:
    """Return the spec for collectives among this many hosts: without `fabric`, and with its share of each NIC."""
    share = float(nic_share(spec.fabric, np.array(float(num_hosts))))

    def slower(host: Host) -> Host:
        nics = replace(host.nics, bandwidth_bytes_per_s=share * host.nics.bandwidth_bytes_per_s)
        return replace(host, nics=nics)

    return replace(with_ports(spec, slower, _NICS, share), fabric=())


def with_ports(spec: Spec, change: Callable[[Host], Host], names: re.Pattern[str], share: float) -> Spec:
    """Return the spec with changed hosts, and with `share` of the bandwidths of slow links with matching names."""
    slow_links = tuple(
        replace(slow, bandwidth_bytes_per_s=share * slow.bandwidth_bytes_per_s)
        if slow.bandwidth_bytes_per_s is not None and names.match(slow.link)
        else slow
        for slow in spec.slow_links
    )
    placed = tuple(replace(placed, host=change(placed.host)) for placed in spec.placed_hosts)
    return replace(spec, host=change(spec.host), placed_hosts=placed, slow_links=slow_links)


class HostPath(NamedTuple):
    """Paths from host to host: latency and columns of resources, (num_pairs,) each."""

    latency_s: Floats
    resources: Sequence[Ints]


class Leaves:
    """Leaf switches with `hosts_per_leaf` hosts each, below a core without limits."""

    def __init__(self, spec: Spec, layout: RankLayout, catalogue: Catalogue) -> None:
        self._switch = switch = spec.switch
        self._leaf_of_host = np.arange(len(layout.hosts)) // (switch.hosts_per_leaf or len(layout.hosts))
        num_leaves = int(self._leaf_of_host[-1]) + 1
        uplink = self._uplinks(layout, num_leaves) if num_leaves > 1 else np.full(1, np.inf)
        self._up = catalogue.add([f"leaf{leaf}.up" for leaf in range(num_leaves)], uplink)
        self._down = catalogue.add([f"leaf{leaf}.down" for leaf in range(num_leaves)], uplink)

    def _uplinks(self, layout: RankLayout, num_leaves: int) -> Floats:
        """Return (num_leaves,) bandwidths; a partly filled leaf counts as full."""
        if self._switch.oversubscription is None:
            return np.full(num_leaves, self._switch.uplink_bytes_per_s)
        rates = np.array([host.nics.bandwidth_bytes_per_s for host in layout.hosts])
        below = np.bincount(layout.host_of_nic) * rates
        mean = np.bincount(self._leaf_of_host, below) / np.bincount(self._leaf_of_host)
        return mean * (self._switch.hosts_per_leaf or 1) / self._switch.oversubscription

    def host_path(self, src_host: Ints, dst_host: Ints) -> HostPath:
        """Return the path of each pair; arbitrary from a host to itself."""
        src_leaf, dst_leaf = self._leaf_of_host[src_host], self._leaf_of_host[dst_host]
        across = src_leaf != dst_leaf
        longer = self._switch.latency_s + self._switch.uplink_latency_s
        up, down = np.where(across, self._up[src_leaf], NONE), np.where(across, self._down[dst_leaf], NONE)
        return HostPath(self._switch.latency_s + across * longer, (up, down))


class Cables:
    """Cables between hosts and switches; messages take a path with the fewest links, the first in file order."""

    def __init__(self, spec: Spec, layout: RankLayout, catalogue: Catalogue) -> None:
        self._hosts, cables = layout.names, spec.cables
        self._latency = np.array([cable.latency_s for cable in cables])
        self._ways = neighbours(cables)
        self._there, self._back = _number(cables, catalogue)
        self._reached: dict[int, dict[str, tuple[str, int, bool]]] = {}

    def host_path(self, src_host: Ints, dst_host: Ints) -> HostPath:
        num_hosts = len(self._hosts)
        pairs, which = np.unique(src_host * num_hosts + dst_host, return_inverse=True)
        routes = [self._route(*divmod(int(pair), num_hosts)) for pair in pairs]
        latency = np.array([sum(self._latency[cable] for cable, _ in route) for route in routes], dtype=np.float64)
        width = max((len(route) for route in routes), default=0)
        table = np.full((width, len(routes)), NONE, dtype=np.int64)
        for pair, route in enumerate(routes):
            table[: len(route), pair] = [(self._there if there else self._back)[cable] for cable, there in route]
        return HostPath(latency[which], list(table[:, which]))

    def _route(self, src: int, dst: int) -> list[tuple[int, bool]]:
        """Return the cables of the path, and whether each is passed from its first end."""
        if src not in self._reached:
            self._reached[src] = reach(self._hosts[src], self._ways)
        route, at = [], self._hosts[dst]
        while at != self._hosts[src]:
            at, cable, there = self._reached[src][at]
            route.append((cable, there))
        return route[::-1]


Ways = Mapping[str, Sequence[tuple[str, int, bool]]]


def neighbours(cables: Sequence[Cable]) -> Ways:
    """Return the cables of each host and switch: other end, index, and whether it is the first end."""
    ways: dict[str, list[tuple[str, int, bool]]] = {}
    for number, cable in enumerate(cables):
        first, second = cable.between
        ways.setdefault(first, []).append((second, number, True))
        ways.setdefault(second, []).append((first, number, False))
    return ways


def reach(start: str, ways: Ways) -> dict[str, tuple[str, int, bool]]:
    """Return the predecessor, cable and direction of each reachable end (breadth-first search)."""
    came_from: dict[str, tuple[str, int, bool]] = {}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        for end, cable, there in ways.get(at, ()):
            if end != start and end not in came_from:
                came_from[end] = (at, cable, there)
                queue.append(end)
    return came_from


def _number(cables: Sequence[Cable], catalogue: Catalogue) -> tuple[Ints, Ints]:
    there, back = [], []
    for cable in cables:
        first, second = cable.between
        limits = np.array([cable.bandwidth_bytes_per_s]), np.array([float(cable.burst_bytes)])
        arrow = "<->" if cable.half_duplex else "->"
        there.append(catalogue.add([f"{first}{arrow}{second}"], *limits)[0])
        back.append(there[-1] if cable.half_duplex else catalogue.add([f"{second}->{first}"], *limits)[0])
    return np.array(there), np.array(back)
