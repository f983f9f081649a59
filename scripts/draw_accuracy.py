"""Draw predicted against measured times, docs/accuracy.png, from the points of docs/points/.

usage: python scripts/draw_accuracy.py OUTPUT.png
"""

import re
from pathlib import Path

import click
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from accuracy_points import HKBU, PLACES, Point, read_points
from figures import REGISTRY, ROOT, read_registry
from figures import Figure as MeasuredFigure
from ringsim.console import OneLineCommand
from ringsim.report.plots.style import new_figure, palette, save_figure
from ringsim.units import format_time

FOLDER = ROOT / "docs/points"
BAND = 0.10


def draw_accuracy(points: list[Point], date: str) -> Figure:
    """Draw a point for each pair of times, on logarithmic axes, with the diagonal and a band of 10 %.

    The times of one repository are half of all clusters' times; they are grey, and the caption counts with and without
    them.

    date: of the measurements, for the caption; may be empty.
    """
    figure = new_figure(9.0, 5.6)
    axes = figure.subplots(gridspec_kw={"left": 0.1, "right": 0.97, "top": 0.84, "bottom": 0.12})
    _set_axes(axes, np.array([(point.predicted_s, point.measured_s) for point in points]))
    colours = palette()
    warm, cold = (colours.vermillion, colours.grey, colours.peach), (colours.blue, colours.sky)
    hues = dict(zip(PLACES, (*warm, *cold, colours.orange, "#009E73", colours.ink, "#CC79A7"), strict=True))
    for place in sorted(PLACES, key=lambda place: place != HKBU):  # the grey ones below the others
        chosen = [point for point in points if point.place == place]
        if chosen:
            error = np.median([point.error for point in chosen])
            label = f"{place}: {len(chosen):,} points, median error {error:.1%}"
            measured_s, predicted_s = zip(*((point.measured_s, point.predicted_s) for point in chosen), strict=True)
            size = 5 if place == "whole program" else 3.5
            axes.plot(measured_s, predicted_s, "o", markersize=size, alpha=0.7, color=hues[place], label=label, mew=0)
    axes.legend(loc="upper left", fontsize=9, frameon=False, handletextpad=0.2, markerscale=1.8)
    inside, others = _share_inside(points), [point for point in points if point.place != HKBU]
    figure.text(0.1, 0.945, "Predicted and measured times", fontsize=14, fontweight="bold", va="center")
    told = f"{len(points):,} times, none of them used for calibration; {inside:.0%} within 10 %"
    told += f", {_share_inside(others):.0%} without hkbu"
    told += f"; {date}" if date else ""
    figure.text(0.1, 0.885, told, fontsize=9.5, color=colours.dark_grey, va="center")
    return figure


def _share_inside(points: list[Point]) -> float:
    return float(np.mean([point.error <= BAND for point in points]))


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
    axes.text(0.985, 0.03, "band: within 10 % of the measured time", **note)


def dates_of(files: list[Path]) -> str:
    """Return the date or the dates of the measurements, from the pages of the figures that wrote the files.

    Raises ValueError for a file that no figure of scripts/figures.toml writes.
    """
    registry = read_registry(REGISTRY)
    dates: set[str] = set()
    for file in files:
        writers = [figure for figure in registry.values() if _writes(figure, file)]
        if not writers:
            raise ValueError(f"{file}: no command of {REGISTRY.name} writes it: remove it, or name it there")
        parts = (figure.part.read(ROOT / figure.page) for figure in writers)
        dates.update(date for part in parts for date in re.findall(r"^Measured on (\S+) at", part, re.MULTILINE))
    ends = [*sorted(dates)[:1], *sorted(dates)[-1:]]
    return " to ".join(dict.fromkeys(ends))


def _writes(figure: MeasuredFigure, file: Path) -> bool:
    return any(f"--points {file.relative_to(ROOT)}" in command for command in figure.commands)


@click.command("draw_accuracy", cls=OneLineCommand)
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
def main(output: Path) -> None:
    """Draw the picture into OUTPUT."""
    files = sorted(FOLDER.glob("*.csv"))
    points = [point for file in files for point in read_points(file)]
    if not points:
        raise ValueError(f"{FOLDER}: no points: measure them with scripts/figures.py own-networks clusters")
    save_figure(lambda: draw_accuracy(points, dates_of(files)), output, "light")


if __name__ == "__main__":
    main(prog_name="draw_accuracy")
