"""The page with the pictures of a sweep: the winner map of each network, and time against size below it."""

import os
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from ringsim.analysis import Sweep
from ringsim.report.network_table import network_facts
from ringsim.report.plots.algorithm_styles import Style, styles_of
from ringsim.report.plots.palette import palette
from ringsim.report.plots.style import new_figure, points, save_figure
from ringsim.report.plots.winner_map import draw_winner_map, set_size_axis
from ringsim.report.sweep_table import runner_up
from ringsim.units import format_time

# Inches, here and below.
_WIDTH, _LEFT, _LEGEND = 14.0, 0.95, 2.35
_TITLE_HEIGHT, _LINES_HEIGHT, _NOTE_HEIGHT = 0.5, 3.9, 0.17
_LEGEND_LENGTH = 25  # characters of a line
_MAX_PANELS = 3
_MAX_RANKS_NAMED = 8
_PANEL_TEXT = 40  # characters of a line in a panel
_MAX_NOTES, _NOTE_LENGTH = 8, 190  # lines and characters


def save_sweep(sweep: Sweep, path: str | os.PathLike[str], style: str | None = None) -> None:
    """Draws the page and writes it to `path`, as `save_figure` does and with its errors."""
    save_figure(lambda: draw_sweep(sweep), path, style)


def draw_sweep(sweep: Sweep) -> Figure:
    """Draws for each network the winner map and, below it, time against size; skipped cells stand at the bottom."""
    notes = _notes(sweep)
    map_height = 1.0 + min(max(0.4 * len(sweep.ranks), 0.6), 6.0)
    heights = [_TITLE_HEIGHT, *[map_height, _LINES_HEIGHT] * len(sweep.networks), 0.15 + _NOTE_HEIGHT * len(notes)]
    figure = new_figure(_WIDTH, sum(heights))
    head, *parts, foot = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    styles = styles_of(sweep.algorithms)
    title = f"{sweep.collective.value}: the fastest of {len(sweep.algorithms)} algorithms"
    head.text(_LEFT / _WIDTH, 0.5, title, fontsize=points(15), fontweight="bold", va="center")
    for index, network in enumerate(sweep.networks):
        top, bottom = parts[2 * index : 2 * index + 2]
        _draw_map(top, sweep, network, styles, map_height)
        _draw_lines(bottom, sweep, network, styles)
    foot.text(
        _LEFT / _WIDTH, 1, "\n".join(notes), fontsize=points(7.5), color=palette().dark_grey, va="top", linespacing=1.35
    )
    return figure


def panel_ranks(ranks: Sequence[int]) -> list[int]:
    """Return the numbers of ranks with a panel of their own: the least, the middle and the largest."""
    chosen = np.linspace(0, len(ranks) - 1, min(len(ranks), _MAX_PANELS)).round().astype(int)
    return [ranks[index] for index in chosen]


def _without_panel(ranks: Sequence[int]) -> list[str]:
    """A line that says which numbers of ranks are in the map alone; none if there are none."""
    rest = [num_ranks for num_ranks in ranks if num_ranks not in panel_ranks(ranks)]
    if not rest:
        return []
    *names, last = [*map(str, rest[:_MAX_RANKS_NAMED]), *(["more"] if len(rest) > _MAX_RANKS_NAMED else [])]
    listed = f"{', '.join(names)} and {last}" if names else last
    return [
        f"time against size is drawn for the least, the middle and the largest number of ranks; for {listed} ranks the "
        "map says who is fastest"
    ]


def _margins(height: float, above: float, below: float) -> dict[str, Any]:
    right = 1 - (_LEGEND + 0.15) / _WIDTH
    return {"left": _LEFT / _WIDTH, "right": right, "top": 1 - above / height, "bottom": below / height}


def _draw_map(figure: SubFigure, sweep: Sweep, network: str, styles: dict[str, Style], height: float) -> None:
    axes = figure.subplots(gridspec_kw=_margins(height, 0.5, 0.45))
    axes.set_title(f"Fastest on network {network}", loc="left", fontsize=points(11), fontweight="bold")
    facts = ", ".join(network_facts(sweep.networks[network]))
    axes.set_title(facts, loc="right", fontsize=points(9), color=palette().dark_grey)
    areas = draw_winner_map(axes, sweep, network, styles)
    axes.set_xlabel(f"size of the whole data; number: how many times as fast as {runner_up(sweep)}", fontsize=points(9))
    _draw_legend(figure, areas, 1 - 0.5 / height)


