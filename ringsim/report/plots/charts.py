"""Parts shared by several pictures: axes, curves, bars, and boxes and labels in bulk.

One artist with a thousand boxes or texts costs as much as ten artists.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation, Transform

from ringsim.report.plots.style import palette, points
from ringsim.units import format_size, format_time
from ringsim.verdict import StrategyResult

Floats = npt.NDArray[np.float64]
Reals = npt.NDArray[np.floating]
Label = tuple[float, float, str, str, bool]  # x, y (the centre of a digit's height), text, colour, bold
_WIDEST, _THINNEST = 5.0, 1.2  # points
_MARKS = 8  # markers on each curve
_ALIKE = 0.01  # of the height of a picture: closer curves are merged into one line
_NAMES = 44  # characters of a line of the legend
_BEYOND = 1e100  # losses may approach the largest float, which no axis can show
_MOST_TICKS = 9
# Widths in font sizes: of a label such as "200 ms" with its gap, and of the label that Axis.get_tick_space assumes.
_LABEL_WIDTH, _COUNTED_WIDTH = 5, 3
Writes = Callable[[float], str]


class Scale(NamedTuple):
    """The label and format of an axis; log_base: None: linear."""

    label: str
    text: Writes
    log_base: int | None = None


SIZES, TIMES = Scale("size of the whole data", format_size, 2), Scale("time", format_time, 10)
STEPS, RANKS = Scale("step", "{:g}".format), Scale("ranks, each with the same work", "{:g}".format, 2)


class Curve(NamedTuple):
    """Points joined by a line."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    marker: str = "o"


def draw_curves(axes: Axes, curves: Sequence[Curve]) -> bool:
    """Draw each curve in its own colour; return whether there is any point."""
    hues = palette()
    colours = (hues.blue, hues.vermillion, hues.orange, hues.sky, hues.dark_grey)
    drawn = [curve for curve in curves if any(map(_holds, curve.y))]
    for number, curve in enumerate(drawn):
        turns, place = divmod(number, len(colours))
        y = [value if _holds(value) else math.nan for value in curve.y]
        style: dict[str, Any] = {"color": colours[place], "linestyle": "--" if turns % 2 else "-", "linewidth": 1.6}
        axes.plot(curve.x, y, marker=curve.marker, markersize=4.5, label=curve.name, **style)
    return bool(drawn)


def _holds(value: float) -> bool:
    return abs(value) < _BEYOND


class _Decades(LogLocator):
    def __init__(self, room: int) -> None:
        super().__init__(numticks=room)
        self._room = room

    def tick_values(self, vmin: float, vmax: float) -> Any:
        low, high = sorted((vmin, vmax))
        if low <= 0:
            return super().tick_values(vmin, vmax)
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for within in ((1, 2, 5), (1, 3), (1,)):
            ticks = [factor * 10.0**power for power in decades for factor in within]
            shown = [tick for tick in ticks if low <= tick <= high]
            if 2 <= len(shown) <= self._room:
                return shown
        if len(shown) > self._room:
            return super().tick_values(vmin, vmax)
        return MaxNLocator(self._room - 1).tick_values(low, high)


def _room(axis: Axis) -> int:
    if axis is axis.axes.yaxis:
        return _MOST_TICKS
    return max(3, min(_MOST_TICKS, int(axis.get_tick_space() * _COUNTED_WIDTH / _LABEL_WIDTH)))


def time_tick(time_s: float) -> str:
    """Return a tick's label; 0 has no unit."""
    return format_time(time_s) if time_s else "0"


def describe_axes(axes: Axes, title: str = "", x: Scale | None = None, y: Scale | None = None) -> None:
    """Give axes a title and scales."""
    axes.set_title(title, loc="left", fontsize=points(11), fontweight="bold")
    for axis, scale in ((axes.xaxis, x), (axes.yaxis, y)):
        if scale:
            set_axis(axis, *scale)


def set_axis(axis: Axis, label: str, text: Writes, log_base: int | None = None) -> None:
    """Name and format an axis, see `Scale`."""
    axis.axes.grid(color=palette().light_grey, linewidth=0.6)
    axis.axes.set_axisbelow(True)
    axis.axes.spines[["top", "right"]].set_visible(False)
    axis.set_tick_params(labelsize=points(8))
    room = _room(axis)
    if log_base:
        (axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale)("log", base=log_base)
        axis.set_major_locator(_Decades(room) if log_base == 10 else LogLocator(base=log_base, numticks=room))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(min(room, 6), steps=[1, 2, 5, 10]))
    axis.set_major_formatter(lambda value, _: text(value))
    axis.set_label_text(label, fontsize=points(9))


def draw_sync_times(axes: Axes, results: Sequence[StrategyResult]) -> bool:
    """Draw measured and predicted times of each strategy; return whether there is any.

    The axis is logarithmic, as a message per parameter takes many times as long.
    """
    colours, rows = palette(), range(len(results))
    low, high = ([result.sync_p10_p90_s[end] for result in results] for end in (0, 1))
    measured = [result.measured_sync_s for result in results]
    predicted = [result.predicted_sync_s for result in results]
    axes.hlines(rows, low, high, color=colours.orange, linewidth=7, alpha=0.45, label="measured, 10 % to 90 %")
    axes.plot(measured, rows, "o", color=colours.vermillion, markersize=8, label="measured, median")
    hollow: dict[str, Any] = {"fillstyle": "none", "markersize": 7, "markeredgewidth": 2}
    axes.plot(predicted, rows, "D", color=colours.blue, label="predicted", **hollow)
    for place, result in enumerate(results):
        if result.measured_sync_s > 0:
            error = f"{result.predicted_sync_s / result.measured_sync_s - 1:+.0%}"
            axes.annotate(error, (1, place), (-4, 0), axes.get_yaxis_transform(), "offset points", ha="right",
                          va="center", fontsize=points(8))  # fmt: skip
    axes.annotate("error", (1, 1), (-4, -12), "axes fraction", "offset points", ha="right", fontsize=points(8))
    set_axis(axes.xaxis, "gradient synchronisation of a step", format_time, log_base=10)
    axes.set_yticks(rows, [result.strategy for result in results], fontsize=points(9))
    axes.set_ylim(len(results) - 0.4, -1)
    axes.margins(x=0.2)  # with room for the errors at the right end
    axes.grid(visible=False, axis="y")
    return bool(results)


