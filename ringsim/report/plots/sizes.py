"""Time against the size of the data, and where its regime changes."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from ringsim.analysis import RunView
from ringsim.report.plots.style import palette, points
from ringsim.units import format_size, format_time

_NARROW = 0.15  # of the axis: a regime that is narrower has no room for its name


def draw_sizes(axes: Axes, view: RunView) -> None:
    """Draw simulated time against size, the closed form over it, the two regimes and the size of this run."""
    axes.set_title("Time against size", loc="left", fontsize=points(11), fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    sizes = view.by_size.sizes_bytes
    if not len(sizes):
        _say(axes, "the run never finishes at any size")
        return
    axes.set_xscale("log", base=2)
    axes.set_xlim(sizes[0], sizes[-1])
    _set_size_ticks(axes, view)
    if not view.by_size.times_s.min() > 0:
        _say(axes, "no time passes")
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda time_s, _: format_time(time_s))
    axes.yaxis.set_minor_locator(NullLocator())
    shortest, longest = view.by_size.times_s.min(), view.by_size.times_s.max() * 1.5
    axes.set_ylim(shortest / (longest / shortest) ** 0.25, longest)  # a fifth of the height is for the regimes' names
    regimes = _draw_regimes(axes, view)
    handles = [*_draw_times(axes, view), *regimes]
    if view.stall:
        text = f"with {format_size(float(2 * sizes[-1]))} it never finishes"
        axes.annotate(text, (sizes[-1], view.by_size.times_s[-1]), (-6, 6), textcoords="offset points", ha="right",
                      fontsize=points(9), color=palette().vermillion,
                      bbox={"facecolor": palette().paper, "edgecolor": "none", "pad": 1.5})  # fmt: skip
    axes.legend(handles=handles, loc="upper left", fontsize=points(8), framealpha=1, edgecolor=palette().paper)


def _say(axes: Axes, why: str) -> None:
    axes.set_yticks([])
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", fontsize=points(10))


def _set_size_ticks(axes: Axes, view: RunView) -> None:
    ticks = view.by_size.sizes_bytes[::4]
    axes.set_xticks(ticks, [format_size(size) for size in ticks.tolist()])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=points(8))
    axes.set_xlabel("size of the whole data", fontsize=points(9))
    axes.set_ylabel("time", fontsize=points(9))


def _draw_times(axes: Axes, view: RunView) -> list[Line2D]:
    sizes, run_s, colours = view.by_size.sizes_bytes, view.timeline.time_s, palette()
    dots: dict[str, Any] = {"marker": "o", "markersize": 5, "markerfacecolor": colours.blue,
                            "markeredgecolor": colours.blue}  # fmt: skip
    lines = axes.plot(sizes, view.by_size.times_s, color=colours.sky, linewidth=4, **dots, label="simulated")
    if view.by_size.closed_form_s is not None:
        lines += axes.plot(
            sizes, view.by_size.closed_form_s, "--", color=colours.vermillion, linewidth=1.6, label="closed form"
        )
    if sizes[0] <= view.size_bytes <= sizes[-1]:
        name = f"this run: {format_size(view.size_bytes)} in {format_time(run_s)}"
        diamond: dict[str, Any] = {"markersize": 9, "markeredgecolor": colours.ink, "markeredgewidth": 1.8, "zorder": 5}
        lines += axes.plot([view.size_bytes], [run_s], "D", color=colours.paper, **diamond, clip_on=False, label=name)
    return lines


def _draw_regimes(axes: Axes, view: RunView) -> list[Line2D]:
    """Draw the time of 0 bytes and the crossover; name the regimes, latency-bound below it and bandwidth-bound above.

    Without a crossover there is one regime alone.
    """
    (first, last), colours, lines = axes.get_xlim(), palette(), []
    floor_s, crossover = view.by_size.floor_s, view.by_size.crossover_bytes
    if floor_s > 0:
        text = f"0 bytes take {format_time(floor_s)}"
        lines.append(axes.axhline(floor_s, color=colours.dark_grey, linestyle=":", linewidth=1.2, label=text))
    border = last if floor_s > 0 else first
    if crossover is not None:
        border = float(np.clip(crossover, first, last))
        axes.axvspan(first, border, color=colours.pale_grey, linewidth=0)
        text = f"crossover: {format_size(crossover)} take twice as long"
        lines.append(axes.axvline(crossover, color=colours.dark_grey, linewidth=1, label=text))
    for name, low, high in (("latency-bound", first, border), ("bandwidth-bound", border, last)):
        if np.log(high / low) > _NARROW * np.log(last / first):
            axes.text(float(np.sqrt(low * high)), 0.03, name, transform=axes.get_xaxis_transform(),
                      fontsize=points(9), color=colours.dark_grey, ha="center", va="bottom")  # fmt: skip
    return lines
