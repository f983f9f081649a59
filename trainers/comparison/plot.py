"""The comparison of one process with several as a picture: the losses, and the time of a batch."""

import os
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringsim.report.plots.charts import draw_loss_curves
from ringsim.report.plots.style import new_figure, palette, points, save_figure
from trainers.comparison.runs import ComparisonRow

_SIZE = (11.0, 4.2)  # inches


def save_comparison_plot(
    rows: Sequence[ComparisonRow], title: str, path: str | os.PathLike[str], style: str | None = None
) -> None:
    """Draw it in the format that the suffix of `path` names. Raises OSError if it cannot be written."""
    save_figure(lambda: draw_comparison(rows, title), path, style)


def draw_comparison(rows: Sequence[ComparisonRow], title: str) -> Figure:
    """Draw the losses on the left and the times on the right."""
    figure = new_figure(*_SIZE, layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_losses(left, rows)
    _draw_times(right, rows)
    figure.suptitle(title, fontsize=points(10))
    return figure


def _draw_losses(axes: Axes, rows: Sequence[ComparisonRow]) -> None:
    """Draw the losses, which should be one line."""
    curves = {
        f"{row.run.name}, {row.run.num_ranks} rank{'s' * (row.run.num_ranks > 1)}": row.run.losses for row in rows
    }
    draw_loss_curves(axes, curves)
    axes.set_ylabel("loss of the whole batch")
    axes.set_title("losses", fontsize=points(10))
    axes.legend(frameon=False, fontsize=points(8), handlelength=3)


def _draw_times(axes: Axes, rows: Sequence[ComparisonRow]) -> None:
    """Draw a bar for each, the time of communication at its end."""
    places = [len(rows) - index for index in range(len(rows))]
    whole = [row.run.batch_s * 1e3 for row in rows]
    communicating = [row.run.batch_s * row.run.sync_share * 1e3 for row in rows]
    computing = [a - b for a, b in zip(whole, communicating, strict=True)]
    colours = palette()
    axes.barh(places, computing, color=colours.blue, height=0.6, label="computing")
    label = "exposed communication"
    axes.barh(places, communicating, left=computing, color=colours.orange, height=0.6, label=label)
    for place, row, end in zip(places, rows, whole, strict=True):
        text = f"{1 / row.speed_up:.2f} x as long" if row.speed_up < 0.995 else f"{row.speed_up:.2f} x as fast"
        axes.annotate(text, (end, place), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, [row.run.name for row in rows])
    axes.set_xlim(0, 1.45 * max(whole))
    axes.set_ylim(0.4, len(rows) + 1.1)
    axes.set_xlabel("time of a batch (ms)")
    axes.set_title("time of a batch, compared with the first", fontsize=points(10))
    axes.grid(axis="x", color=colours.light_grey)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=points(8), ncols=2, loc="upper right")
