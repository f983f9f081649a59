"""The pages of a step, of DDP or of a recorded program: its lanes of time, and its curves by bucket caps and ranks."""

import math
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch, Rectangle

from ringsim.report.network_table import named_network
from ringsim.report.plots.charts import Curve, draw_curves, set_axis, time_tick
from ringsim.report.plots.style import ink_on, new_figure, palette, points
from ringsim.report.step_tables import notes_on_step, scaling_facts, step_time
from ringsim.training_step import PredictedStep, Prediction, ScaledStep, TracePrediction, TraceScaling
from ringsim.units import format_size, format_time, plural

_WIDTH, _LANE, _REST, _CURVES, _LINE = 14.0, 0.62, 1.5, 4.0, 0.2  # inches
LANES_WIDTH = 12.4  # inches, of the axis
_FACTS_LENGTH = 150  # characters of a line
BAR = 0.72  # of the height of a lane
_POINTS_PER_CHARACTER = 5.2  # of a label


def draw_prediction(prediction: Prediction) -> Figure:
    """Draw the lanes on top, below them side by side the sweep and the scaling.

    Raises ValueError for a step that never ends.
    """
    step, config = prediction.step, prediction.step.config
    if not np.isfinite(step.step_s):
        raise ValueError("the step never ends, as something fails: there is nothing to draw")
    curves = _curves(prediction)
    facts = _facts(prediction)
    heights = [_REST + _LINE * len(facts) + _LANE * (1 + _num_lanes(step)), *([_CURVES] if curves else [])]
    figure = new_figure(_WIDTH, sum(heights), layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15))
    above, *below = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    algorithms = " and ".join(dict.fromkeys(bucket.algorithm for bucket in step.buckets))
    name = f"A step of DDP on {step.num_ranks} ranks, bucket_cap_mb {config.caps}, all_reduce {algorithms}"
    axes = above.subplots()
    axes.set_title("\n".join(facts), loc="left", fontsize=points(10), color=palette().dark_grey)
    # At the left end of the facts below it, which a title of the figure would not find.
    at = (0, 12 + 72 * _LINE * len(facts))
    axes.annotate(name, (0, 1), at, "axes fraction", "offset points", fontsize=points(15), fontweight="bold")
    _draw_lanes(axes, prediction)
    for part in below:
        for panel, draw in zip(part.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
            draw(panel)
    return figure


def _curves(prediction: Prediction) -> list[Callable[[Axes], None]]:
    """Return what draws each panel below the lanes."""
    curves: list[Callable[[Axes], None]] = [partial(_draw_sweep, prediction=prediction)] if prediction.sweep else []
    if prediction.scaling:
        curves.append(partial(draw_step_times, steps=prediction.scaling))
        curves.append(partial(draw_efficiency, steps=prediction.scaling, reference="step of one rank / step"))
    return curves


def _facts(prediction: Prediction) -> list[str]:
    """Return the lines below the title, the results first: what a network says of itself may be long."""
    step = prediction.step
    facts = [
        f"step {format_time(step.step_s)} (exposed {format_time(step.exposed_s)})",
        f"efficiency {100 * step.efficiency:.1f} %",
        f"{format_size(prediction.profile.gradient_bytes)} of gradients",
        *named_network(prediction.network),
    ]
    return _wrapped(facts)


def _wrapped(facts: Sequence[str]) -> list[str]:
    return textwrap.wrap(" · ".join(facts), _FACTS_LENGTH)


def set_lanes(axes: Axes, names: Sequence[str], step_s: float) -> None:
    """Make room for lanes of these names, the first on top, and for the times of a step."""
    axes.set_xlim(0, step_s or 1.0)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_yticks(range(len(names)), names, fontsize=points(10))
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda time_s, _: time_tick(time_s))
    axes.set_xlabel("time from the start of the step", fontsize=points(9))


