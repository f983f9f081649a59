"""`GraphLayout`: where ranks and hosts lie in a drawing of who sends to whom, found from the schedule's own pairs."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ringsim.network import Floats
from ringsim.schedule import Ints, Schedule

_MARGIN = 0.12  # of the unit square, around everything
_GRID_MARGIN = 0.16  # there links go round the outside


class GraphShape(Enum):
    """How the ranks are placed."""

    RING = "ring"  # on a circle, in the order in which the pairs go round or along
    TREE = "tree"
    GRID = "grid"
    HOSTS = "hosts"
    CIRCLE = "circle"  # in the order of ranks


@dataclass(frozen=True, slots=True)
class HostBox:
    """The rectangle of one host."""

    name: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True, eq=False)
class GraphLayout:
    """Places in a unit square, y downwards.

    places: of the ranks, (num_ranks, 2). pairs: sender and receiver of each pair that is used, (num_pairs, 2).
    hosts: the boxes, empty unless the shape is HOSTS.
    """

    shape: GraphShape
    places: Floats
    pairs: Ints
    hosts: tuple[HostBox, ...] = ()


def lay_out_graph(schedule: Schedule, host_names: Sequence[str] = (), host_of_rank: Ints | None = None) -> GraphLayout:
    """Return a layout in which the pairs of ranks that send to each other are easy to follow.

    host_of_rank: (num_ranks,), by which ranks are grouped if there are several hosts and one of them has several ranks.
    """
    pairs = pairs_of(schedule)
    if host_of_rank is not None and 1 < len(np.unique(host_of_rank)) < schedule.num_ranks:
        return _in_hosts(pairs, host_names, host_of_rank)
    return _lay_out_pairs(pairs, schedule.num_ranks, _root(schedule))


def lay_out_trees(schedule: Schedule) -> tuple[GraphLayout, ...]:
    """Return a layout for each of two trees, if a schedule sends every chunk along one of them; else nothing."""
    rows = [np.column_stack([step.chunk, step.src, step.dst]) for step in schedule.steps]
    used = np.unique(np.concatenate([np.empty((0, 3), dtype=np.int64), *rows]), axis=0)
    trees: dict[bytes, list[Ints]] = {}
    for chunk in np.unique(used[:, 0]).tolist():
        pairs = used[used[:, 0] == chunk, 1:]
        trees.setdefault(np.unique(np.sort(pairs, axis=1), axis=0).tobytes(), []).append(pairs)
        if len(trees) > 2:
            return ()
    layouts = [
        _lay_out_pairs(np.unique(np.concatenate(pairs), axis=0), schedule.num_ranks, _root(schedule))
        for pairs in trees.values()
    ]
    return tuple(layouts) if [layout.shape for layout in layouts] == [GraphShape.TREE] * 2 else ()


def pairs_of(schedule: Schedule) -> Ints:
    """Return who sends to whom at all, (num_pairs, 2), each pair once."""
    rows = [np.column_stack([step.src, step.dst]) for step in schedule.steps]
    return np.unique(np.concatenate([np.empty((0, 2), dtype=np.int64), *rows]), axis=0)


def _lay_out_pairs(pairs: Ints, num_ranks: int, root: int) -> GraphLayout:
    neighbours: list[set[int]] = [set() for _ in range(num_ranks)]
    for src, dst in pairs.tolist():
        neighbours[src].add(dst)
        neighbours[dst].add(src)
    if (order := _way_round(neighbours, root)) is not None:
        return GraphLayout(GraphShape.RING, _on_circle(np.array(order)), pairs)
    if sum(map(len, neighbours)) == 2 * (num_ranks - 1) and _is_connected(neighbours):
        return GraphLayout(GraphShape.TREE, _as_tree(neighbours, root), pairs)
    if (shape := _grid_shape(neighbours)) is not None:
        return GraphLayout(GraphShape.GRID, _on_grid(*shape), pairs)
    return GraphLayout(GraphShape.CIRCLE, _on_circle(np.arange(num_ranks)), pairs)


def _way_round(neighbours: Sequence[set[int]], root: int) -> list[int] | None:
    """Return the ranks in the order of the one ring that the pairs form, or the one chain with the root at an end.

    None if they form another graph, such as a chain that is a tree with two branches.
    """
    ends = [rank for rank, others in enumerate(neighbours) if len(others) == 1]
    if (ends and (len(ends) != 2 or root not in ends)) or any(not 1 <= len(others) <= 2 for others in neighbours):
        return None
    order: list[int] = []
    previous, rank = -1, root if ends else 0
    while len(order) < len(neighbours):
        order.append(rank)
        # A ring goes the way in which the ranks are counted.
        ahead = sorted(neighbours[rank] - {previous})
        if not ahead or ahead[0] in order:
            break
        previous, rank = rank, ahead[0]
    return order if len(order) == len(neighbours) else None


def _is_connected(neighbours: Sequence[set[int]]) -> bool:
    reached, queue = {0}, deque([0])
    while queue:
        for rank in neighbours[queue.popleft()] - reached:
            reached.add(rank)
            queue.append(rank)
    return len(reached) == len(neighbours)


def _root(schedule: Schedule) -> int:
    """Return the rank from which the first copy goes out; rank 0, the root of a reduce, where nothing is copied."""
    for step in schedule.steps:
        if not step.reduce.all():
            return int(step.src[~step.reduce][0])
    return 0


def _as_tree(neighbours: Sequence[set[int]], root: int) -> Floats:
    """Leaves side by side; every other rank above the middle of those below it."""
    depth, parent, order = {root: 0}, {root: root}, [root]
    for rank in order:
        for child in sorted(neighbours[rank] - {parent[rank]}):
            depth[child], parent[child] = depth[rank] + 1, rank
            order.append(child)
    across = _across_tree(neighbours, parent, root)
    levels, leaves = max(depth.values()), max(across.values()) or 1.0
    rows = [(across[rank] / leaves, depth[rank] / max(levels, 1)) for rank in range(len(neighbours))]
    return _within_margins(np.array(rows))


def _across_tree(neighbours: Sequence[set[int]], parent: dict[int, int], root: int) -> dict[int, float]:
    """How far to the right each rank is, counted in leaves."""
    across: dict[int, float] = {}
    num_leaves = 0
    stack = [(root, False)]
    while stack:
        rank, is_below_placed = stack.pop()
        below = sorted(neighbours[rank] - {parent[rank]})
        if not below:
            across[rank], num_leaves = float(num_leaves), num_leaves + 1
        elif is_below_placed:
            across[rank] = (across[below[0]] + across[below[-1]]) / 2
        else:
            stack += [(rank, True), *((child, False) for child in reversed(below))]
    return across


def _grid_shape(neighbours: Sequence[set[int]]) -> tuple[int, int] | None:
    """Rows and columns of the torus, as square as can be, in which all pairs are neighbours; None if there is none."""
    num_ranks = len(neighbours)
    for rows in range(math.isqrt(num_ranks), 1, -1):
        for num_rows in (rows, num_ranks // rows):
            if num_ranks % rows == 0 and _is_torus(neighbours, num_rows, num_ranks // num_rows):
                return num_rows, num_ranks // num_rows
    return None


def _is_torus(neighbours: Sequence[set[int]], num_rows: int, num_columns: int) -> bool:
    for rank, others in enumerate(neighbours):
        row, column = divmod(rank, num_columns)
        beside = {row * num_columns + (column + way) % num_columns for way in (-1, 1)}
        below = {(row + way) % num_rows * num_columns + column for way in (-1, 1)}
        if others - beside - below:
            return False
    return True


def _on_grid(num_rows: int, num_columns: int) -> Floats:
    row, column = np.divmod(np.arange(num_rows * num_columns), num_columns)
    places = np.column_stack([column / max(num_columns - 1, 1), row / max(num_rows - 1, 1)])
    return _within_margins(places, _GRID_MARGIN)


def _on_circle(order: Ints) -> Floats:
    """Clockwise from the top."""
    angle = 2 * np.pi * np.argsort(order) / len(order)
    return _within_margins(np.column_stack([0.5 + 0.5 * np.sin(angle), 0.5 - 0.5 * np.cos(angle)]))


def _in_hosts(pairs: Ints, names: Sequence[str], host_of_rank: Ints) -> GraphLayout:
    """Return a box for each host, row by row; its ranks go round in two rows, so that a ring in it is a loop."""
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
    """Along the upper row to the right, along the lower row back; (count, 2)."""
    num_above = (count + 1) // 2
    slots = np.arange(count)
    above = slots < num_above
    column = np.where(above, slots, count - 1 - slots) if count > 1 else np.zeros(1)
    across = (column + 0.5) / num_above
    down = np.where(above, 0.38, 0.78) if count > 1 else np.full(1, 0.55)
    return np.column_stack([box.left + across * (box.right - box.left), box.top + down * (box.bottom - box.top)])


def _within_margins(places: Floats, margin: float = _MARGIN) -> Floats:
    return margin + places * (1 - 2 * margin)
