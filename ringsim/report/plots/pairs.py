"""The pairs of ranks that send to each other: on a circle, as a torus, or as trees."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from ringsim.algorithms import torus_of
from ringsim.registry import base_name
from ringsim.report.plots.lane_facts import LaneFacts, groups_of
from ringsim.report.plots.palette import palette
from ringsim.report.plots.style import points
from ringsim.report.plots.trees import Edges, Places, edges_of, tree_places, trees_of

_FEW_EDGES = 40  # up to so many have arrows
_TEXT, _ROOM = 7.5, 11.0  # points, of a number
_AROUND = 2 * np.pi


class _RankGroup(NamedTuple):
    """Ranks that belong together, such as a host or a row, and where its name stands."""

    name: str
    ranks: list[int]


def draw_pairs(axes: Axes, facts: LaneFacts, algorithm: str) -> None:
    """Draws the ranks as dots, and a line between those that send to each other; an arrow where only one does."""
    axes.set_title("Who sends to whom", loc="left", fontsize=points(11), fontweight="bold")
    axes.set_axis_off()
    trees = trees_of(facts.timeline)
    rows, columns = torus_of(facts.num_ranks)
    if trees:
        _draw_trees(axes, facts, trees)
    elif base_name(algorithm) == "torus" and rows > 1:
        _draw_torus(axes, facts, rows, columns)
    else:
        _draw_circle(axes, facts, _groups(facts, algorithm))


def _groups(facts: LaneFacts, algorithm: str) -> list[_RankGroup]:
    """The hosts of the network, or those that the algorithm takes for such."""
    names = facts.group_of_rank or groups_of(algorithm, facts.num_ranks)
    by_name: dict[str, list[int]] = {}
    for rank in range(facts.num_ranks):
        by_name.setdefault(names[rank] if names else "", []).append(rank)
    return [_RankGroup(name, ranks) for name, ranks in by_name.items()]


def _draw_circle(axes: Axes, facts: LaneFacts, groups: list[_RankGroup]) -> None:
    """Rank 0 on top, the others clockwise, host by host."""
    gaps = len(groups) if len(groups) > 1 else 0
    turn = _AROUND / (facts.num_ranks + gaps)
    angle, places = 0.0, np.zeros((facts.num_ranks, 2))
    limit = 1.28 if len(groups) == 1 else 1.6
    _set_equal_limits(axes, limit)
    for group in groups:
        angles = angle + turn * np.arange(len(group.ranks))
        places[group.ranks] = np.column_stack([np.sin(angles), np.cos(angles)])
        if group.name and (len(groups) <= 16 or len(group.ranks) > 2):
            _name_arc(axes, group.name, angles)
        angle = angles[-1] + 2 * turn
    _draw_edges(axes, facts, edges_of(facts.timeline), places)
    _draw_dots(axes, places, _spacing(axes, turn))
    stride = next(stride for stride in (1, 2, 4, 8, 16, 32, 64, 128) if stride * _spacing(axes, turn) >= points(_ROOM))
    for rank in range(0, facts.num_ranks, stride):
        _name(axes, rank, 1.13 * places[rank], "center")


def _set_equal_limits(axes: Axes, limit: float) -> None:
    """At least so far in each direction, and as far in both for as many points on the page."""
    width, height = _box_points(axes)
    x, y = limit * width / min(width, height), limit * height / min(width, height)
    axes.set(xlim=(-x, x), ylim=(-y, y))


def _box_points(axes: Axes) -> tuple[float, float]:
    box, page = axes.get_position(), axes.figure.bbox
    return box.width * page.width * 72 / axes.figure.dpi, box.height * page.height * 72 / axes.figure.dpi


def _spacing(axes: Axes, distance: float) -> float:
    """The points on the page that a distance in data takes along x."""
    left, right = axes.get_xlim()
    return distance * _box_points(axes)[0] / (right - left)


def _name_arc(axes: Axes, name: str, angles: np.ndarray) -> None:
    """An arc outside the ranks of a host, and its name."""
    colours = palette()
    along = np.linspace(angles[0], angles[-1], 50)
    axes.plot(1.22 * np.sin(along), 1.22 * np.cos(along), color=colours.dark_grey, linewidth=1.2)
    middle = angles.mean()
    x, y = np.sin(middle), np.cos(middle)
    side = "center" if abs(x) < 0.1 else "left" if x > 0 else "right"
    axes.text(1.3 * x, 1.3 * y, name, ha=side, va="center", fontsize=points(_TEXT), color=colours.dark_grey)


def _draw_torus(axes: Axes, facts: LaneFacts, rows: int, columns: int) -> None:
    """A grid: each row is a ring, and each column."""
    rank = np.arange(facts.num_ranks)
    places = np.column_stack([rank % columns, -(rank // columns)]).astype(np.float64)
    axes.set(xlim=(-1.3, columns - 0.2), ylim=(-rows + 0.3, 0.8))
    for row in range(rows):
        axes.annotate(f"row {row}", (0, -row), (-points(20), 0), textcoords="offset points", ha="right", va="center",
                      fontsize=points(_TEXT), color=palette().dark_grey)  # fmt: skip
    _draw_edges(axes, facts, edges_of(facts.timeline), places, bend=0.22)
    _draw_dots(axes, places, _spacing(axes, 1.0))
    stride = 1 if _spacing(axes, 1.0) >= points(2 * _ROOM) else 2
    for number in range(0, facts.num_ranks, stride):
        axes.annotate(str(number), places[number].tolist(), (-points(2.5), -points(7)), textcoords="offset points",
                      ha="right", va="center", fontsize=points(_TEXT), color=palette().ink)  # fmt: skip


def _draw_trees(axes: Axes, facts: LaneFacts, trees: list[Edges]) -> None:
    """One tree, or two side by side: roots on top."""
    axes.set(xlim=(-0.03, 1.0), ylim=(-1.12, 0.2))
    width = 1 / len(trees)
    for number, edges in enumerate(trees):
        places = tree_places(edges, facts.num_ranks)
        left = number * width + 0.03 * width
        spread = {rank: (left + 0.84 * width * x, y) for rank, (x, y) in places.items()}
        if len(trees) > 1:
            axes.text(left + 0.42 * width, 0.14, f"tree {number + 1}", ha="center", fontsize=points(9),
                      color=palette().dark_grey)  # fmt: skip
        at = np.array([spread[rank] for rank in range(facts.num_ranks)])
        _draw_edges(axes, facts, _directed(facts, edges), at)
        _draw_dots(axes, at, _spacing(axes, _nearest(at, at[:, 1].min())))
        _name_nodes(axes, edges, at)


def _nearest(places: Places, y: float) -> float:
    """How far apart the nearest are that stand at this height; 1 if there is one."""
    return float(np.diff(np.sort(places[places[:, 1] == y, 0])).min(initial=1.0))


def _name_nodes(axes: Axes, edges: Edges, places: Places) -> None:
    """Below leaves, and beside other nodes where no line is; as far as there is room on their level."""
    above = {
        rank: near
        for one, other in edges.tolist()
        for rank, near in ((one, other), (other, one))
        if places[near, 1] > places[rank, 1]
    }
    inner = set(above.values())
    for rank, (x, y) in enumerate(places.tolist()):
        needed = points(_ROOM) * (2 if rank in inner else 1)
        if _spacing(axes, _nearest(places, y)) < needed:
            continue
        is_left = rank in above and x < places[above[rank], 0]
        aside, side = (-0.014, "right") if is_left else (0.014, "left")
        place, side = ((x + aside, y + 0.03), side) if rank in inner else ((x, y - 0.06), "center")
        _name(axes, rank, np.array(place), side)


def _directed(facts: LaneFacts, tree: Edges) -> Edges:
    """Who sends to whom along a tree."""
    along = {frozenset(pair) for pair in tree.tolist()}
    edges = edges_of(facts.timeline)
    return edges[[frozenset(pair) in along for pair in edges.tolist()]]


def _draw_edges(axes: Axes, facts: LaneFacts, edges: Edges, places: Places, bend: float = 0.0) -> None:
    """edges: (num_edges, 2). bend: how far a line to a rank that is no neighbour leaves the straight way."""
    colours = palette()
    both = {(src, dst) for src, dst in edges.tolist()}
    slow = _slow_pairs(facts)
    lines: dict[bool, list[Places]] = {False: [], True: []}
    share = float(np.clip(60 / max(len(edges), 1), 0.12, 0.9))
    for src, dst in edges.tolist():
        is_slow = (src, dst) in slow or (dst, src) in slow
        colour = colours.vermillion if is_slow else colours.blue
        one_way = (dst, src) not in both
        if one_way and len(edges) <= _FEW_EDGES:
            style = {"arrowstyle": "-|>", "color": colour, "shrinkA": 5, "shrinkB": 5, "linewidth": 1.1,
                     "connectionstyle": f"arc3,rad={_bend(places[src], places[dst], bend)}"}  # fmt: skip
            axes.annotate("", places[dst], places[src], arrowprops=style)
        elif one_way or src < dst:
            lines[is_slow].append(_curve(places[src], places[dst], bend))
    for is_slow, some in lines.items():
        colour = colours.vermillion if is_slow else colours.blue
        axes.add_collection(LineCollection(some, colors=colour, linewidths=1.1, alpha=1.0 if is_slow else share,
                                           label="slow pairs" if is_slow else "pairs", zorder=1 + is_slow))  # fmt: skip


def _slow_pairs(facts: LaneFacts) -> set[tuple[int, int]]:
    pairs = zip(facts.timeline.src.tolist(), facts.timeline.dst.tolist(), facts.slow_links, strict=True)
    return {(src, dst) for src, dst, name in pairs if name}


def _bend(src: np.ndarray, dst: np.ndarray, bend: float) -> float:
    return bend if np.abs(dst - src).max() > 1.01 else 0.0


def _curve(src: np.ndarray, dst: np.ndarray, bend: float) -> Places:
    """A straight line, or one that leaves room for what is between its ends."""
    along = np.linspace(0, 1, 2 if not bend else 20)[:, None]
    aside = np.array([(dst - src)[1], -(dst - src)[0]]) * _bend(src, dst, bend) / 2
    curve: Places = src + (dst - src) * along + 4 * along * (1 - along) * aside
    return curve


def _draw_dots(axes: Axes, places: Places, spacing: float) -> None:
    """A dot a rank; spacing: of the nearest, in points."""
    size = float(np.clip(spacing / 6, 2, 6)) ** 2
    axes.scatter(places[:, 0], places[:, 1], s=size, color=palette().ink, zorder=3, label="ranks")


def _name(axes: Axes, rank: int, place: Places, side: str) -> None:
    x, y = place.tolist()
    axes.text(x, y, str(rank), ha=side, va="center", fontsize=points(_TEXT), color=palette().ink)
