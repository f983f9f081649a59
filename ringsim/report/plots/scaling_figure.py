"""The curves of a step on several numbers of ranks, each doing the same work: its time, and its efficiency."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ringsim.report.network_table import named_network
from ringsim.report.plots.charts import Curve, draw_curves, set_axis
from ringsim.report.plots.style import new_figure, palette, points
from ringsim.training_step import TraceScaling
from ringsim.units import format_time, plural

_WIDTH, _HEIGHT = 14.0, 4.8  # inches
_MAX_LABELS = 7  # on a curve, which may have a third of the page


class Scaled(Protocol):
    """A step on so many ranks, of a recorded program or of DDP; its times are infinite if it never ends."""

    @property
    def num_ranks(self) -> int: ...
    @property
    def step_s(self) -> float: ...
    @property
    def exposed_s(self) -> float: ...
    @property
    def efficiency(self) -> float: ...


def draw_trace_scaling(scaling: TraceScaling) -> Figure:
    """Draw the time of a step on the left, and its efficiency on the right.

    Raises ValueError for a step that never ends.
    """
    for prediction in scaling.predictions:
        prediction.timeline.require_end()
    first, last = scaling.predictions[0], scaling.predictions[-1]
    figure = new_figure(_WIDTH, _HEIGHT, layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15, rect=(0, 0, 1, 0.97)))
    device = "GPUs" if first.computing.on_gpu else "CPUs"
    name = f"A step of a recorded program on {first.trace.num_ranks} to {last.trace.num_ranks} ranks, {device}"
    figure.suptitle(name, x=0.01, ha="left", fontsize=points(15), fontweight="bold")
    facts = " · ".join(named_network(first.network)[:2])
    figure.text(0.01, 0.888, facts, fontsize=points(10), color=palette().dark_grey)
    times, shares = figure.subplots(1, 2)
    draw_step_times(times, scaling.steps)
    draw_efficiency(shares, scaling.steps, f"of the step on {plural(first.trace.num_ranks, 'rank')}")
    return figure


def draw_step_times(axes: Axes, steps: Sequence[Scaled]) -> None:
    """Draw the time of a step against the number of ranks, and shade what of it is exposed communication."""
    _begin(axes, "Time of a step against number of ranks")
    set_axis(axes.yaxis, "", lambda time_s: format_time(time_s) if time_s else "0")
    ranks = [step.num_ranks for step in steps]
    times = np.array([step.step_s if math.isfinite(step.step_s) else math.nan for step in steps])
    hidden = times - [step.exposed_s if math.isfinite(step.exposed_s) else math.nan for step in steps]
    axes.fill_between(ranks, hidden, color=palette().light_grey, linewidth=0, label="computing")
    style: dict[str, Any] = {"color": palette().vermillion, "alpha": 0.25, "linewidth": 0}
    axes.fill_between(ranks, hidden, times, label="exposed communication", **style)
    draw_curves(axes, [Curve("step", ranks, times.tolist())])
    for count, time_s in _labelled(ranks, times.tolist()):
        if math.isfinite(time_s):
            annotate(axes, format_time(time_s), (count, time_s), 8)
    axes.set_ylim(0, 1.35 * np.nanmax(times, initial=0.0) or 1.0)  # with room for the legend above all curves
    axes.legend(fontsize=points(8.5), framealpha=1, edgecolor=palette().paper, loc="upper left", ncols=3)


def draw_efficiency(axes: Axes, steps: Sequence[Scaled], reference: str) -> None:
    """Draw efficiency against the number of ranks. reference: to what it is compared."""
    _begin(axes, "Efficiency against number of ranks")
    set_axis(axes.yaxis, reference, lambda share: f"{100 * share:.0f} %")
    ranks, shares = zip(*((step.num_ranks, step.efficiency) for step in steps), strict=True)
    draw_curves(axes, [Curve("efficiency", ranks, shares)])
    for count, share in _labelled(ranks, shares):
        annotate(axes, f"{100 * share:.0f} %", (count, share), 8)
    axes.set_ylim(0, 1.1 * max(1.0, *shares))


def _begin(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=points(11), fontweight="bold")
    set_axis(axes.xaxis, "ranks, each with the same work", "{:g}".format, log_base=2)
    axes.margins(x=0.1)  # with room for the labels of the first and the last point


def _labelled(ranks: Sequence[int], values: Sequence[float]) -> list[tuple[int, float]]:
    """Return the points whose labels have room beside one another; the last is one of them."""
    marks = list(zip(ranks, values, strict=True))
    stride = -(-len(marks) // _MAX_LABELS)
    return marks[::-stride]


def annotate(axes: Axes, text: str, at: tuple[float, float], above: float) -> None:
    """Write a text above a point, by so many points."""
    axes.annotate(text, at, (0, above), textcoords="offset points", ha="center", fontsize=points(8))
