"""`NetworkBound`: the time that no schedule of a collective can undercut on a network.

The largest of three bounds:
- *cut*: the data that a set of ranks needs from the others must enter it, over the smallest cut (Zhao et al.,
ForestColl, 2024), found by max-flow and Newton's method.
- *total*: a byte reaches all ranks by n - 1 messages, in an all_reduce by 2(n - 1) (one-way gossip, Harary and Schwenk
1974), which share the capacity of the network; likewise for hosts.
- *latency*: data must reach the farthest rank that needs them, over any ranks between.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from ringsim.limits import BOUND_FLOW_EDGES, BOUND_PAIRS
from ringsim.network import NONE, Floats, Ints, Network, Topology, lay_out
from ringsim.schedule import Bools, Collective
from ringsim.units import ROUNDING

if TYPE_CHECKING:
    import networkx as nx

BOUNDED = (
    Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER, Collective.BROADCAST, Collective.REDUCE,
)  # fmt: skip
MIN_TARGETS = 8  # least number of ranks for which a cut is found
SOURCE, SINK = "source", "sink"


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Pairs of ranks, one per row; columns have the shape (num_links,).

    send_s, receive_s: overheads of a message. fixed_s: overheads and latency.
    resource: (num_links, width), NONE where the row is shorter. s_per_byte: per resource, 0 for NONE.
    alone_s_per_byte: of a message without contention.
    names: of the resources. burst_bytes: (num_resources,), that a token bucket lets pass at once.
    """

    num_ranks: int
    src: Ints
    dst: Ints
    fixed_s: Floats
    send_s: Floats
    receive_s: Floats
    resource: Ints
    s_per_byte: Floats
    alone_s_per_byte: Floats
    names: tuple[str, ...]
    burst_bytes: Floats

    @classmethod
    def of(cls, topology: Topology) -> Self:
        """Return the links between all pairs of ranks. Raises ValueError for more than `BOUND_PAIRS` pairs."""
        num_ranks = topology.num_ranks
        if num_ranks * (num_ranks - 1) > BOUND_PAIRS:
            rule = "at most that many are examined one by one"
            raise ValueError(f"{num_ranks} ranks have more than {BOUND_PAIRS:,} pairs: {rule}")
        src, dst = np.nonzero(~np.eye(num_ranks, dtype=np.bool_))
        paths, processors = topology.paths(src, dst), topology.processors
        is_used = (paths.resource != NONE) & (paths.use_per_byte > 0)
        s_per_byte = np.zeros(paths.resource.shape)
        s_per_byte[is_used] = paths.use_per_byte[is_used] / topology.resources.capacity[paths.resource[is_used]]
        resource = np.where(is_used & (s_per_byte > 0), paths.resource, NONE)
        send_s, receive_s = processors.send_overhead_s[src], processors.receive_overhead_s[dst]
        fixed_s = send_s + paths.latency_s + receive_s
        alone = 1 / paths.alone_bytes_per_s(topology.resources)
        names, burst = topology.resources.names, topology.resources.burst_bytes
        return cls(num_ranks, src, dst, fixed_s, send_s, receive_s, resource, s_per_byte, alone, names, burst)

    def rows(self, chosen: Bools) -> "Links":
        columns = ("src", "dst", "fixed_s", "send_s", "receive_s", "resource", "s_per_byte", "alone_s_per_byte")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})

    def reversed(self) -> "Links":
        return replace(self, src=self.dst, dst=self.src, send_s=self.receive_s, receive_s=self.send_s)

    def without_detours(self) -> "Links":
        """Remove routes over several cables between ranks, as the ranks can forward the data."""
        used = self.resource != NONE
        direct = used.sum(axis=1) == 1
        if not direct.any() or direct.all():
            return self
        only = self.resource[direct].max(axis=1)
        ends = np.full((len(self.names) + 1, 2), NONE)  # the last row is that of NONE
        ends[only] = np.column_stack([self.src[direct], self.dst[direct]])
        at, is_detour = self.src.copy(), ~direct
        for column, on_way in zip(self.resource.T, used.T, strict=True):
            first, second = ends[column].T
            is_joined = (at == first) | (at == second)
            is_detour &= is_joined | ~on_way
            at = np.where(on_way & is_joined, first + second - at, at)
        return self.rows(~(is_detour & (at == self.dst)))

    def spread(self) -> tuple[Ints, Ints]:
        """Return how many ranks send and receive over each resource, (num_resources,) each."""
        of_src, of_dst = (self._uses(end) > 0 for end in (self.src, self.dst))
        return of_src.sum(axis=0), of_dst.sum(axis=0)

    def nearness_to_src(self) -> Floats:
        """Return how near each resource of a link is to its sender, (num_links, width): larger is nearer.

        It is the sender's share of links that use it, less the receiver's.
        """
        shares = []
        for end in (self.src, self.dst):
            uses, links_of_rank = self._uses(end), np.bincount(end, minlength=self.num_ranks)
            shares.append(uses[end[:, None], self.resource] / links_of_rank[end][:, None])
        return np.where(self.resource == NONE, -np.inf, shares[0] - shares[1])

    def _uses(self, end: Ints) -> Ints:
        used = self.resource != NONE
        ranks = np.broadcast_to(end[:, None], used.shape)[used]
        size = self.num_ranks, len(self.names)
        return np.bincount(ranks * size[1] + self.resource[used], minlength=size[0] * size[1]).reshape(size)