def _draw_lanes(axes: Axes, prediction: Prediction) -> None:
    """Draw computing in the first lane, then a lane for each worker; time 0 is the start of the step."""
    step = prediction.step
    start_s = step.broadcast_s + step.forward_s
    set_lanes(axes, ["compute", *_lane_names(step)], step.step_s)
    _draw_computing(axes, step)
    colours = (palette().blue, palette().sky)
    for number, (bucket, lane) in enumerate(zip(step.buckets, _lanes(step), strict=True)):
        text = f"{number}: {format_size(bucket.size_bytes)}" if bucket.parameters else "used"
        begin_s, end_s = start_s + bucket.begin_s, start_s + bucket.end_s
        draw_bar(axes, lane, begin_s, end_s, colours[number % 2], text, str(number))
        ready_s = start_s + bucket.ready_s
        style: dict[str, Any] = {"color": palette().grey, "linewidth": 0.7, "zorder": 1}
        axes.plot([ready_s, ready_s], [0.5 - BAR / 8, lane - BAR / 2], **style)


def _draw_computing(axes: Axes, step: PredictedStep) -> None:
    """Draw what the computing thread does; the wait for communication is marked through all lanes."""
    into_s = step.copy_s if step.config.bucket_view else step.copy_s / 2
    parts = [
        ("broadcast", step.broadcast_s, palette().vermillion),
        ("forward", step.forward_s, palette().light_grey),
        ("backward" if not into_s else "backward, copying into buckets", step.backward_s + into_s, palette().orange),
        ("exposed", step.exposed_s, palette().paper),
        ("copying back", step.copy_s - into_s, palette().grey),
        ("optimizer", step.optimizer_s, palette().light_grey),
    ]
    now_s = 0.0
    for name, time_s, colour in parts:
        text = f"{name} {format_time(time_s)}"
        if name == "exposed" and time_s:
            draw_exposed(axes, [(now_s, now_s + time_s)])
        elif time_s:
            fits = draw_bar(axes, 0, now_s, now_s + time_s, colour, text, name.partition(",")[0])
            if name == "optimizer" and not fits:
                axes.text(step.step_s, -0.5, text, ha="right", va="bottom", fontsize=points(8.5))
        now_s += time_s


def draw_bar(axes: Axes, lane: int, begin_s: float, end_s: float, colour: str, text: str, short: str) -> bool:
    """Draw a bar in a lane, with a text that has room in it; return whether a text fits."""
    style: dict[str, Any] = {"facecolor": colour, "edgecolor": palette().paper, "linewidth": 0.8, "zorder": 2}
    axes.add_patch(Rectangle((begin_s, lane - BAR / 2), end_s - begin_s, BAR, **style))
    return draw_label(axes, lane, begin_s, end_s, text, short, ink_on(colour))


def draw_label(axes: Axes, lane: int, begin_s: float, end_s: float, text: str, short: str, colour: str) -> bool:
    """Write the longest of the two that fits, and return whether one does."""
    room = LANES_WIDTH * 72 * (end_s - begin_s) / axes.get_xlim()[1]
    for label in (text, short):
        if len(label) * _POINTS_PER_CHARACTER < room - 2:
            place = (begin_s + end_s) / 2, lane
            axes.text(*place, label, ha="center", va="center", fontsize=points(8.5), color=colour, zorder=3)
            return True
    return False


def draw_exposed(axes: Axes, waits: Sequence[tuple[float, float]]) -> None:
    """Shade the waits for communication through all lanes, and name them; if no name fits, the longest, from below."""
    colour = palette().vermillion
    for begin_s, end_s in waits:
        axes.axvspan(begin_s, end_s, color=colour, alpha=0.13, linewidth=0, zorder=0)
    texts = [f"exposed {format_time(end_s - begin_s)}" for begin_s, end_s in waits]
    fits = [draw_label(axes, 0, *wait, text, "exposed", colour) for wait, text in zip(waits, texts, strict=True)]
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


def _num_lanes(step: PredictedStep) -> int:
    return min(step.config.backend.runtime.num_workers, max(len(step.buckets), 1))


