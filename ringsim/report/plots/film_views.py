"""The three views of a film: ranks and travelling chunks, what each rank holds, and the lanes of time."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Rectangle

from ringsim.analysis import Animation, GraphShape
from ringsim.report.contributor_colours import contributor_colours
from ringsim.report.plots.boxes import Floats, boxes
from ringsim.report.plots.palette import palette
from ringsim.schedule import Bools, Ints

_GREEN = "#009E73"
_FEW_RANKS = 16  # up to so many have names, and chunks that travel have stripes
_STRIPE = 8  # pixels
_GAP = 0.009  # on either side of a cell, of the whole panel
_POINTS = 12  # of a link that is an arc
_MAX_STRIPES = 160  # across the chunks of a rank


class GraphView:
    """The ranks, their links, and the chunks on them."""

    def __init__(self, axes: Axes, run: Animation) -> None:
        self._axes, self._run = axes, run
        self._colours = contributor_colours(run.schedule.num_ranks)
        self._few = run.schedule.num_ranks <= _FEW_RANKS
        places = run.graph.places
        gaps = np.linalg.norm(places[:, None] - places[None], axis=-1) + 2 * np.eye(len(places))
        closest = float(gaps.min())
        self._radius, self._width = min(0.06, 0.3 * closest), min(0.15, 0.4 * closest)

    def draw(self, time_s: float) -> None:
        """Shows this moment."""
        self._axes.clear()
        self._axes.set(xlim=(0.03, 0.97), ylim=(0.97, 0.03), aspect="equal")
        self._axes.set_axis_off()
        self._draw_links()
        for rank, (x, y) in enumerate(self._run.graph.places.tolist()):
            circle = Circle(
                (x, y), self._radius, facecolor=palette().paper, edgecolor=self._colours[rank], linewidth=2.5, zorder=3
            )
            self._axes.add_patch(circle)
            if self._few:
                self._axes.text(
                    x, y, str(rank), fontsize=10, fontweight="bold", ha="center", va="center_baseline", zorder=4
                )
        self._draw_chunks(time_s)

    def _draw_links(self) -> None:
        run = self._run
        for box in run.graph.hosts:
            size = (box.right - box.left, box.bottom - box.top)
            self._axes.add_patch(
                Rectangle((box.left, box.top), *size, facecolor=palette().pale_grey, edgecolor=palette().light_grey)
            )
        pairs = np.unique(np.column_stack([run.timeline.src, run.timeline.dst]).astype(np.int64), axis=0)
        self._axes.add_collection(
            LineCollection(self._lines(pairs), colors=palette().light_grey, linewidths=1.2, zorder=1)
        )
        wrong = [
            (pair.src, pair.dst) for pair in run.troubles.pairs if pair.slowdown > 1.05 or pair.fails_at_s is not None
        ]
        if wrong:
            self._axes.add_collection(
                LineCollection(
                    self._lines(np.array(wrong)), colors=palette().vermillion, linewidths=2, linestyles="--", zorder=1
                )
            )

    def _draw_chunks(self, time_s: float) -> None:
        timeline, places = self._run.timeline, self._run.graph.places
        for row in np.flatnonzero((timeline.start_s <= time_s) & (time_s < timeline.applied_s)).tolist():
            src, dst = places[timeline.src[row]], places[timeline.dst[row]]
            length = float(np.linalg.norm(dst - src)) or 1.0
            rim = min(0.36, (self._radius + 0.45 * self._width) / length)
            x, y = self._point(src, dst, rim + (1 - 2 * rim) * self._share(row, time_s)).tolist()
            self._draw_chunk(row, x, y)

    def _lines(self, pairs: Ints) -> list[Floats]:
        """The links as points one after the other."""
        places = self._run.graph.places
        return [
            np.array([self._point(places[src], places[dst], share) for share in np.linspace(0, 1, _POINTS)])
            for src, dst in pairs.tolist()
        ]

    def _point(self, src: Floats, dst: Floats, share: float) -> Floats:
        """On the link, which in a ring is an arc."""
        if self._run.graph.shape is not GraphShape.RING:
            return np.asarray(src + share * (dst - src))
        (begin, end), radius = (np.arctan2(*(place - 0.5)[::-1]) for place in (src, dst)), np.linalg.norm(src - 0.5)
        turn = (end - begin + np.pi) % (2 * np.pi) - np.pi
        angle = begin + share * turn
        return np.array([0.5 + radius * np.cos(angle), 0.5 + radius * np.sin(angle)])

    def _share(self, row: int, time_s: float) -> float:
        """Of the way: 0 to 1; what never arrives stays near its sender."""
        timeline = self._run.timeline
        start_s, arrived_s = float(timeline.start_s[row]), float(timeline.arrived_s[row])
        if not np.isfinite(arrived_s):
            return 0.2
        return min((time_s - start_s) / (arrived_s - start_s), 1.0) if arrived_s > start_s else 1.0

    def _draw_chunk(self, row: int, x: float, y: float) -> None:
        run, timeline = self._run, self._run.timeline
        edge = (
            palette().vermillion
            if not np.isfinite(timeline.applied_s[row])
            else palette().dark_grey
            if timeline.reduce[row]
            else _GREEN
        )
        if not self._few:
            self._axes.add_patch(
                Circle(
                    (x, y),
                    0.4 * self._radius,
                    facecolor=palette().blue if edge == palette().dark_grey else edge,
                    zorder=5,
                )
            )
            return
        width = self._width
        height, left = 0.62 * width, x - width / 2
        self._axes.add_patch(
            Rectangle((left, y - height / 2), width, height, facecolor=palette().paper, edgecolor="none", zorder=5)
        )
        _draw_stripes(
            self._axes, run.sent[row], self._colours, (left, y, width, height / 2), run.schedule.collective.reduces
        )
        self._axes.add_patch(
            Rectangle((left, y - height / 2), width, height, facecolor="none", edgecolor=edge, linewidth=1.4, zorder=7)
        )
        number, size = str(timeline.chunk[row]), 50 * width
        self._axes.text(x, y - height / 4, number, fontsize=size, fontweight="bold", ha="center", va="center_baseline",
                        zorder=8)  # fmt: skip


def _draw_stripes(
    axes: Axes, held: Bools, colours: list[str], place: tuple[float, float, float, float], reduces: bool
) -> None:
    """A stripe for each share in its rank's place; where nothing is summed, all of it in the one rank's colour."""
    left, top, width, height = place
    contributors = np.flatnonzero(held).tolist()
    stripe = width / len(held) if reduces else width
    for rank in contributors:
        x = left + rank * stripe if reduces else left
        axes.add_patch(Rectangle((x, top), stripe, height, facecolor=colours[rank], linewidth=0, zorder=6))


class ChunksView:
    """A row for each rank, a column for each chunk."""

    def __init__(self, axes: Axes, run: Animation) -> None:
        self._axes, self._run = axes, run
        self._colours = contributor_colours(run.schedule.num_ranks)
        self._striped = run.schedule.num_ranks * run.schedule.num_chunks <= _MAX_STRIPES

    def draw(self, time_s: float) -> None:
        """Shows this moment."""
        num_ranks, num_chunks = self._run.schedule.num_ranks, self._run.schedule.num_chunks
        axes = self._axes
        axes.clear()
        axes.set(xlim=(0, num_chunks), ylim=(num_ranks, 0))
        every = (-(-num_chunks // 12), -(-num_ranks // 16))
        axes.set_xticks(
            np.arange(0, num_chunks, every[0]) + 0.5, [f"{chunk}" for chunk in range(0, num_chunks, every[0])]
        )
        axes.set_yticks(np.arange(0, num_ranks, every[1]) + 0.5, [f"{rank}" for rank in range(0, num_ranks, every[1])])
        axes.tick_params(length=0, labelsize=8, labeltop=True, labelbottom=False, pad=1)
        axes.set_ylabel("rank", fontsize=8, labelpad=1)
        axes.set_title("what each rank holds of each chunk", fontsize=8, pad=7)
        axes.spines[:].set_visible(False)
        held, finished = self._state(time_s)
        if self._striped:
            self._draw_striped(held, finished)
        else:
            self._draw_shaded(held, finished)

    def _state(self, time_s: float) -> tuple[Bools, Bools]:
        """Whose shares are in each chunk of each rank, and whether it is complete."""
        run, timeline = self._run, self._run.timeline
        num_ranks = run.schedule.num_ranks
        held = run.initial[..., None] == np.arange(num_ranks)
        finished = held.sum(axis=-1) == run.needed
        # A rank applies in step order, so of what has been applied to a chunk the last row holds.
        for row in np.flatnonzero(timeline.applied_s <= time_s).tolist():
            held[timeline.dst[row], timeline.chunk[row]] = run.result[row]
            finished[timeline.dst[row], timeline.chunk[row]] = run.finished[row]
        return held, finished

    def _draw_striped(self, held: Bools, finished: Bools) -> None:
        """Stripes as one image, since a film has a hundred frames; and a frame around each cell."""
        num_ranks, num_chunks = finished.shape
        across, down = _GAP * num_chunks, _GAP * num_ranks  # of a cell
        image = _with_gaps(self._stripes(held), across, down)
        self._axes.imshow(image, extent=(0, num_chunks, num_ranks, 0), aspect="auto", interpolation="nearest")
        rank, chunk = np.indices(finished.shape).reshape(2, -1)
        cells = boxes(rank, chunk + across, chunk + 1 - across, (down, 1 - down))
        for rows, colour, width in ((~finished.ravel(), palette().grey, 0.6), (finished.ravel(), _GREEN, 2.4)):
            frames = PolyCollection(list(cells[rows]), facecolors="none", edgecolors=colour, linewidths=width)
            self._axes.add_collection(frames, autolim=False)

    def _stripes(self, held: Bools) -> Floats:
        """(num_ranks, num_chunks, stripes, 3): a stripe for each contributor, or one where nothing is summed."""
        colours, empty = np.array([to_rgb(colour) for colour in self._colours]), np.array(to_rgb(palette().pale_grey))
        if self._run.schedule.collective.reduces:
            return np.where(held[..., None], colours, empty)
        present = np.any(held, axis=-1, keepdims=True)
        return np.where(present, colours[held.argmax(axis=-1)], empty)[:, :, None]

    def _draw_shaded(self, held: Bools, finished: Bools) -> None:
        share = held.sum(axis=-1) / self._run.needed
        image = 1 - share[..., None] * (1 - np.array([0.35, 0.6, 0.8]))
        image[finished] = (0.0, 0.62, 0.45)
        image[share == 0] = 0.95
        num_ranks, num_chunks = finished.shape
        self._axes.imshow(image, extent=(0, num_chunks, num_ranks, 0), aspect="auto", interpolation="nearest")


def _with_gaps(stripes: Floats, across: float, down: float) -> Floats:
    """The image of all cells, with a white gap around each; across and down: its width, as a part of a cell."""
    num_ranks, num_chunks, num_stripes, _ = stripes.shape
    width, height = num_stripes * _STRIPE, 4 * _STRIPE
    gaps = (round(height * down / (1 - 2 * down)), round(width * across / (1 - 2 * across)))
    cells = np.broadcast_to(np.repeat(stripes, _STRIPE, axis=2)[:, None], (num_ranks, height, num_chunks, width, 3))
    padded = np.pad(cells, ((0, 0), (gaps[0],) * 2, (0, 0), (gaps[1],) * 2, (0, 0)), constant_values=1.0)
    return padded.reshape(num_ranks * padded.shape[1], num_chunks * padded.shape[3], 3)


class TimeView:
    """The lanes: above what a rank sends, below what it applies; what has not happened yet is pale."""

    def __init__(self, axes: Axes, run: Animation, first_s: float, last_s: float) -> None:
        num_ranks = run.schedule.num_ranks
        scale, unit = next(((factor, name) for factor, name in _UNITS if last_s * factor >= 1), _UNITS[-1])
        self._scale, self._last = scale, last_s * scale
        axes.set(xlim=(first_s * scale, self._last), ylim=(num_ranks, 0))
        every = -(-num_ranks // 8)
        axes.set_yticks(np.arange(0, num_ranks, every) + 0.5, [f"rank {rank}" for rank in range(0, num_ranks, every)])
        axes.tick_params(length=0, labelsize=8, pad=2)
        axes.tick_params(axis="x", length=2)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.annotate(unit, (1, 0), (0, -4), "axes fraction", "offset points", fontsize=8, ha="right", va="top")
        self._draw_bars(axes, run)
        self._now: Line2D = axes.axvline(0, color=palette().dark_grey, linewidth=1.2, zorder=6)
        self._ahead = Rectangle((0, 0), self._last, num_ranks, color=palette().paper, alpha=0.62, zorder=5)
        axes.add_patch(self._ahead)

    def _draw_bars(self, axes: Axes, run: Animation) -> None:
        timeline, until_s = run.timeline, run.timeline.until_s
        least = 0.003 * self._last  # so that what takes no time can be seen
        for reduce, sends, applies in ((True, palette().blue, palette().orange), (False, palette().sky, _GREEN)):
            rows = (timeline.reduce == reduce) & np.isfinite(timeline.start_s)
            begin, end = timeline.start_s[rows], np.minimum(timeline.left_s[rows], until_s)
            shapes = boxes(timeline.src[rows], begin * self._scale, end * self._scale, (0.06, 0.52))
            colours = np.where(np.isfinite(timeline.left_s[rows]), sends, palette().vermillion).tolist()
            axes.add_collection(
                PolyCollection(list(shapes), facecolors=colours, edgecolors=palette().paper, linewidths=0.4)
            )
            rows = (timeline.reduce == reduce) & np.isfinite(timeline.applied_s)
            end = timeline.applied_s[rows] * self._scale
            begin = np.minimum(timeline.apply_s[rows] * self._scale, end - least)
            shapes = boxes(timeline.dst[rows], begin, end, (0.54, 0.92))
            axes.add_collection(PolyCollection(list(shapes), facecolors=applies, linewidths=0))

    def draw(self, time_s: float) -> None:
        """Shows this moment."""
        now = time_s * self._scale
        self._now.set_xdata([now, now])
        self._ahead.set_x(now)


_UNITS = ((1.0, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns"))