def groups_of_ranks(network: Network, num_ranks: int) -> list[Ints]:
    """Return groupings of ranks: single ranks, by host, by leaf switch; (num_ranks,) each."""
    host = lay_out(network.spec, num_ranks).host_of_rank
    grouped = [np.arange(num_ranks), host]
    if per_leaf := network.spec.switch.hosts_per_leaf:
        grouped.append(host // per_leaf)
    return grouped


@dataclass(frozen=True, slots=True)
class NetworkBound:
    """The shortest possible time of a collective on a network, and its reason.

    latency_s, throughput_s: the bound by latencies, and by bandwidths with the shortest latency.
    ranks: for a cut, the set that the data must enter, or leave if `leaves`; otherwise empty.
    resources: names of the cut's resources.
    """

    latency_s: float
    throughput_s: float
    ranks: tuple[int, ...] = ()
    leaves: bool = False
    resources: tuple[str, ...] = ()

    @property
    def time_s(self) -> float:
        return max(self.latency_s, self.throughput_s)

    def excess(self, time_s: float) -> float:
        """Return by which fraction a time exceeds the bound; 0 if both are 0."""
        return time_s / self.time_s - 1 if self.time_s > 0 else 0.0 if time_s == 0 else float("inf")

    def as_dict(self) -> dict[str, Any]:
        return {"time_s": self.time_s, **asdict(self)}


def bound_of(collective: Collective, network: Network, num_ranks: int, size_bytes: int) -> NetworkBound | None:
    """Return the least time of a collective; None if it is not in `BOUNDED`, or has too many ranks.

    Raises ValueError if the network has no room for `num_ranks` ranks.

        >>> from ringsim import Collective, load_network
        >>> from ringsim.analysis import bound_of
        >>> round(bound_of(Collective.ALL_REDUCE, load_network("gbe"), 4, 2**26).time_s, 3)
        0.856
    """
    topology = network.topology(num_ranks)
    if collective not in BOUNDED or num_ranks * (num_ranks - 1) > BOUND_PAIRS:
        return None
    if num_ranks == 1:
        return NetworkBound(0.0, 0.0)
    links = Links.of(topology)
    latency_s = _latency_s(collective, links)
    if not size_bytes:
        return NetworkBound(latency_s, 0.0)
    is_mirrored = collective.reduces and collective is not Collective.ALL_REDUCE
    if is_mirrored:  # on reversed links
        links, collective = links.reversed(), _MIRRORED[collective]
    hosts_only = topology.switch_of_rank is not None  # within hosts a switch adds or copies many messages as one
    groups = groups_of_ranks(network, num_ranks)[int(hosts_only) :]
    worst = max(_throughputs(collective, links, groups, size_bytes), key=lambda cut: cut.time_s)
    throughput_s = float(worst.time_s + links.fixed_s.min())
    leaves = bool(worst.ranks) and worst.leaves != is_mirrored
    return NetworkBound(latency_s, throughput_s, worst.ranks, leaves, worst.resources)


_MIRRORED = {Collective.REDUCE_SCATTER: Collective.ALL_GATHER, Collective.REDUCE: Collective.BROADCAST}


def _latency_s(collective: Collective, links: Links) -> float:
    """Return the largest distance by latencies and overheads (Floyd 1962)."""
    distance = np.zeros((links.num_ranks, links.num_ranks))
    distance[links.src, links.dst] = links.fixed_s
    for via in range(links.num_ranks):
        np.minimum(distance, distance[:, via, None] + distance[via], out=distance)
    if collective is Collective.BROADCAST:
        return float(distance[0].max())
    return float(distance[:, 0].max() if collective is Collective.REDUCE else distance.max())


class Cut(NamedTuple):
    """A bound by bandwidth: a set of ranks (empty: all), its resources, and whether data leave the ranks."""

    time_s: float
    ranks: tuple[int, ...] = ()
    resources: tuple[str, ...] = ()
    leaves: bool = False


def _throughputs(collective: Collective, links: Links, groups: list[Ints], size_bytes: int) -> Iterator[Cut]:
    """Yield lower bounds by bandwidth. links: in the direction of the data."""
    yield Cut(0.0)
    direct = links.without_detours()
    worst_cut = _worst_cut_of_shares if collective is Collective.ALL_GATHER else _worst_cut_of_root
    cuts = [worst_cut(direct, size_bytes)]
    if collective is Collective.ALL_REDUCE:
        cuts.append(_worst_cut_of_root(direct.reversed(), size_bytes)._replace(leaves=True))
    yield from cuts
    behind_cuts = [np.isin(np.arange(links.num_ranks), cut.ranks).astype(np.int64) for cut in cuts if cut.ranks]
    num_messages = 2 if collective is Collective.ALL_REDUCE else 1
    for group in [*groups, *behind_cuts]:
        num_groups = len(np.unique(group))
        if num_groups > 1:
            yield _total(links, group, num_messages * (num_groups - 1) * size_bytes)


def _total(links: Links, group: Ints, num_bytes: float) -> Cut:
    network = FlowNetwork(links.rows(group[links.src] != group[links.dst]), is_passed_on=False)
    for rank in range(links.num_ranks):
        network.add(SOURCE, ("from", rank), np.inf)
        network.add(("to", rank), SINK, np.inf)
    return Cut(network.cut(SOURCE, SINK).bound(num_bytes, network).time_s)


def _worst_cut_of_root(links: Links, size_bytes: int) -> Cut:
    network = FlowNetwork(links)
    worst = Cut(0.0)
    for target in network.targets(from_root=True):
        cut = network.cut(("rank", 0), ("rank", target))
        worst = max(worst, cut.bound(size_bytes, network), key=lambda known: known.time_s)
    return worst


def _worst_cut_of_shares(links: Links, size_bytes: int) -> Cut:
    """Return the bound for the other ranks' shares that must enter a set of ranks.

    If the time is too short, the smallest cut before some rank gives a set that needs longer (Newton's method).
    """
    network = FlowNetwork(links)
    share = -(-size_bytes // links.num_ranks)  # of some partitions the last shares are smaller

    def needed(ranks: Ints) -> int:
        return size_bytes - len(ranks) * share

    worst = Cut(0.0)
    for target in network.targets():
        cut = network.cut_of_shares(target)
        worst = max(worst, cut.bound(needed(cut.ranks), network), key=lambda known: known.time_s)
        while worst.time_s > 0:
            cut = network.cut_of_shares(target, share / worst.time_s)
            next_one = cut.bound(needed(cut.ranks), network)
            if next_one.time_s <= worst.time_s * (1 + ROUNDING):
                break
            worst = next_one
    return worst


class FlowCut(NamedTuple):
    """A smallest cut: the ranks behind it, its resources, and their bandwidth."""

    ranks: Ints
    resource: list[int]
    bytes_per_s: float
    burst_bytes: float

    def bound(self, num_bytes: float, network: "FlowNetwork") -> Cut:
        """Return the time of `num_bytes` bytes across the cut; 0 s if all ranks are behind it."""
        time_s = max(num_bytes - self.burst_bytes, 0) / self.bytes_per_s if self.bytes_per_s else 0.0
        names = [network.links.names[resource] for resource in self.resource]
        return Cut(time_s, tuple(self.ranks.tolist()), tuple(names))


class FlowNetwork:
    """The links as a graph for max-flow: a node for each rank, and an edge with its capacity for each resource.

    The graph allows at least the network's flow: a message uses the least that any uses of the resource, and paths
    between two sets of resources may join in a hub. is_passed_on: whether a rank may forward data.
    """

    def __init__(self, links: Links, *, is_passed_on: bool = True) -> None:
        import networkx  # noqa: PLC0415  takes a tenth of a second

        self._networkx = networkx
        self.links = links
        self._ends = ("rank", "rank") if is_passed_on else ("from", "to")
        self.graph: nx.DiGraph[Any] = networkx.DiGraph()
        for name in self._ends:
            self.graph.add_nodes_from((name, rank) for rank in range(links.num_ranks))
        self._class_of: dict[Any, Any] = {}
        self._add_resources()
        self._add_paths()

    def add(self, first: Any, second: Any, bytes_per_s: float, resource: int = NONE) -> None:
        if self.graph.has_edge(first, second):
            bytes_per_s += self.graph.edges[first, second]["capacity"]
        self.graph.add_edge(first, second, capacity=bytes_per_s, resource=resource)

    def _add_resources(self) -> None:
        links = self.links
        used = links.resource != NONE
        least = np.full(len(links.names), np.inf)
        np.minimum.at(least, links.resource[used], links.s_per_byte[used])
        num_src, num_dst = links.spread()
        for resource in np.flatnonzero(num_src).tolist():
            self.add(("in", resource), ("out", resource), float(1 / least[resource]), resource)
            counts = int(num_src[resource]), int(num_dst[resource])
            self._class_of["in", resource] = self._class_of["out", resource] = counts

    def _add_paths(self) -> None:
        links = self.links
        order = np.argsort(-links.nearness_to_src(), axis=1, kind="stable")
        resource = np.take_along_axis(links.resource, order, axis=1)
        num_used = (resource != NONE).sum(axis=1)
        # Nodes by number: ranks that send, ranks that receive, resources.
        num_ranks, rows = links.num_ranks, np.arange(len(links.src))
        chain = np.full((len(rows), resource.shape[1] + 2), NONE, dtype=np.int64)
        chain[:, 0] = links.src
        chain[:, 1:-1] = np.where(resource == NONE, NONE, 2 * num_ranks + resource)
        chain[rows, 1 + num_used] = num_ranks + links.dst
        is_private = (num_used == 0) & (links.alone_s_per_byte > 0)
        for row in np.flatnonzero(is_private).tolist():
            self.add(*self._edge(int(links.src[row]), num_ranks + int(links.dst[row])), 1 / links.alone_s_per_byte[row])
        chain = chain[~is_private]
        pairs = np.concatenate([chain[:, column : column + 2] for column in range(chain.shape[1] - 1)])
        self._add_unlimited(np.unique(pairs[pairs[:, 1] != NONE], axis=0))

    def _edge(self, first: int, second: int) -> tuple[Any, Any]:
        num_ranks = self.links.num_ranks
        one = (self._ends[0], first) if first < num_ranks else ("out", first - 2 * num_ranks)
        other = (self._ends[1], second - num_ranks) if second < 2 * num_ranks else ("in", second - 2 * num_ranks)
        return one, other

    def _add_unlimited(self, edges: Ints) -> None:
        kinds: dict[Any, list[tuple[Any, Any]]] = {}
        for first, second in (self._edge(*edge) for edge in edges.tolist()):
            kind = first[0], self._class_of.get(first), second[0], self._class_of.get(second)
            kinds.setdefault(kind, []).append((first, second))
        for members in kinds.values():
            joined = self._networkx.Graph(((0, first), (1, second)) for first, second in members)
            for component in self._networkx.connected_components(joined):
                between = joined.edges(component)
                sizes = [sum(side == end for side, _ in component) for end in (0, 1)]
                hub = ("hub", self.graph.number_of_nodes())
                through_hub = sum(sizes) < len(between) and 2 * len(between) >= sizes[0] * sizes[1]
                for (side, node), (_, other) in between:
                    first, second = (node, other) if side == 0 else (other, node)
                    for edge in [(first, hub), (hub, second)] if through_hub else [(first, second)]:
                        self.graph.add_edge(*edge, capacity=np.inf, resource=NONE)

    def targets(self, *, from_root: bool = False) -> list[int]:
        """Return the ranks for which to find a cut, if not all, ranks with distinct capacities first."""
        num_ranks = self.links.num_ranks
        most = max(MIN_TARGETS, BOUND_FLOW_EDGES // max(self.graph.number_of_edges(), 1))
        first_of: dict[tuple[Any, ...], int] = {}
        for rank in range(int(from_root), num_ranks):
            edges = self.graph.in_edges(("rank", rank))
            own = sorted((str(self._class_of.get(node)), self._capacity_of(node)) for node, _ in edges)
            first_of.setdefault(tuple(own), rank)
        unlike = list(first_of.values())
        others = [rank for rank in range(int(from_root), num_ranks) if rank not in set(unlike)]
        room = max(most - len(unlike), 0)
        return unlike[:most] + others[:: max(1, -(-len(others) // room))] if room else unlike[:most]

    def _capacity_of(self, node: Any) -> float:
        before = [data["capacity"] for _, _, data in self.graph.in_edges(node, data=True)]
        return float(min(sum(before), 1e300)) if node[0] == "out" else 0.0

    def cut(self, source: Any, sink: Any) -> FlowCut:
        """Return the smallest cut between two nodes; infinite bandwidth if the flow is unlimited."""
        try:
            _, (_, behind) = self._networkx.minimum_cut(self.graph, source, sink)
        except self._networkx.NetworkXUnbounded:
            return FlowCut(np.empty(0, np.int64), [], np.inf, 0.0)
        edges = [
            data
            for first, second, data in self.graph.edges(data=True)
            if first not in behind and second in behind and data["resource"] != _OF_SOURCE
        ]
        resource = [data["resource"] for data in edges if data["resource"] != NONE]
        ranks = np.array(sorted(node[1] for node in behind if node[0] == "rank"), dtype=np.int64)
        burst = float(self.links.burst_bytes[resource].sum()) if resource else 0.0
        return FlowCut(ranks, resource, sum(data["capacity"] for data in edges), burst)

    def cut_of_shares(self, target: int, share_bytes_per_s: float = np.inf) -> FlowCut:
        """Return the smallest cut before a rank that receives from all others at this rate."""
        for rank in range(self.links.num_ranks):
            if rank != target:
                self.graph.add_edge(SOURCE, ("rank", rank), capacity=share_bytes_per_s, resource=_OF_SOURCE)
        smallest = self.cut(SOURCE, ("rank", target))
        self.graph.remove_node(SOURCE)
        return smallest


_OF_SOURCE = -2  # in place of the resource of an edge from the source
