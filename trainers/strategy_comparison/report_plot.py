"""The report of the strategy comparison as pictures: predicted and measured times, losses, and memory per rank."""

import math
import os
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringsim.measurements import p10_p90
from ringsim.report.plots.charts import draw_loss_curves, draw_sync_times, set_axis, time_tick
from ringsim.report.plots.style import new_figure, palette, points, save_figure
from ringsim.verdict import JobReport, StrategyResult

_SIZE = (12.0, 4.8)  # inches
_MEMORY_HEIGHT, _ROW = 1.6, 0.35  # of the picture of memory


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
    _draw_times(left, job.synchronising)
    _draw_losses(right, job.strategies, report["model"]["vocabulary"])
    _name_run(figure, job)
    return figure


def save_memory_plot(report: dict[str, Any], path: str | os.PathLike[str], style: str | None = None) -> None:
    """Draw the memory per rank and the steps of `report` as a picture in the format that the suffix of `path` names.

    Raises OSError if it cannot be written.
    """
    save_figure(lambda: draw_memory(report), path, style)


def draw_memory(report: dict[str, Any]) -> Figure:
    """Draw a row per strategy: on the left the bytes that a rank keeps between steps by kind, on the right its step."""
    job = JobReport.from_dict(report)
    figure = new_figure(_SIZE[0], _MEMORY_HEIGHT + _ROW * len(job.strategies), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _draw_kept_bytes(left, report["strategies"])
    _draw_steps(right, job.strategies)
    left.set_yticks(range(len(job.strategies)), [result.strategy for result in job.strategies], fontsize=points(9))
    left.set_ylim(len(job.strategies) - 0.5, -0.5)
    _name_run(figure, job)
    return figure


def _draw_kept_bytes(axes: Axes, results: Sequence[dict[str, Any]]) -> None:
    """Stack the kinds; activations, which are the same with all strategies, are left out."""
    hues = palette()
    kinds = {"parameters": hues.blue, "gradients": hues.sky, "optimizer": hues.orange, "vectors": hues.grey}
    ends = [0.0] * len(results)
    for kind, colour in kinds.items():
        sizes = [result.get("memory_bytes", {}).get(kind, 0) / 2**20 for result in results]
        label = "buffers of the strategy" if kind == "vectors" else kind
        axes.barh(range(len(results)), sizes, left=ends, height=0.7, color=colour, edgecolor=hues.paper, label=label)
        ends = [end + size for end, size in zip(ends, sizes, strict=True)]
    set_axis(axes.xaxis, "memory per rank between two steps (MiB), without activations", "{:g}".format)
    axes.grid(visible=False, axis="y")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, fontsize=points(8))


def _draw_steps(axes: Axes, results: Sequence[StrategyResult]) -> None:
    hues, rows = palette(), range(len(results))
    axes.hlines(rows, *zip(*(p10_p90(result.steps_s) for result in results), strict=True), color=hues.orange,
                linewidth=7, alpha=0.45, label="10 % to 90 %")  # fmt: skip
    axes.plot([result.step_s for result in results], rows, "o", color=hues.vermillion, markersize=8, label="median")
    set_axis(axes.xaxis, "measured step", time_tick)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=points(8))


def _name_run(figure: Figure, job: JobReport) -> None:
    """Give the picture its title: ranks, model, machine and date."""
    where = job.measurements.provenance
    figure.suptitle(
        f"{job.num_ranks} ranks, {job.num_parameters:,} parameters — {where['machine']}, "
        f"{where['cores']} cores, torch {where['torch']}, {where['date'][:10]}",
        fontsize=points(10),
        color=palette().dark_grey,
    )


def _draw_times(axes: Axes, results: Sequence[StrategyResult]) -> None:
    """Draw a line per strategy that sends, on a logarithmic axis: one message per parameter takes far longer."""
    draw_sync_times(axes, [result for result in results if result.predicted_sync_s > 0])
    axes.set_title("predicted from point-to-point probes, and measured", fontsize=points(10))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=3, fontsize=points(8))


def _draw_losses(axes: Axes, results: Sequence[StrategyResult], vocabulary: int) -> None:
    """Draw the losses; those of strategies that train exactly should be one line."""
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
    axes.legend(frameon=False, fontsize=points(8), handlelength=3)
