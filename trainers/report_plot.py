"""The report of the main job as a picture: predicted beside measured, and the loss curves."""

import math
import os
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringsim.atomic_file import atomic_file
from ringsim.plots.palette import BLACK, BLUE, DARK_GREY, GREY, ORANGE, VERMILLION

_BAR = 0.38  # of the space of one strategy
_CURVES = ((BLUE, "-", 4.5), (ORANGE, "-", 3.0), (BLACK, "--", 1.5), (VERMILLION, ":", 1.5), (GREY, "-.", 1.0))


def save_report_plot(report: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Draw `report` (what report.json holds) as a picture in the format that the suffix of `path` names.

    Raises OSError if it cannot be written.
    """
    figure = Figure(figsize=(12, 4.8), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_times(left, report["strategies"])
    _draw_losses(right, report["strategies"], report["model"]["vocabulary"])
    where = report["measurements"]["provenance"]
    figure.suptitle(
        f"{report['num_ranks']} ranks, {report['num_parameters']:,} parameters — {where['machine']}, "
        f"{where['cores']} cores, torch {where['torch']}",
        fontsize=10,
        color=DARK_GREY,
    )
    with atomic_file(path) as file:
        figure.savefig(file, format=Path(path).suffix[1:])


def _draw_times(axes: Axes, results: list[dict[str, Any]]) -> None:
    places = range(len(results))
    predicted = [result["predicted_sync_s"] * 1e3 for result in results]
    measured = [result["measured_sync_s"] * 1e3 for result in results]
    spreads = [result["measured_sync_spread"] * time for result, time in zip(results, measured, strict=True)]
    axes.bar([x - _BAR / 2 for x in places], predicted, _BAR, color=BLUE, label="predicted")
    axes.bar([x + _BAR / 2 for x in places], measured, _BAR, color=ORANGE, hatch="//", label="measured", yerr=spreads,
             capsize=4)  # fmt: skip
    top = max([*predicted, *(time + extra for time, extra in zip(measured, spreads, strict=True))])
    for x, result in zip(places, results, strict=True):
        if result["error"] is not None:
            height = max(predicted[x], measured[x] + spreads[x])
            axes.text(x, height + 0.02 * top, f"{result['error']:+.0%}", ha="center", va="bottom")
    axes.set_xticks(places, [result["strategy"] for result in results])
    axes.set_ylim(0, 1.15 * top)
    axes.set_ylabel("gradient synchronisation of a step (ms)")
    axes.set_title("predicted from probes, and measured (median; bars: 10th to 90th percentile)", fontsize=10)
    axes.legend(frameon=False)


def _draw_losses(axes: Axes, results: list[dict[str, Any]], vocabulary: int) -> None:
    """The curves should lie on one another: thick ones below, thin ones above, so that each can be seen."""
    for index, result in enumerate(results):
        colour, style, width = _CURVES[index % len(_CURVES)]
        steps = range(1, len(result["losses"]) + 1)
        axes.plot(steps, result["losses"], style, color=colour, linewidth=width, label=result["strategy"])
    axes.axhline(math.log(vocabulary), color=DARK_GREY, linewidth=0.8, linestyle=(0, (1, 3)))
    axes.text(1, math.log(vocabulary), f" ln {vocabulary}: a guess", va="bottom", fontsize=9, color=DARK_GREY)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, mean over ranks (nats per token)")
    axes.set_title("loss with each strategy, from the same start", fontsize=10)
    axes.legend(frameon=False)
