"""Draw predicted against measured times, docs/accuracy.png, from the points of docs/points/.

usage: python scripts/draw_accuracy.py [OUTPUT.png]
"""

import re
import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from accuracy_points import Point, read_points
from figures import REGISTRY, ROOT, read_registry
from ringsim.report.plots.style import new_figure, palette, save_figure
from ringsim.units import format_time

FOLDER = Path("docs/points")
PLACES = ("GPU cluster", "testbed", "loopback", "shared memory", "training step")
BAND = 0.10


def draw_accuracy(points: list[Point], date: str) -> Figure:
    """Draw a point for each pair of times, on logarithmic axes, with the diagonal and a band of 10 %.

    date: of the measurements, for the caption; may be empty.
    """
    figure = new_figure(9.0, 5.6)
    axes = figure.subplots(gridspec_kw={"left": 0.1, "right": 0.97, "top": 0.84, "bottom": 0.12})
    _set_axes(axes, np.array([time for point in points for time in point[1:]]))
    colours = palette()
    hues = dict(zip(PLACES, (colours.vermillion, colours.blue, colours.sky, colours.orange, colours.ink), strict=True))
    for place in PLACES:
        chosen = np.array([point[1:] for point in points if point.place == place])
        if len(chosen):
            error = np.median(np.abs(chosen[:, 0] / chosen[:, 1] - 1))
            label = f"{place}: {len(chosen):,} points, median error {error:.1%}"
            axes.plot(chosen[:, 1], chosen[:, 0], "o", markersize=3.5, alpha=0.7, color=hues[place], label=label, mew=0)
    axes.legend(loc="upper left", fontsize=9, frameon=False, handletextpad=0.2, markerscale=1.8)
    inside = np.mean([abs(point.predicted_s / point.measured_s - 1) <= BAND for point in points])
    figure.text(0.1, 0.945, "Predicted and measured times", fontsize=14, fontweight="bold", va="center")
    told = (
        f"{len(points):,} collectives and training steps, none of them used for calibration; {inside:.0%} within 10 %"
    )
    told += f"; {date}" if date else ""
    figure.text(0.1, 0.885, told, fontsize=9.5, color=colours.dark_grey, va="center")
    return figure


def _set_axes(axes: Axes, times_s: np.ndarray) -> None:
    low, high = times_s.min() / 1.5, times_s.max() * 1.5
    ends, colours = np.array([low, high]), palette()
    axes.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color=colours.light_grey, linewidth=0, zorder=0.5)
    axes.plot(ends, ends, color=colours.grey, linewidth=0.8, zorder=0.6)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured time", ylabel="predicted time")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda time_s, _: format_time(time_s))
    axes.spines[["top", "right"]].set_visible(False)
    note = {"ha": "right", "fontsize": 8.5, "color": colours.dark_grey, "transform": axes.transAxes}
    axes.text(0.985, 0.03, "grey: within 10 % of the measured time", **note)


def dates_of(files: list[Path]) -> str:
    """Return when the points were measured, or from when to when, as the pages say of the figures that wrote them."""
    registry = read_registry(REGISTRY)
    parts = [registry[file.stem].part.read(ROOT / registry[file.stem].page) for file in files]
    dates = sorted({date for part in parts for date in re.findall(r"^Measured on (\S+) at", part, re.MULTILINE)})
    return " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))


def main() -> None:
    """Draw it."""
    output = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/accuracy.png")
    files = sorted(FOLDER.glob("*.csv"))
    points = [point for file in files for point in read_points(file)]
    if not points:
        sys.exit(f"{FOLDER}: no points: measure them with scripts/figures.py own-networks clusters")
    save_figure(lambda: draw_accuracy(points, dates_of(files)), output, "light")


if __name__ == "__main__":
    main()
