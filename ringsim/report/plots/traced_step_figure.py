"""The page with a simulated step of a recorded program: what is computed, and the calls of each group."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from ringsim.report.network_table import named_network
from ringsim.report.plots.style import new_figure, palette, points
from ringsim.report.plots.training_step_figure import draw_bar, draw_label, set_lanes
from ringsim.training_step import TracePrediction
from ringsim.units import format_size, format_time, plural

_WIDTH, _LANE, _REST = 14.0, 0.62, 1.6  # inches


def draw_traced_step(prediction: TracePrediction) -> Figure:
    """Draw computing in the first lane, below it the calls of each group; waits are shaded through all lanes.

    Raises ValueError for a step that never ends.
    """
    timeline = prediction.timeline
    if not timeline.step_s < float("inf"):
        raise ValueError("the step never ends, as something fails: there is nothing to draw")
    used = sorted({call.group for call in timeline.step.calls})
    figure = new_figure(_WIDTH, _REST + _LANE * (1 + len(used)), layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15))
    device = "GPUs" if prediction.computing.on_gpu else "CPUs"
    title = f"A step of a recorded program on {plural(prediction.trace.num_ranks, 'rank')}, {device}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=points(15), fontweight="bold")
    axes = figure.subplots()
    facts = [
        f"step {format_time(timeline.step_s)} (exposed {format_time(timeline.exposed_s)})",
        f"{plural(len(timeline.calls), 'call')} of {format_size(timeline.step.size_bytes)}",
        *named_network(prediction.network)[:2],
    ]
    axes.set_title(" · ".join(facts), loc="left", fontsize=points(10), color=palette().dark_grey)
    names = [prediction.trace.groups[group].name for group in used]
    set_lanes(axes, ["compute", *names], timeline.step_s)
    _draw_computing(axes, prediction)
    _draw_calls(figure, axes, prediction, {group: lane for lane, group in enumerate(used, 1)})
    return figure


def _draw_computing(axes: Axes, prediction: TracePrediction) -> None:
    timeline = prediction.timeline
    for begin_s, end_s in _joined([(begin_s, end_s) for _, begin_s, end_s in timeline.computations]):
        draw_bar(axes, 0, begin_s, end_s, palette().light_grey, f"compute {format_time(end_s - begin_s)}", "")
    for _, begin_s, end_s in timeline.waits:
        axes.axvspan(begin_s, end_s, color=palette().vermillion, alpha=0.13, linewidth=0, zorder=0)
        draw_label(axes, 0, begin_s, end_s, f"exposed {format_time(end_s - begin_s)}", "", palette().vermillion)


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
        patches = [Patch(color=colour) for colour, _ in zip(colours, kinds, strict=False)]
        figure.legend(patches, kinds, loc="outside lower right", ncols=len(kinds), frameon=False, fontsize=points(9))
