"""The comparison of one process with several as a picture: the losses, and the time of a batch."""

import os
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringsim.files import atomic_file
from ringsim.report.plots.palette import BLACK, BLUE, LIGHT_GREY, ORANGE
from trainers.comparison.runs import ComparisonRow


def save_comparison_plot(rows: Sequence[ComparisonRow], title: str, path: str | os.PathLike[str]) -> None:
    """Draw it in the format that the suffix of `path` names. Raises OSError if it cannot be written."""
    figure = Figure(figsize=(11, 4.2), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_losses(left, rows)
    _draw_times(right, rows)
    figure.suptitle(title, fontsize=10)
    with atomic_file(path) as file:
        figure.savefig(file, format=Path(path).suffix[1:])


def _draw_losses(axes: Axes, rows: Sequence[ComparisonRow]) -> None:
    """That of one process thick, the others on it."""
    for place, row in enumerate(rows):
        style = ("-", 5.0, ORANGE) if place == 0 else ((0, (3, 1 + place)), 1.4, BLACK)
        steps = range(1, len(row.run.losses) + 1)
        label = f"{row.run.name}, {row.run.num_ranks} rank{'s' * (row.run.num_ranks > 1)}"
        axes.plot(steps, row.run.losses, linestyle=style[0], linewidth=style[1], color=style[2], label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("loss of the whole batch")
    axes.set_title("the same losses", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _draw_times(axes: Axes, rows: Sequence[ComparisonRow]) -> None:
    """A bar for each, the time of communication at its end."""
    places = [len(rows) - index for index in range(len(rows))]
    whole = [row.run.batch_s * 1e3 for row in rows]
    communicating = [row.run.batch_s * row.run.sync_share * 1e3 for row in rows]
    computing = [a - b for a, b in zip(whole, communicating, strict=True)]
    axes.barh(places, computing, color=BLUE, height=0.6, label="computing")
    axes.barh(places, communicating, left=computing, color=ORANGE, height=0.6, label="synchronising, or waiting")
    for place, row, end in zip(places, rows, whole, strict=True):
        axes.annotate(f"{row.speed_up:.2f} x", (end, place), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, [row.run.name for row in rows])
    axes.set_xlim(0, 1.15 * max(whole))
    axes.set_ylim(0.4, len(rows) + 1.1)
    axes.set_xlabel("time of a batch (ms)")
    axes.set_title("how much faster", fontsize=10)
    axes.grid(axis="x", color=LIGHT_GREY)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")