def _lane_names(step: PredictedStep) -> list[str]:
    count = _num_lanes(step)
    return ["all_reduce"] if count == 1 else [f"worker {number}" for number in range(count)]


def _lanes(step: PredictedStep) -> list[int]:
    """Return the lane of each bucket, from 1: that of the worker that was free first, as the queue has it."""
    free_s = [-np.inf] * _num_lanes(step)
    lanes = []
    for bucket in step.buckets:
        worker = int(np.argmin(free_s))
        free_s[worker] = bucket.end_s
        lanes.append(1 + worker)
    return lanes


def _draw_sweep(axes: Axes, prediction: Prediction) -> None:
    """Draw the step's time against the cap; torch's own caps and one process alone are lines across."""
    steps = [step for step in prediction.sweep if step is not prediction.default]
    caps = [step.config.caps.rest_bytes for step in steps]
    axes.set_title("Time of a step against bucket_cap_mb", loc="left", fontsize=points(11), fontweight="bold")
    set_axis(axes.xaxis, "bucket_cap_mb; number: buckets", format_size, log_base=2)
    set_axis(axes.yaxis, "", time_tick)
    draw_curves(axes, [Curve("step", caps, [step.step_s for step in steps])])
    for name, time_s, colour, stroke in (
        ("torch's default: 1, then 25", prediction.default.step_s, palette().dark_grey, "--"),
        ("single process", prediction.step.single_s, palette().orange, ":"),
    ):
        axes.axhline(time_s, color=colour, linestyle=stroke, linewidth=1.6, label=name)
    if prediction.step in steps:
        best: dict[str, Any] = {"color": palette().vermillion, "markersize": 9, "label": "recommended", "zorder": 5}
        axes.plot([prediction.step.config.caps.rest_bytes], [prediction.step.step_s], "D", **best)
    for cap, step in zip(caps, steps, strict=True):
        annotate(axes, str(len(step.buckets)), (cap, step.step_s), -15)
    axes.margins(y=0.15)
    axes.legend(fontsize=points(8.5), framealpha=1, edgecolor=palette().paper)


_TRACED_REST = 1.6  # inches


def draw_traced_step(prediction: TracePrediction) -> Figure:
    """Draw computing in the first lane, below it the calls of each group; waits are shaded through all lanes.

    Raises ValueError for a step that never ends.
    """
    timeline = prediction.timeline
    timeline.require_end()
    used = sorted({call.group for call in timeline.step.calls})
    facts = [
        f"step: {step_time(prediction)} (exposed {format_time(prediction.mean.exposed_s)})",
        *notes_on_step(prediction),
        f"drawn: step {prediction.shown + 1} of {len(prediction.timelines)}",
        f"{plural(len(timeline.calls), 'call')} of {format_size(timeline.step.size_bytes)} in all",
        *named_network(prediction.network)[:2],
    ]
    lines = _wrapped(facts)
    height = _TRACED_REST + _LINE * (len(lines) - 1) + _LANE * (1 + len(used))
    figure = new_figure(_WIDTH, height, layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15))
    device = "GPUs" if prediction.computing.on_gpu else "CPUs"
    title = f"A step of a recorded program on {plural(prediction.trace.num_ranks, 'rank')}, {device}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=points(15), fontweight="bold")
    axes = figure.subplots()
    axes.set_title("\n".join(lines), loc="left", fontsize=points(10), color=palette().dark_grey)
    names = [prediction.trace.groups[group].name for group in used]
    set_lanes(axes, ["compute", *names], timeline.step_s)
    _draw_traced_computing(axes, prediction)
    _draw_calls(figure, axes, prediction, {group: lane for lane, group in enumerate(used, 1)})
    return figure


def _draw_traced_computing(axes: Axes, prediction: TracePrediction) -> None:
    timeline = prediction.timeline
    for begin_s, end_s in _joined([(begin_s, end_s) for _, begin_s, end_s in timeline.computations]):
        draw_bar(axes, 0, begin_s, end_s, palette().light_grey, f"compute {format_time(end_s - begin_s)}", "")
    draw_exposed(axes, _joined([(begin_s, end_s) for _, begin_s, end_s in timeline.waits]))


