"""The report of the main job as a picture: predicted beside measured, and the loss curves."""

import math
import os
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from ringsim.report.plots.loss_curves import draw_loss_curves
from ringsim.report.plots.palette import palette
from ringsim.report.plots.style import new_figure, points, save_figure

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
    _draw_times(left, report["strategies"])
    _draw_losses(right, report["strategies"], report["model"]["vocabulary"])
    where = report["measurements"]["provenance"]
    figure.suptitle(
        f"{report['num_ranks']} ranks, {report['num_parameters']:,} parameters — {where['machine']}, "
        f"{where['cores']} cores, torch {where['torch']}",
        fontsize=points(10),
        color=palette().dark_grey,
    )
    return figure


def _draw_times(axes: Axes, results: list[dict[str, Any]]) -> None:
    """A line per strategy that sends; on a logarithmic axis, as one message per parameter takes many times the rest."""
    results = [result for result in results if result["predicted_sync_s"] > 0]
    places = [len(results) - index for index in range(len(results))]
    predicted = [result["predicted_sync_s"] * 1e3 for result in results]
    measured = [result["measured_sync_s"] * 1e3 for result in results]
    low = [result["measured_sync_p10_s"] * 1e3 for result in results]
    high = [result["measured_sync_p90_s"] * 1e3 for result in results]
    axes.hlines(
        places, low, high, color=palette().orange, linewidth=7, alpha=0.45, label="measured, 10th to 90th percentile"
    )
    axes.plot(measured, places, "o", color=palette().vermillion, markersize=9, label="measured, median")
    axes.plot(
        predicted,
        places,
        "D",
        color=palette().blue,
        markersize=8,
        fillstyle="none",
        markeredgewidth=2,
        label="predicted",
    )
    for place, result in zip(places, results, strict=True):
        if result["error"] is not None:
            axes.annotate(f"{result['error']:+.0%}", (result["measured_sync_s"] * 1e3, place), (0, 12),
                          textcoords="offset points", ha="center")  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_yticks(places, [result["strategy"] for result in results])
    axes.set_ylim(0.4, len(results) + 1.5)
    axes.set_xlabel("gradient synchronisation of a step (ms)")
    axes.set_title("predicted from point-to-point probes, and measured", fontsize=points(10))
    axes.grid(axis="x", color=palette().light_grey)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="upper center", ncols=3, fontsize=points(8), columnspacing=1.0)


def _draw_losses(axes: Axes, results: list[dict[str, Any]], vocabulary: int) -> None:
    """They should lie on one another, but for those without synchronisation."""
    draw_loss_curves(axes, {result["strategy"]: result["losses"] for result in results})
    axes.axhline(math.log(vocabulary), color=palette().dark_grey, linewidth=0.8, linestyle=(0, (1, 3)))
    axes.text(
        max(len(result["losses"]) for result in results),
        math.log(vocabulary),
        f"ln {vocabulary}: a guess",
        ha="right",
        va="bottom",
        fontsize=points(9),
        color=palette().dark_grey,
    )
    axes.set_ylabel("loss, mean over ranks (nats per token)")
    axes.set_title("loss with each strategy, from the same start", fontsize=points(10))
    axes.legend(frameon=False, ncols=1 + len(results) // 7, fontsize=points(8), handlelength=3)
