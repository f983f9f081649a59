"""Who sends to whom: the ranks and the links between them, as `GraphLayout` places them."""

from collections.abc import Collection
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

from ringsim.analysis import GraphLayout, GraphShape
from ringsim.report.plots.bulk import Floats, points_per_unit
from ringsim.report.plots.style import palette, points

_POINTS = 16  # of a link
_FEW_PAIRS = 40  # up to so many have arrows
_SMALLEST_TEXT = 5.0  # points


def draw_graph(axes: Axes, layout: GraphLayout, slow: Collection[tuple[int, int]] = ()) -> None:
    """Draw the ranks, and a link between those that send to each other, with an arrow where only one does.

    slow: pairs in another colour.
    """
    width = np.ptp(layout.places[:, 0])
    sideways = (0.03, 0.97) if width else (0.03 - 0.5, 0.97 - 0.5)
    axes.set(xlim=sideways, ylim=(0.97, 0.03), aspect="auto" if layout.shape is GraphShape.TREE else "equal")
    axes.set_axis_off()
    axes.apply_aspect()
    _draw_hosts(axes, layout)
    _draw_links(axes, layout, slow)
    _draw_ranks(axes, layout)


def _draw_hosts(axes: Axes, layout: GraphLayout) -> None:
    colours = palette()
    for box in layout.hosts:
        corner, size = (box.left, box.top), (box.right - box.left, box.bottom - box.top)
        style: dict[str, Any] = {"facecolor": colours.pale_grey, "edgecolor": colours.light_grey, "zorder": 0.5}
        axes.add_patch(Rectangle(corner, *size, **style))
        axes.text(box.left + 0.01, box.top + 0.01, box.name, fontsize=points(7), va="top", color=colours.dark_grey)


def _links(layout: GraphLayout, *shares: float) -> Floats:
    """Return the places on each link that are these shares of the way from its sender, (num_pairs, num_shares, 2)."""
    way = np.array(shares)[:, None]
    begin, end = (layout.places[layout.pairs[:, [column]]] for column in (0, 1))
    return np.asarray((1 - way) ** 2 * begin + 2 * way * (1 - way) * layout.bends[:, None] + way**2 * end)


def _draw_links(axes: Axes, layout: GraphLayout, slow: Collection[tuple[int, int]]) -> None:
    colours, pairs = palette(), list(map(tuple, layout.pairs.tolist()))
    is_slow = np.array([pair in slow for pair in pairs], dtype=np.bool_)
    lines = _links(layout, *np.linspace(0, 1, _POINTS).tolist())
    faint = min(max(60 / max(len(pairs), 1), 0.12), 1.0)
    alike: dict[str, Any] = {"colors": colours.grey, "linewidths": 1.1, "zorder": 1, "alpha": faint}
    marked: dict[str, Any] = {"colors": colours.vermillion, "linewidths": 2.0, "zorder": 2, "linestyles": "--"}
    for name, rows, style in (("pairs", ~is_slow, alike), ("slow pairs", is_slow, marked)):
        axes.add_collection(LineCollection(list(lines[rows]), label=name, clip_on=False, **style), autolim=False)
    for pair, (tail, tip) in zip(pairs, _links(layout, 0.54, 0.6).tolist(), strict=True):
        if len(pairs) <= _FEW_PAIRS and pair[::-1] not in pairs:
            colour = colours.vermillion if pair in slow else colours.dark_grey
            head = {"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0, "linewidth": 0.8}
            axes.annotate("", tip, tail, arrowprops=head)


def _draw_ranks(axes: Axes, layout: GraphLayout) -> None:
    """Draw a circle for each rank, with its number where there is room, else beside some of them."""
    places, hues = layout.places, palette()
    gaps = np.linalg.norm((places[:, None] - places) * points_per_unit(axes), axis=-1) + 1e9 * np.eye(len(places))
    radius = float(np.clip(0.3 * gaps.min(initial=80.0), 1.5, 11.0))  # points
    x, y = places.T
    axes.scatter(x, y, s=(2 * radius) ** 2, facecolor=hues.paper, edgecolors=hues.ink,
                 linewidths=max(0.8, radius / 5), zorder=3, label="ranks", clip_on=False)  # fmt: skip
    size = min(points(9), 1.1 * radius)
    centre: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 4}
    for rank, place in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        if size >= _SMALLEST_TEXT:
            axes.text(*place, str(rank), fontsize=size, **centre)
        elif rank % 8 == 0:
            out = np.array([place[0] - 0.5, 0.5 - place[1]])
            away = tuple((9 * out / (np.linalg.norm(out) or 1.0)).tolist())
            beside: dict[str, Any] = {"textcoords": "offset points", "color": hues.dark_grey, **centre}
            axes.annotate(str(rank), place, away, fontsize=points(7.5), **beside)
