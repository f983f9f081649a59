"""`plot` and `save_plot`: the picture of a result as a matplotlib Figure or as a file."""

import os
from functools import singledispatch

from matplotlib.figure import Figure

from ringsim.analysis import RunView, Sweep
from ringsim.calibration import ComparedRun, Comparison
from ringsim.report.plots.comparison_figure import draw_times
from ringsim.report.plots.run_pages import draw_compared_run, draw_run_page, draw_schedule, draw_timeline
from ringsim.report.plots.step_figures import draw_trace_scaling, draw_traced_step
from ringsim.report.plots.style import drawing, inline_svg, save_figure
from ringsim.report.plots.sweep_figure import draw_sweep
from ringsim.schedule import Schedule
from ringsim.simulation import Timeline
from ringsim.training_step import TracePrediction, TraceScaling


def plot(result: object, *, style: str | None = None) -> Figure:
    """Draw a result: a RunView, a Schedule, a Timeline, a Sweep, a Comparison, a predicted step, a recorded run.

    Returns a Figure without a window: `savefig` writes it, and a notebook shows it.
    style: light, dark, or the name or file of a matplotlib style; None: matplotlib's current settings.
    Raises TypeError for a result without a picture, ValueError for an unknown style.

        >>> from ringsim import Network, RunView, plot, ring_all_reduce
        >>> view = RunView(ring_all_reduce(4), Network.uniform(latency_s=1e-5, bandwidth_bytes_per_s=1e9), 2**20)
        >>> plot(view, style="dark").savefig("ring.svg")
    """
    with drawing(style):
        return draw(result)


def save_plot(result: object, path: str | os.PathLike[str], style: str | None = None) -> None:
    """Draw a result, see `plot`, and write it, see `save_figure`."""
    save_figure(lambda: draw(result), path, style)


def page_svg(result: object, *, transparent: bool = True) -> str:
    """Draw a result as an SVG element, see `inline_svg`."""
    with drawing("page"):
        return inline_svg(draw(result), transparent=transparent)


@singledispatch
def draw(result: object) -> Figure:
    """Draw a result under matplotlib's current settings."""
    raise TypeError(f"{type(result).__name__}: cannot be drawn; draw a RunView, or a result of run_sweep")


draw.register(RunView, draw_run_page)
draw.register(Schedule, draw_schedule)
draw.register(Timeline, draw_timeline)
draw.register(Sweep, draw_sweep)
draw.register(TracePrediction, draw_traced_step)
draw.register(TraceScaling, draw_trace_scaling)
draw.register(ComparedRun, draw_compared_run)
draw.register(Comparison, draw_times)
