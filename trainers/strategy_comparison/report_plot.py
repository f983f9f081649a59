"""The report of the strategy comparison as a picture: predicted beside measured, and the loss curves."""

import math
import os
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringsim.report.plots.charts import draw_loss_curves, draw_sync_times
from ringsim.report.plots.style import new_figure, palette, points, save_figure
from ringsim.verdict import JobReport, StrategyResult

_SIZE = (12.0, 4.8)  # inches


def save_report_plot(report: dict[str, Any], path: str | os.PathLike[str], style: str | None = None) -> None:
    """Draw `report` (what report.json holds) as a picture in the format that the suffix of `path` names.

    Raises OSError if it cannot be written.
    """
    save_figure(lambda: draw_report(report), path, style)


def draw_report(report: dict[str, Any]) -> Figure:
    """Draw the times on the left and the losses on the right."""
    figure = new_figure(*_SIZE, layout="constrained")
    left, right = figure.subplots(1, 2)
    job = JobReport.from_dict(report)
    _draw_times(left, job.strategies)
    _draw_losses(right, job.strategies, report["model"]["vocabulary"])
    where = job.measurements.provenance
    figure.suptitle(
        f"{job.num_ranks} ranks, {job.num_parameters:,} parameters — {where['machine']}, "
        f"{where['cores']} cores, torch {where['torch']}",
        fontsize=points(10),
        color=palette().dark_grey,
    )
    return figure


def _draw_times(axes: Axes, results: Sequence[StrategyResult]) -> None:
    """Draw a line per strategy that sends, on a logarithmic axis: one message per parameter takes far longer."""
    draw_sync_times(axes, [result for result in results if result.predicted_sync_s > 0])
    axes.set_title("predicted from point-to-point probes, and measured", fontsize=points(10))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=3, fontsize=points(8))


def _draw_losses(axes: Axes, results: Sequence[StrategyResult], vocabulary: int) -> None:
    """They should lie on one another, but for those without synchronisation."""
    draw_loss_curves(axes, {result.strategy: result.losses for result in results})
    axes.axhline(math.log(vocabulary), color=palette().dark_grey, linewidth=0.8, linestyle=(0, (1, 3)))
    axes.text(
        max(len(result.losses) for result in results),
        math.log(vocabulary),
        f"ln {vocabulary}: a guess",
        ha="right",
        va="bottom",
        fontsize=points(9),
        color=palette().dark_grey,
    )
    axes.set_ylabel("loss, mean over ranks (nats per token)", fontsize=points(9))
    axes.xaxis.label.set_fontsize(points(9))
    axes.tick_params(labelsize=points(8))
    axes.set_title("loss with each strategy, from the same start", fontsize=points(10))
    axes.legend(frameon=False, ncols=1 + len(results) // 7, fontsize=points(8), handlelength=3)
