"""The space-time picture of one run: a lane for each rank, a slanted line for each transfer, predicted and measured."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ringsim.calibration import ComparedRun
from ringsim.report.plots.bulk import shifted, strided
from ringsim.report.plots.lanes import time_unit
from ringsim.report.plots.style import new_figure, palette, points
from ringsim.schedule import Bools
from ringsim.simulation import Timeline
from ringsim.units import format_size, format_time

MAX_LINES = 400  # of each side; more of them run into each other
_FEW_LINES = 100  # up to so many are drawn wider
_WIDTH, _LANE, _STEPS, _REST = 11.0, 0.75, 1.6, 2.0  # inches
_MAX_LANES = 7.5


def _kinds() -> tuple[tuple[bool, str, str, str], ...]:
    """Whether a transfer is added, that in words, and the colours as predicted and as measured."""
    colours = palette()
    return ((True, "to add", colours.sky, colours.blue), (False, "to overwrite", colours.peach, colours.vermillion))


def draw_run(compared: ComparedRun) -> Figure:
    """Draw time and ranks above, of many steps only some; below, the time of a transfer of each step."""
    run = compared.run
    lanes = min(_LANE * run.num_ranks, _MAX_LANES)
    figure = new_figure(_WIDTH, lanes + _STEPS + _REST, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(lanes + 0.6, _STEPS))
    every = -(-len(run) // MAX_LINES)
    figure.suptitle(_title(compared), x=0.01, ha="left", fontsize=points(12), fontweight="bold")
    _draw_lanes(above, compared, every)
    _draw_steps(below, compared)
    return figure


def _title(compared: ComparedRun) -> str:
    run = compared.run
    times = ", ".join(f"{name} {format_time(time_s)}" for name, time_s in
                      (("predicted", compared.predicted.time_s), ("measured", run.time_s)))  # fmt: skip
    executed = f"{run.collective.value} {run.algorithm}, {format_size(run.size_bytes)} on {run.num_ranks} ranks"
    return f"{executed} over {run.transport}: {times} (error {compared.error:+.1%})"


def _note(compared: ComparedRun, every: int) -> str:
    run = compared.run
    parts = [f"network {compared.network}"]
    low, high = (format_time(time_s) for time_s in (min(run.runs_s), max(run.runs_s)))
    parts.append(f"the median of {len(run.runs_s)} runs, which took {low} to {high}")
    if run.clock_error_s:
        parts.append(f"clocks within {format_time(run.clock_error_s)}")
    if every > 1:
        parts.append(f"of every {every} steps only the first is drawn")
    return "; ".join(parts)


def _draw_lanes(axes: Axes, compared: ComparedRun, every: int) -> None:
    run = compared.run
    scale, unit = time_unit(max(run.time_s, compared.predicted.time_s))
    first, last = min(run.begin_s) * scale, max(*run.end_s, compared.predicted.time_s) * scale
    axes.set_xlim(first - 0.005 * (last - first), last + 0.01 * (last - first))
    axes.set_ylim(run.num_ranks - 0.6, -0.4)
    named = strided(run.num_ranks, 10, 72 * min(_LANE, _MAX_LANES / run.num_ranks))
    axes.set_yticks(named, [f"rank {rank}" for rank in named], fontsize=points(9))
    axes.set_xlabel(f"time since the last rank began ({unit})", fontsize=points(9))
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=points(8))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(_note(compared, every), loc="left", fontsize=points(9), color=palette().dark_grey)
    axes.hlines(np.arange(run.num_ranks), first, last, color=palette().light_grey, linewidth=0.8, zorder=0)
    drawn = compared.measured.step % every == 0
    wide, thin = (5.0, 1.3) if drawn.sum() <= _FEW_LINES else (3.0, 0.9)
    handles = []
    for reduce, does, pale, dark in _kinds():
        rows = drawn & (compared.measured.reduce == reduce)
        if rows.any():
            _draw_transfers(axes, compared.predicted, rows, scale, colors=pale, linewidths=wide, zorder=1)
            _draw_transfers(axes, compared.measured, rows, scale, colors=dark, linewidths=thin, zorder=3)
            handles += [
                Line2D([], [], color=pale, linewidth=wide, label=f"predicted, {does}"),
                Line2D([], [], color=dark, linewidth=thin, marker="o", markersize=3, label=f"measured, {does}"),
            ]
    handles += _draw_ends(axes, compared, scale)
    above_note = shifted(axes, axes.transAxes, y=points(20))
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1), bbox_transform=above_note, fontsize=points(8),
        ncols=len(handles), frameon=False, borderaxespad=0, columnspacing=1.4, handlelength=1.8,
    )  # fmt: skip


def _draw_transfers(axes: Axes, timeline: Timeline, rows: Bools, scale: float, **style: Any) -> None:
    """From the sender's lane when it was issued to the receiver's when it was applied; there a dot, if measured."""
    issued = np.column_stack([timeline.start_s[rows] * scale, timeline.src[rows]])
    applied = np.column_stack([timeline.applied_s[rows] * scale, timeline.dst[rows]])
    lines = list(np.stack([issued, applied], axis=1))
    axes.add_collection(LineCollection(lines, capstyle="round", **style), autolim=False)
    if style["zorder"] > 1:
        axes.plot(*applied.T, "o", color=style["colors"], markersize=3, zorder=4)


def _draw_ends(axes: Axes, compared: ComparedRun, scale: float) -> list[Line2D]:
    """When each side was done, and where ranks began, as those that began early only wait."""
    run = compared.run
    ends = ((compared.predicted.time_s, "--", "predicted end"), (run.time_s, "-", "measured end"))
    handles = [axes.axvline(end * scale, color=palette().dark_grey, linestyle=dash, linewidth=1, zorder=2, label=label)
               for end, dash, label in ends]  # fmt: skip
    begins = np.array(run.begin_s) * scale
    marker: dict[str, Any] = {
        "marker": ">",
        "markersize": 6,
        "color": palette().ink,
        "markerfacecolor": palette().paper,
    }
    places = begins, np.arange(run.num_ranks)
    handles += axes.plot(*places, linestyle="none", zorder=5, clip_on=False, label="began", **marker)
    return handles


def _draw_steps(axes: Axes, compared: ComparedRun) -> None:
    """Draw what each transfer took from being issued to being applied, by step."""
    took = [side.applied_s - side.start_s for side in (compared.predicted, compared.measured)]
    scale, unit = time_unit(max(float(times_s.max(initial=0)) for times_s in took))
    step, reduce = compared.measured.step, compared.measured.reduce
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=palette().light_grey, linewidth=0.6)
    axes.set_axisbelow(True)
    for kind, _, pale, dark in _kinds():
        rows = reduce == kind
        axes.plot(step[rows], took[0][rows] * scale, "_", color=pale, markersize=14, markeredgewidth=5)
        axes.plot(step[rows], took[1][rows] * scale, "o", color=dark, markersize=3.5)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step", fontsize=points(9))
    axes.set_ylabel(unit, fontsize=points(9))
    axes.tick_params(labelsize=points(8), color=palette().grey)
    axes.set_title("Duration of each transfer, from its issue to its application", loc="left", fontsize=points(9),
                   color=palette().dark_grey)  # fmt: skip