def _joined(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the intervals with those that touch one another made one."""
    joined: list[tuple[float, float]] = []
    for begin_s, end_s in intervals:
        if joined and joined[-1][1] == begin_s:
            joined[-1] = joined[-1][0], end_s
        else:
            joined.append((begin_s, end_s))
    return joined


def _draw_calls(figure: Figure, axes: Axes, prediction: TracePrediction, lanes: dict[int, int]) -> None:
    """Draw calls of a kind in one colour; they overlap where several of a group are under way at once."""
    timeline = prediction.timeline
    kinds = list(dict.fromkeys(call.collective for call in timeline.step.calls))
    colours = (palette().blue, palette().orange, palette().sky, palette().vermillion, palette().grey)
    for call, span in zip(timeline.step.calls, timeline.calls, strict=True):
        colour = colours[kinds.index(call.collective) % len(colours)]
        text = f"{call.collective} {format_size(call.size_bytes)}"
        draw_bar(axes, lanes[call.group], span.begin_s, span.end_s, colour, text, format_size(call.size_bytes))
    if kinds:
        patches = [Patch(color=colours[number % len(colours)]) for number in range(len(kinds))]
        figure.legend(patches, kinds, loc="outside lower right", ncols=len(kinds), frameon=False, fontsize=points(9))


_SCALING_HEIGHT = 4.8  # inches
_MAX_LABELS = 7  # on a curve, which may have a third of the page


def draw_trace_scaling(scaling: TraceScaling) -> Figure:
    """Draw the time of a step on the left, and its efficiency on the right.

    Raises ValueError for a step that never ends.
    """
    for prediction in scaling.predictions:
        prediction.timeline.require_end()
    first, last = scaling.predictions[0], scaling.predictions[-1]
    figure = new_figure(
        _WIDTH, _SCALING_HEIGHT, layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15, rect=(0, 0, 1, 0.97))
    )
    device = "GPUs" if first.computing.on_gpu else "CPUs"
    name = f"A step of a recorded program on {first.trace.num_ranks} to {last.trace.num_ranks} ranks, {device}"
    figure.suptitle(name, x=0.01, ha="left", fontsize=points(15), fontweight="bold")
    told = [*filter(None, scaling_facts(scaling)), *named_network(first.network)[:2]]
    facts = textwrap.shorten(" · ".join(told), _FACTS_LENGTH, placeholder=" …")
    figure.text(0.01, 0.888, facts, fontsize=points(10), color=palette().dark_grey)
    times, shares = figure.subplots(1, 2)
    draw_step_times(times, scaling.steps)
    draw_efficiency(shares, scaling.steps, f"of the step on {plural(first.trace.num_ranks, 'rank')}")
    return figure


def draw_step_times(axes: Axes, steps: Sequence[PredictedStep] | Sequence[ScaledStep]) -> None:
    """Draw the time of a step against the number of ranks, and shade what of it is exposed communication."""
    _begin(axes, "Time of a step against number of ranks")
    set_axis(axes.yaxis, "", time_tick)
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


def draw_efficiency(axes: Axes, steps: Sequence[PredictedStep] | Sequence[ScaledStep], reference: str) -> None:
    """Draw efficiency against the number of ranks. reference: to what it is compared."""
    _begin(axes, "Efficiency against number of ranks")
    set_axis(axes.yaxis, reference, lambda share: f"{100 * share:.0f} %")
    ranks, shares = zip(*((step.num_ranks, step.efficiency) for step in steps), strict=True)
    draw_curves(axes, [Curve("efficiency", ranks, shares)])
    for count, share in _labelled(ranks, shares):
        annotate(axes, f"{100 * share:.3g} %", (count, share), 8)
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
    """Write a text `above` points above a data point."""
    axes.annotate(text, at, (0, above), textcoords="offset points", ha="center", fontsize=points(8))