def draw_loss_curves(axes: Axes, curves: Mapping[str, Sequence[float]]) -> bool:
    """Draw each curve against its step, the first the widest; return whether there is any point.

    Coinciding curves share a line.
    """
    lines = _told_apart(curves)
    for number, (names, losses) in enumerate(lines):
        style, marker = palette().series_style(number)
        width = max(_THINNEST, _WIDEST - 1.3 * number)
        stride = max(1, len(losses) // _MARKS)
        shown = [loss if _holds(loss) else math.nan for loss in losses]
        label = fill(" ≈ ".join(names), _NAMES)
        axes.plot(range(1, len(losses) + 1), shown, **style.line, linewidth=width, marker=marker,
                  markersize=max(5.0, width + 1.5), markeredgewidth=0.6, markeredgecolor=style.ink,
                  markevery=(number * stride // len(lines) % stride, stride), label=label)  # fmt: skip
    axes.set_xlabel("step")
    return any(curves.values())


def _told_apart(curves: Mapping[str, Sequence[float]]) -> list[tuple[list[str], Sequence[float]]]:
    held = [loss for losses in curves.values() for loss in losses if _holds(loss)]
    distance = _ALIKE * (max(held, default=0.0) - min(held, default=0.0))
    lines: list[tuple[list[str], Sequence[float]]] = []
    for name, losses in curves.items():
        for names, drawn in lines:
            if len(drawn) == len(losses) and all(abs(a - b) <= distance for a, b in zip(drawn, losses, strict=True)):
                names.append(name)
                break
        else:
            lines.append(([name], losses))
    return lines


def draw_labels(axes: Axes, labels: Sequence[Label], size: float) -> None:
    """Write each text centred at (x, y), `size` points high."""
    if labels:
        axes.add_artist(Labels(labels, size))


class Labels(Artist):
    """Texts in data coordinates, which stay text in SVG and PDF."""

    def __init__(self, labels: Sequence[Label], size: float) -> None:
        super().__init__()
        self.labels = tuple(labels)
        self.size = size
        self.set_zorder(4)
        self.set_clip_on(False)
        self.set_in_layout(False)

    @property
    def texts(self) -> list[str]:
        return [text for _, _, text, _, _ in self.labels]

    def draw(self, renderer: RendererBase) -> None:
        if not self.get_visible() or self.axes is None:
            return
        fonts = {bold: FontProperties(size=self.size, weight="bold" if bold else "normal") for bold in (False, True)}
        places = self.axes.transData.transform(np.array([(x, y) for x, y, *_ in self.labels]))
        half = {bold: renderer.get_text_width_height_descent("8", font, False)[1] / 2 for bold, font in fonts.items()}
        _, canvas_height = renderer.get_canvas_width_height()
        for (x, y), (_, _, text, colour, bold) in zip(places.tolist(), self.labels, strict=True):
            width, _, _ = renderer.get_text_width_height_descent(text, fonts[bold], False)
            context = renderer.new_gc()
            context.set_foreground(colour)
            baseline = y - half[bold]
            height = canvas_height - baseline if renderer.flipy() else baseline
            renderer.draw_text(context, x - width / 2, height, text, fonts[bold], 0)
            context.restore()


def boxes(
    place: npt.NDArray[np.integer] | Floats, begin: Reals, end: Reals, row: tuple[float | Floats, float | Floats]
) -> Floats:
    """Return (num_boxes, 4, 2): a rectangle for each (begin, end) along x, with edges `row` relative to y `place`."""
    top, bottom = place + row[0], place + row[1]
    x = np.stack([begin, end, end, begin], axis=-1)
    y = np.stack([top, top, bottom, bottom], axis=-1)
    return np.stack([x, y], axis=-1)


def draw_boxes(axes: Axes, shapes: Floats, label: str, **style: Any) -> None:
    """Add rectangles to `axes` as one collection."""
    axes.add_collection(PolyCollection(list(shapes), label=label, **style), autolim=False)


def draw_lines(axes: Axes, lines: Floats | Sequence[Any], label: str = "", **style: Any) -> None:
    """Add lines to `axes` as one collection."""
    axes.add_collection(LineCollection(list(lines), label=label, **style), autolim=False)


def points_per_unit(axes: Axes) -> tuple[float, float]:
    """Return the points (1/72 inch) of a unit along x and y."""
    box = axes.get_position()
    width, height = axes.figure.bbox.width * box.width, axes.figure.bbox.height * box.height
    points = 72 / axes.figure.dpi
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    return width * points / abs(right - left), height * points / abs(top - bottom)


def strided(count: int, needed: float, room: float) -> range:
    """Return the indices to label, for items of `room` points and labels of `needed`."""
    stride = next(stride for stride in (1, 2, 4, 8, 16, 32, 64, 128) if stride * room >= needed or stride == 128)
    return range(0, count, stride)


def shifted(axes: Axes, transform: Transform, x: float = 0.0, y: float = 0.0) -> Transform:
    """Return the transform with a shift in points."""
    return transform + ScaledTranslation(x / 72, y / 72, axes.figure.dpi_scale_trans)