def _draw_lines(figure: SubFigure, sweep: Sweep, network: str, styles: dict[str, Style]) -> None:
    chosen = panel_ranks(sweep.ranks)
    grid = _margins(_LINES_HEIGHT, 0.45, 0.55) | {"wspace": 0.06}
    panels = figure.subplots(1, len(chosen), squeeze=False, sharey=True, gridspec_kw=grid)[0]
    for axes, num_ranks in zip(panels, chosen, strict=True):
        _draw_panel(axes, sweep, network, num_ranks, styles)
        set_size_axis(axes, sweep.sizes_bytes, 18 // (2 * len(chosen)))
        axes.set_xlabel("size of the whole data", fontsize=points(9))
        axes.set_title(f"Time on {num_ranks} ranks", loc="left", fontsize=points(11), fontweight="bold")
    panels[0].set_ylabel("time", fontsize=points(9))
    lines = [
        Line2D([], [], color=style.colour, linestyle=style.stroke, linewidth=2, label=name)
        for name, style in styles.items()
        if any(_curve(sweep, network, num_ranks, name) for num_ranks in chosen)
    ]
    _draw_legend(figure, lines, 1 - 0.45 / _LINES_HEIGHT)


def _draw_legend(figure: SubFigure, handles: Sequence[Artist], top: float) -> None:
    """In the margin on the right, where long names, such as a user's FILE.py:FUNCTION, take several lines."""
    for handle in handles:
        parts = str(handle.get_label()).replace(":", ": ").split()
        handle.set_label("\n".join(line for part in parts for line in textwrap.wrap(part, _LEGEND_LENGTH)))
    place = (1 - _LEGEND / _WIDTH, top)
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=place, fontsize=points(8.5), frameon=False, borderaxespad=0,
        handlelength=2.8, labelspacing=0.5,
    )  # fmt: skip


def _draw_panel(axes: Axes, sweep: Sweep, network: str, num_ranks: int, styles: dict[str, Style]) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_yscale("log", nonpositive="mask")
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda time_s, _: format_time(time_s) if time_s < 1000 else f"{time_s:g} s")
    )
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(color=palette().light_grey, linewidth=0.5)
    axes.set_axisbelow(True)
    if not draw_sweep_curves(axes, sweep, network, num_ranks, styles):
        why = textwrap.fill(_why_no_curve(sweep, network, num_ranks), _PANEL_TEXT)
        axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", fontsize=points(9))


def draw_sweep_curves(axes: Axes, sweep: Sweep, network: str, num_ranks: int, styles: dict[str, Style]) -> bool:
    """Draw time against size for each algorithm, the first on top; return whether there is any curve."""
    curves = {name: _curve(sweep, network, num_ranks, name) for name in reversed(styles)}
    for name, curve in curves.items():
        if curve:
            sizes, times = zip(*curve, strict=True)
            axes.plot(sizes, times, color=styles[name].colour, linestyle=styles[name].stroke, linewidth=2, label=name)
    return any(curves.values())


def _why_no_curve(sweep: Sweep, network: str, num_ranks: int) -> str:
    """Why nothing can be drawn in the panel of so many ranks."""
    cells = [cell for cell in sweep.cells if (cell.network, cell.num_ranks) == (network, num_ranks)]
    reasons = dict.fromkeys(cell.skipped for cell in cells if cell.skipped)
    return f"skipped: {'; '.join(reasons)}" if reasons else "no time passes, so there is nothing to draw"


def _curve(sweep: Sweep, network: str, num_ranks: int, name: str) -> list[tuple[int, float]]:
    """Sizes and times of the cells that were simulated, and in which time passes."""
    return [
        (cell.size_bytes, cell.time_s)
        for cell in sweep.cells
        if (cell.network, cell.num_ranks, cell.algorithm) == (network, num_ranks, name) and cell.time_s
    ]


def _notes(sweep: Sweep) -> list[str]:
    """Which ranks have no panel, what was skipped, as it may have won, and where the figures come from."""
    notes = [*_without_panel(sweep.ranks), *sweep.skipped()]
    if len(notes) > _MAX_NOTES:
        notes[_MAX_NOTES - 1 :] = [f"and {len(notes) - _MAX_NOTES + 1} more skipped"]
    made = ", ".join(str(sweep.provenance[name]) for name in ("ringsim", "date", "command") if name in sweep.provenance)
    lines = [*notes, f"simulated with ringsim {made}"]
    return [part for line in lines for part in textwrap.wrap(line, _NOTE_LENGTH, break_on_hyphens=False)]
