"""The pictures of a step: its lanes over time, and its scaling curves."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch, Rectangle

from ringsim.report.colours import ink_on
from ringsim.report.network_table import named_network
from ringsim.report.plots.charts import RANKS, Curve, Scale, describe_axes, draw_curves, time_tick
from ringsim.report.plots.style import new_figure, palette, points
from ringsim.report.step_tables import notes_on_step, scaling_facts, step_time
from ringsim.training_step import ScaledStep, TracePrediction, TraceScaling
from ringsim.units import format_size, format_time, plural

_WIDTH, _LANE, _REST, _LINE, _SCALING_HEIGHT = 14.0, 0.62, 1.6, 0.2, 4.8  # inches
_LANES_WIDTH = 12.4  # inches, of the axis
_FACTS_LENGTH = 150  # characters of a line
_BAR = 0.72  # of the height of a lane
_POINTS_PER_CHARACTER = 5.2  # of a label
_MAX_LABELS = 7  # on a curve


def draw_traced_step(prediction: TracePrediction) -> Figure:
    """Draw the computations, and below them the calls of each group; waits are shaded.

    Raises ValueError for an endless step.
    """
    timeline = prediction.timeline
    timeline.require_end()
    used, num_steps = sorted({call.group for call in timeline.step.calls}), len(prediction.timelines)
    facts = [
        f"step: {step_time(prediction)} (exposed {format_time(prediction.mean.exposed_s)})",
        *notes_on_step(prediction),
        *([f"drawn: step {prediction.shown + 1} of {num_steps}"] if num_steps > 1 else []),
        f"{plural(len(timeline.calls), 'call')} of {format_size(timeline.step.size_bytes)} in all",
        *named_network(prediction.network)[:2],
    ]
    lines = textwrap.wrap(" · ".join(facts), _FACTS_LENGTH)
    height = _REST + _LINE * (len(lines) - 1) + _LANE * (1 + len(used))
    figure = new_figure(_WIDTH, height, layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15))
    device = "GPUs" if prediction.computing.on_gpu else "CPUs"
    title = f"A step on {plural(prediction.trace.num_ranks, 'rank')}, {device}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=points(15), fontweight="bold")
    axes = figure.subplots()
    axes.set_title("\n".join(lines), loc="left", fontsize=points(10), color=palette().dark_grey)
    names = ["compute", *(prediction.trace.groups[group].name for group in used)]
    axes.set_xlim(0, timeline.step_s or 1.0)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_yticks(range(len(names)), names, fontsize=points(10))
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda time_s, _: time_tick(time_s))
    axes.set_xlabel("time from the start of the step", fontsize=points(9))
    for begin_s, end_s in _joined(timeline.computations):
        _draw_bar(axes, 0, begin_s, end_s, palette().light_grey, f"compute {format_time(end_s - begin_s)}", "")
    _draw_exposed(axes, _joined(timeline.waits))
    _draw_calls(figure, axes, prediction, {group: lane for lane, group in enumerate(used, 1)})
    return figure


def _draw_bar(axes: Axes, lane: int, begin_s: float, end_s: float, colour: str, text: str, short: str) -> None:
    style: dict[str, Any] = {"facecolor": colour, "edgecolor": palette().paper, "linewidth": 0.8, "zorder": 2}
    axes.add_patch(Rectangle((begin_s, lane - _BAR / 2), end_s - begin_s, _BAR, **style))
    _draw_label(axes, lane, begin_s, end_s, text, short, ink_on(colour))


def _draw_label(axes: Axes, lane: int, begin_s: float, end_s: float, text: str, short: str, colour: str) -> bool:
    room = _LANES_WIDTH * 72 * (end_s - begin_s) / axes.get_xlim()[1]
    for label in (text, short):
        if len(label) * _POINTS_PER_CHARACTER < room - 2:
            place = (begin_s + end_s) / 2, lane
            axes.text(*place, label, ha="center", va="center", fontsize=points(8.5), color=colour, zorder=3)
            return True
    return False


def _draw_exposed(axes: Axes, waits: Sequence[tuple[float, float]]) -> None:
    colour = palette().vermillion
    for begin_s, end_s in waits:
        axes.axvspan(begin_s, end_s, color=colour, alpha=0.13, linewidth=0, zorder=0)
    texts = [f"exposed {format_time(end_s - begin_s)}" for begin_s, end_s in waits]
    fits = [_draw_label(axes, 0, *wait, text, "exposed", colour) for wait, text in zip(waits, texts, strict=True)]
    if not waits or any(fits):
        return
    longest = max(range(len(waits)), key=lambda number: waits[number][1] - waits[number][0])
    middle_s = sum(waits[longest]) / 2
    is_left = middle_s < axes.get_xlim()[1] / 2
    axes.annotate(
        texts[longest], (middle_s, axes.get_ylim()[0]), (20 if is_left else -20, -26), textcoords="offset points",
        ha="left" if is_left else "right", fontsize=points(8.5), color=colour, annotation_clip=False,
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8},
    )  # fmt: skip


def _joined(spans: Iterable[tuple[int, float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for _, begin_s, end_s in spans:
        if joined and joined[-1][1] == begin_s:
            joined[-1] = joined[-1][0], end_s
        else:
            joined.append((begin_s, end_s))
    return joined


def _draw_calls(figure: Figure, axes: Axes, prediction: TracePrediction, lanes: dict[int, int]) -> None:
    timeline = prediction.timeline
    kinds = list(dict.fromkeys(call.collective for call in timeline.step.calls))
    colours = (palette().blue, palette().orange, palette().sky, palette().vermillion, palette().grey)
    for call, span in zip(timeline.step.calls, timeline.calls, strict=True):
        colour = colours[kinds.index(call.collective) % len(colours)]
        text = f"{call.collective} {format_size(call.size_bytes)}"
        _draw_bar(axes, lanes[call.group], span.begin_s, span.end_s, colour, text, format_size(call.size_bytes))
    if kinds:
        patches = [Patch(color=colours[number % len(colours)]) for number in range(len(kinds))]
        figure.legend(patches, kinds, loc="outside lower right", ncols=len(kinds), frameon=False, fontsize=points(9))


def draw_trace_scaling(scaling: TraceScaling) -> Figure:
    """Draw the time of a step, and its efficiency. Raises ValueError for an endless step."""
    steps, first = scaling.steps, scaling.predictions[0]
    for prediction, step in zip(scaling.predictions, steps, strict=True):
        if math.isinf(step.step_s):
            prediction.timeline.require_end()
    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15, rect=(0, 0, 1, 0.97))
    figure = new_figure(_WIDTH, _SCALING_HEIGHT, layout=layout)
    device = "GPUs" if first.computing.on_gpu else "CPUs"
    name = f"A step on {steps[0].num_ranks} to {steps[-1].num_ranks} ranks, {device}"
    figure.suptitle(name, x=0.01, ha="left", fontsize=points(15), fontweight="bold")
    all_facts = [*filter(None, scaling_facts(scaling)), *named_network(first.network)[:2]]
    facts = textwrap.shorten(" · ".join(all_facts), _FACTS_LENGTH, placeholder=" …")
    figure.text(0.01, 0.888, facts, fontsize=points(10), color=palette().dark_grey)
    times, shares = figure.subplots(1, 2)
    _draw_step_times(times, steps)
    reference = "a single process" if scaling.single_s is not None else plural(steps[0].num_ranks, "rank")
    _draw_efficiency(shares, steps, f"of the step on {reference}")
    return figure


def _draw_step_times(axes: Axes, steps: Sequence[ScaledStep]) -> None:
    describe_axes(axes, "Time of a step against number of ranks", RANKS, Scale("", time_tick))
    ranks, times = [step.num_ranks for step in steps], [step.step_s for step in steps]
    hidden = [step.step_s - step.exposed_s for step in steps]
    axes.fill_between(ranks, hidden, color=palette().light_grey, linewidth=0, label="computing")
    style: dict[str, Any] = {"color": palette().vermillion, "alpha": 0.25, "linewidth": 0}
    axes.fill_between(ranks, hidden, times, label="exposed communication", **style)
    draw_curves(axes, [Curve("step", ranks, times)])
    _label(axes, [(step.num_ranks, step.step_s, format_time(step.step_s)) for step in steps])
    axes.set_ylim(0, 1.35 * max(times) or 1.0)  # with room for the legend above all curves
    axes.legend(fontsize=points(8.5), framealpha=1, edgecolor=palette().paper, loc="upper left", ncols=3)


def _draw_efficiency(axes: Axes, steps: Sequence[ScaledStep], reference: str) -> None:
    scale = Scale(reference, lambda share: f"{100 * share:.0f} %")
    describe_axes(axes, "Efficiency against number of ranks", RANKS, scale)
    shares = [step.efficiency for step in steps]
    draw_curves(axes, [Curve("efficiency", [step.num_ranks for step in steps], shares)])
    _label(axes, [(step.num_ranks, step.efficiency, f"{100 * step.efficiency:.3g} %") for step in steps])
    axes.set_ylim(0, 1.1 * max(1.0, *shares))


def _label(axes: Axes, marks: Sequence[tuple[int, float, str]]) -> None:
    axes.margins(x=0.1)  # with room for the first and the last text
    for count, value, text in marks[:: -len(marks) // _MAX_LABELS]:
        style: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": points(8)}
        axes.annotate(text, (count, value), (0, 8), **style)
