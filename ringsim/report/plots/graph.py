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
_BEND = 0.12  # of the length of a link that would cross a rank
_SMALLEST_TEXT = 5.0  # points


class GraphDrawing:
    """The ranks of a layout as circles on their own axes, and the links between them."""

    def __init__(self, axes: Axes, layout: GraphLayout) -> None:
        """Prepare the axes: y goes downwards, and ranks lie where the layout has them."""
        self.axes, self.layout = axes, layout
        width = layout.places[:, 0].max() - layout.places[:, 0].min()
        sideways = (0.03, 0.97) if width else (0.03 - 0.5, 0.97 - 0.5)
        axes.set(xlim=sideways, ylim=(0.97, 0.03), aspect="auto" if layout.shape is GraphShape.TREE else "equal")
        axes.set_axis_off()
        axes.apply_aspect()
        self._points = np.array(points_per_unit(axes))
        gaps = np.linalg.norm((layout.places[:, None] - layout.places[None]) * self._points, axis=-1)
        closest = float((gaps + 1e9 * np.eye(len(gaps))).min(initial=80.0))  # points
        self.radius = float(np.clip(0.3 * closest, 1.5, 11.0))  # points

    def point(self, src: int, dst: int, share: float) -> Floats:
        """Return the place on a link, 0 to 1 of the way; in a ring links are arcs, elsewhere they avoid other ranks."""
        begin, end = self.layout.places[src], self.layout.places[dst]
        if self.layout.shape is GraphShape.RING:
            first, last = (np.arctan2(*(place - 0.5)[::-1]) for place in (begin, end))
            radius = np.linalg.norm(begin - 0.5)
            angle = first + share * ((last - first + np.pi) % (2 * np.pi) - np.pi)
            return np.array([0.5 + radius * np.cos(angle), 0.5 + radius * np.sin(angle)])
        along = end - begin
        aside = np.array([along[1], -along[0]]) * (_BEND if self._crosses(src, dst) else 0.0)
        return np.asarray(begin + along * share + 4 * share * (1 - share) * aside)

    def length(self, src: int, dst: int) -> float:
        """Return the points from one rank to the other; at least 1."""
        away = (self.layout.places[dst] - self.layout.places[src]) * self._points
        return max(float(np.linalg.norm(away)), 1.0)

    def _crosses(self, src: int, dst: int) -> bool:
        """Return whether the straight way leads over another rank; in a circle it may only touch them."""
        if self.layout.shape is GraphShape.CIRCLE:
            return False
        begin, along = self.layout.places[src], self.layout.places[dst] - self.layout.places[src]
        others = np.delete(self.layout.places, (src, dst), axis=0) - begin
        share = np.clip(others @ along / (along @ along), 0, 1)
        return bool((np.linalg.norm(others - share[:, None] * along, axis=1) < 0.01).any())

    def draw_links(self, slow: Collection[tuple[int, int]]) -> None:
        """Draw every pair that is used, few with an arrow where only one sends. slow: those in another colour."""
        colours, pairs = palette(), [tuple(pair) for pair in self.layout.pairs.tolist()]
        for box in self.layout.hosts:
            corner, size = (box.left, box.top), (box.right - box.left, box.bottom - box.top)
            style: dict[str, Any] = {"facecolor": colours.pale_grey, "edgecolor": colours.light_grey, "zorder": 0.5}
            self.axes.add_patch(Rectangle(corner, *size, **style))
            self.axes.text(
                box.left + 0.01, box.top + 0.01, box.name, fontsize=points(7), va="top", color=colours.dark_grey
            )
        shares = np.linspace(0, 1, _POINTS)
        faint = float(np.clip(60 / max(len(pairs), 1), 0.12, 1.0))
        for is_slow, colour, width, dash in ((False, colours.grey, 1.1, "-"), (True, colours.vermillion, 2.0, "--")):
            lines = [
                np.array([self.point(src, dst, share) for share in shares])
                for src, dst in pairs
                if ((src, dst) in slow) == is_slow and (is_slow or src < dst or (dst, src) not in pairs)
            ]
            links = LineCollection(lines, colors=colour, linewidths=width, linestyles=dash, zorder=1 + is_slow)
            links.set(alpha=1.0 if is_slow else faint, label="slow pairs" if is_slow else "pairs", clip_on=False)
            self.axes.add_collection(links, autolim=False)
        if len(pairs) <= _FEW_PAIRS:
            for src, dst in pairs:
                if (dst, src) not in pairs:
                    colour = colours.vermillion if (src, dst) in slow else colours.dark_grey
                    head = {"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0, "linewidth": 0.8}
                    tip, tail = (tuple(self.point(src, dst, share).tolist()) for share in (0.6, 0.54))
                    self.axes.annotate("", tip, tail, arrowprops=head)

    def draw_ranks(self) -> None:
        """Draw a circle for each rank, with its number where there is room, else beside some of them."""
        places, hues = self.layout.places, palette()
        x, y = places.T
        self.axes.scatter(x, y, s=(2 * self.radius) ** 2, facecolor=hues.paper, edgecolors=hues.ink,
                          linewidths=max(0.8, self.radius / 5), zorder=3, label="ranks", clip_on=False)  # fmt: skip
        size = min(points(9), 1.1 * self.radius)
        centre: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 4}
        for rank, place in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
            if size >= _SMALLEST_TEXT:
                self.axes.text(*place, str(rank), fontsize=size, **centre)
            elif rank % 8 == 0:
                out = np.array([place[0] - 0.5, 0.5 - place[1]])
                away = tuple((9 * out / (np.linalg.norm(out) or 1.0)).tolist())
                beside: dict[str, Any] = {"textcoords": "offset points", "color": hues.dark_grey, **centre}
                self.axes.annotate(str(rank), place, away, fontsize=points(7.5), **beside)


def draw_graph(axes: Axes, layout: GraphLayout, slow: Collection[tuple[int, int]] = ()) -> None:
    """Draw the ranks, and a link between those that send to each other, with an arrow where only one does."""
    drawing = GraphDrawing(axes, layout)
    drawing.draw_links(slow)
    drawing.draw_ranks()
