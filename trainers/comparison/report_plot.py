"""Plots of the strategy comparison: predicted and measured times, losses, and memory per rank."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringsim.measurements import p10_p90
from ringsim.report.plots.charts import draw_loss_curves, draw_sync_times, set_axis, time_tick
from ringsim.report.plots.style import new_figure, palette, points
from ringsim.verdict import JobReport, StrategyResult, TrainingComparison

_SIZE = (12.0, 4.8)  # inches
_MEMORY_HEIGHT, _ROW = 1.6, 0.35  # of the picture of memory


def draw_report(job: JobReport, comparison: TrainingComparison | None = None) -> Figure:
    """Draw the times on a logarithmic axis (left), and the losses (right).

    Losses of exact strategies, and of one process in `comparison`, should coincide.
    """
    figure = new_figure(*_SIZE, layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_sync_times(left, [result for result in job.synchronising if result.predicted_sync_s > 0])
    left.set_title("predicted from point-to-point probes, and measured", fontsize=points(10))
    left.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=3, fontsize=points(8))
    curves = {row.run.name: row.run.losses for row in comparison.runs[:1]} if comparison else {}
    draw_loss_curves(right, curves | {result.strategy: result.losses for result in job.strategies})
    right.set_ylabel("loss of the whole batch", fontsize=points(9))
    right.xaxis.label.set_fontsize(points(9))
    right.tick_params(labelsize=points(8))
    right.set_title("loss with each strategy, from the same start", fontsize=points(10))
    right.legend(frameon=False, fontsize=points(8), handlelength=3)
    _name_run(figure, job)
    return figure


def draw_memory(job: JobReport) -> Figure:
    """Draw a row per strategy: the bytes that a rank keeps between steps (left), and its step (right)."""
    figure = new_figure(_SIZE[0], _MEMORY_HEIGHT + _ROW * len(job.strategies), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _draw_kept_bytes(left, job.strategies)
    _draw_steps(right, job.strategies)
    left.set_yticks(range(len(job.strategies)), [result.strategy for result in job.strategies], fontsize=points(9))
    left.set_ylim(len(job.strategies) - 0.5, -0.5)
    _name_run(figure, job)
    return figure


def _draw_kept_bytes(axes: Axes, results: Sequence[StrategyResult]) -> None:
    hues = palette()
    kinds = {"parameters": hues.blue, "gradients": hues.sky, "optimizer": hues.orange, "vectors": hues.grey}
    ends = [0.0] * len(results)
    for kind, colour in kinds.items():
        sizes = [result.memory_bytes[kind] / 2**20 for result in results]
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
    where = job.measurements.provenance
    figure.suptitle(
        f"{job.num_ranks} ranks, {job.num_parameters:,} parameters — {where['machine']}, "
        f"{where['cores']} cores, torch {where['torch']}, {where['date'][:10]}",
        fontsize=points(10),
        color=palette().dark_grey,
    )
