"""`GraphLayout`: a drawing of the communication graph."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from ringsim.network import Floats
from ringsim.schedule import Bools, Ints, Schedule

_MARGIN = 0.12  # of the unit square, around everything
# Bend of a link, as a fraction of its length: if both ranks send, if a straight link would cross a rank, and if it
# would pass the centre of a circle, where all such links would meet.
_BOTH_WAYS, _OVER_A_RANK, _THROUGH_THE_MIDDLE = 0.07, 0.22, 0.32
_TWO_RANKS = 0.4  # likewise, of the links between the only two
_TOUCHES, _APART = 0.2, 0.07  # of the distance of the closest ranks: a link touches a rank; between two arcs


class GraphShape(Enum):
    """The arrangement of the ranks."""

    RING = "ring"  # on a circle, in the order in which the pairs go round or along
    TREE = "tree"
    HOSTS = "hosts"
    CIRCLE = "circle"  # in the order of ranks


class HostBox(NamedTuple):
    """The rectangle of one host."""

    name: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True, eq=False)
class GraphLayout:
    """Positions in a unit square, y downwards.

    places: of the ranks, (num_ranks, 2). pairs: sender and receiver of each used pair, (num_pairs, 2).
    hosts: empty unless the shape is HOSTS.
    """

    shape: GraphShape
    places: Floats
    pairs: Ints
    hosts: tuple[HostBox, ...] = ()

    @property
    def bends(self) -> Floats:
        """The control point of each pair's link, a quadratic Bezier curve, (num_pairs, 2)."""
        places, (src, dst) = self.places, self.pairs.T
        known = {*zip(src.tolist(), dst.tolist(), strict=True)}
        both: Bools = np.array([(pair[1], pair[0]) in known for pair in self.pairs.tolist()], dtype=np.bool_)
        middle, along = (places[src] + places[dst]) / 2, places[dst] - places[src]
        aside = np.column_stack([along[:, 1], -along[:, 0]])
        length, from_centre = np.linalg.norm(along, axis=1), np.linalg.norm(middle - 0.5, axis=1)
        closest = np.linalg.norm(places[:, None] - places + np.eye(len(places))[..., None], axis=-1).min()
        if self.shape is GraphShape.RING:
            outwards = np.sign(((middle - 0.5) * aside).sum(axis=1)) * (0.5 - _MARGIN - from_centre)
            arcs = 2 * (outwards + _APART * closest * both) / length
            bent = np.full(len(self.pairs), _TWO_RANKS) if len(places) == 2 else arcs
        else:
            touches = _TOUCHES * float(closest)
            over: Bools = np.array([_is_over_a_rank(places, pair, touches) for pair in self.pairs.tolist()], np.bool_)
            central = (from_centre < 0.1 * length) & (self.shape is GraphShape.CIRCLE)
            bent = np.select([central, over, both], [_THROUGH_THE_MIDDLE, _OVER_A_RANK, _BOTH_WAYS])
        return np.asarray(middle + bent[:, None] * aside)


def lay_out_graph(schedule: Schedule, host_names: Sequence[str] = (), host_of_rank: Ints | None = None) -> GraphLayout:
    """Return a readable layout of the communication graph.

    host_of_rank: (num_ranks,); groups ranks if there are several hosts, and one has several ranks.
    """
    import networkx as nx  # noqa: PLC0415  takes a tenth of a second

    pairs, num_ranks = pairs_of(schedule), schedule.num_ranks
    if host_of_rank is not None and 1 < len(np.unique(host_of_rank)) < num_ranks:
        return _in_hosts(pairs, host_names, host_of_rank)
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(num_ranks))
    graph.add_edges_from(pairs.tolist())
    root = _root(schedule)
    num_ends = sum(degree == 1 for _, degree in graph.degree)
    is_chain = num_ends == 0 or graph.degree[root] == 1  # otherwise it is a tree with two branches
    if num_ranks > 1 and nx.is_connected(graph) and max(dict(graph.degree).values()) <= 2 and is_chain:
        order = np.array(list(nx.dfs_preorder_nodes(graph, root if num_ends else 0)))
        return GraphLayout(GraphShape.RING, _on_circle(order), pairs)
    if num_ranks > 1 and nx.is_tree(graph):
        depth, levels = nx.single_source_shortest_path_length(graph, root), defaultdict[int, list[int]](list)
        for rank in nx.dfs_preorder_nodes(graph, root):  # in this order no two links cross
            levels[depth[rank]].append(rank)
        placed = nx.multipartite_layout(graph, dict(levels), align="horizontal")
        places = _within_margins(np.array([placed[rank] for rank in range(num_ranks)]))
        return GraphLayout(GraphShape.TREE, places, pairs)
    return GraphLayout(GraphShape.CIRCLE, _on_circle(np.arange(num_ranks)), pairs)


def pairs_of(schedule: Schedule) -> Ints:
    """Return the distinct pairs of sender and receiver, (num_pairs, 2)."""
    rows = schedule.steps.relay or schedule.steps.table
    return np.unique(np.column_stack([rows.src, rows.dst]).astype(np.int64), axis=0)


def _root(schedule: Schedule) -> int:
    for step in schedule.steps:
        if not step.reduce.all():
            return int(step.src[~step.reduce][0])
    return 0


def _on_circle(order: Ints) -> Floats:
    angle = 2 * np.pi * np.argsort(order) / len(order)
    return (0.5 - _MARGIN) * np.column_stack([np.sin(angle), -np.cos(angle)]) + 0.5


def _in_hosts(pairs: Ints, names: Sequence[str], host_of_rank: Ints) -> GraphLayout:
    used = np.unique(host_of_rank).tolist()
    num_columns = math.ceil(math.sqrt(len(used)))
    num_rows = math.ceil(len(used) / num_columns)
    width, height = (1 - 0.04) / num_columns, (1 - 0.04) / num_rows
    places, boxes = np.zeros((len(host_of_rank), 2)), []
    for number, host in enumerate(used):
        row, column = divmod(number, num_columns)
        left, top = 0.02 + column * width, 0.02 + row * height
        box = HostBox(names[host], left + 0.02, top + 0.02, left + width - 0.02, top + height - 0.02)
        ranks = np.flatnonzero(host_of_rank == host)
        places[ranks] = _round_in_box(len(ranks), box)
        boxes.append(box)
    return GraphLayout(GraphShape.HOSTS, places, pairs, tuple(boxes))


def _round_in_box(count: int, box: HostBox) -> Floats:
    num_above = (count + 1) // 2
    slots = np.arange(count)
    above = slots < num_above
    column = np.where(above, slots, count - 1 - slots) if count > 1 else np.zeros(1)
    across = (column + 0.5) / num_above
    down = np.where(above, 0.38, 0.78) if count > 1 else np.full(1, 0.55)
    return np.column_stack([box.left + across * (box.right - box.left), box.top + down * (box.bottom - box.top)])


def _within_margins(places: Floats) -> Floats:
    low, size = places.min(axis=0), np.ptp(places, axis=0)
    across = np.where(size > 0, (places - low) / np.where(size > 0, size, 1), 0.5)
    return np.asarray(_MARGIN + across * (1 - 2 * _MARGIN))


def _is_over_a_rank(places: Floats, pair: list[int], touches: float) -> bool:
    begin, end = places[pair]
    along, others = end - begin, np.delete(places, pair, axis=0) - begin
    share = others @ along / (along @ along)
    away = np.linalg.norm(others - share[:, None] * along, axis=1)
    return bool(((share > 0) & (share < 1) & (away < touches)).any())
