"""The page of a sweep: the winner map of each network, and time against size."""

import math
import re
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from ringsim.analysis import Sweep, Winner
from ringsim.report.colours import Style
from ringsim.report.network_table import network_facts
from ringsim.report.plots import charts
from ringsim.report.plots.style import WIDTH, Panel, head, page_of, palette, points
from ringsim.report.sweep_table import format_gain, library_notes, runner_up
from ringsim.units import format_size, format_time

_LEFT, _LEGEND, _LINES_HEIGHT, _NOTE_HEIGHT = 0.95, 2.35, 3.9, 0.17  # inches
_LEGEND_LENGTH = 25  # characters of a line
_MAX_PANELS = 3
_FEW_CURVES = 5
_PANEL_TEXT = 40  # characters of a line in a panel
_MAX_NOTES, _NOTE_LENGTH = 8, 190  # lines and characters
Styles = dict[str, Style]  # by algorithm


def draw_sweep(sweep: Sweep) -> Figure:
    """Draw the winner map of each network, time against size, and notes."""
    notes, styles = _notes(sweep), palette().styles_of(sweep.algorithms)
    map_height = 1.0 + min(max(0.4 * len(sweep.ranks), 0.6), 6.0)
    drawn = (map_height, _draw_map, 0.5, 0.45), (_LINES_HEIGHT, _draw_lines, 0.45, 0.55)
    panels = [
        Panel(height, partial(draw, sweep=sweep, network=network, styles=styles), above, below, _LEFT, _LEGEND + 0.15)
        for network in sweep.networks
        for height, draw, above, below in drawn
    ]

    def draw_notes(figure: SubFigure, margins: dict[str, float]) -> None:
        small: dict[str, Any] = {"fontsize": points(7.5), "color": palette().dark_grey, "linespacing": 1.35}
        figure.text(margins["left"], 1, "\n".join(notes), va="top", **small)

    title = head(f"{sweep.collective.value}: the fastest of {len(sweep.algorithms)} algorithms", left=_LEFT)
    return page_of([title, *panels, Panel(0.15 + _NOTE_HEIGHT * len(notes), draw_notes, left=_LEFT)])


def panel_ranks(ranks: Sequence[int]) -> list[int]:
    """Return the numbers of ranks with panels: the least, the middle and the largest."""
    chosen = np.linspace(0, len(ranks) - 1, min(len(ranks), _MAX_PANELS)).round().astype(int)
    return [ranks[index] for index in chosen]


def _draw_map(figure: SubFigure, margins: dict[str, float], sweep: Sweep, network: str, styles: Styles) -> None:
    axes = figure.subplots(gridspec_kw=margins)
    charts.describe_axes(axes, f"Fastest on network {network}")
    facts = ", ".join(network_facts(sweep.networks[network]))
    axes.set_title(facts, loc="right", fontsize=points(9), color=palette().dark_grey)
    areas = draw_winner_map(axes, sweep, network, styles)
    gain = f"how many times as fast as {runner_up(sweep, network)}"
    axes.set_xlabel(f"size of the whole data; number: {gain}", fontsize=points(9))
    _draw_legend(figure, areas, margins["top"])


def _draw_lines(figure: SubFigure, margins: dict[str, float], sweep: Sweep, network: str, styles: Styles) -> None:
    chosen, told_apart = panel_ranks(sweep.ranks), _told_apart(sweep, network)
    panels = figure.subplots(1, len(chosen), squeeze=False, sharey=True, gridspec_kw=margins | {"wspace": 0.06})[0]
    for axes, num_ranks in zip(panels, chosen, strict=True):
        charts.set_axis(axes.yaxis, "", _time_tick, log_base=10)
        if not draw_sweep_curves(axes, sweep, network, num_ranks, styles):
            why = textwrap.fill(_why_no_curve(sweep, network, num_ranks), _PANEL_TEXT)
            axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", fontsize=points(9))
        set_size_axis(axes, sweep.sizes_bytes, 18 // (2 * len(chosen)))
        axes.set_xlabel("size of the whole data", fontsize=points(9))
        charts.describe_axes(axes, f"Time on {num_ranks} ranks")
    panels[0].set_ylabel("time", fontsize=points(9))
    drawn = [name for name in styles if any(_curve(sweep, network, num_ranks, name) for num_ranks in chosen)]
    lines = [Line2D([], [], linewidth=2, label=name, **styles[name].line) for name in drawn if name in told_apart]
    if others := len(drawn) - len(lines):
        lines.append(Line2D([], [], color=palette().light_grey, linewidth=1, label=f"{others} others"))
    _draw_legend(figure, lines, margins["top"])


def _draw_legend(figure: SubFigure, handles: Sequence[Artist], top: float) -> None:
    for handle in handles:
        parts = re.split(r"(?<=:)", str(handle.get_label()))
        handle.set_label("\n".join(line for part in parts for line in textwrap.wrap(part, _LEGEND_LENGTH)))
    place = (1 - _LEGEND / WIDTH, top)
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=place, fontsize=points(8.5), frameon=False, borderaxespad=0,
        handlelength=2.8, labelspacing=0.5,
    )  # fmt: skip


def _time_tick(time_s: float) -> str:
    return format_time(time_s) if time_s < 1000 else f"{time_s:g} s"


def draw_sweep_curves(axes: Axes, sweep: Sweep, network: str, num_ranks: int, styles: Styles) -> bool:
    """Draw time against size by algorithm; return whether there is any curve."""
    curves = {name: _curve(sweep, network, num_ranks, name) for name in reversed(styles)}
    told_apart = _told_apart(sweep, network)
    for name, curve in curves.items():
        if curve:
            sizes, times = zip(*curve, strict=True)
            grey: dict[str, Any] = {"color": palette().light_grey, "linewidth": 1, "zorder": 1.5}
            style = {"linewidth": 2, **styles[name].line} if name in told_apart else grey
            axes.plot(sizes, times, marker="" if len(curve) > 1 else "o", label=name, **style)  # one point has no line
    return any(curves.values())


def _told_apart(sweep: Sweep, network: str) -> set[str]:
    if len(sweep.algorithms) <= _FEW_CURVES:
        return set(sweep.algorithms)
    return {sweep.baseline(network), *winning_names(sweep, network).ravel().tolist()}


def _why_no_curve(sweep: Sweep, network: str, num_ranks: int) -> str:
    cells = [cell for cell in sweep.cells if (cell.network, cell.num_ranks) == (network, num_ranks)]
    reasons = dict.fromkeys(cell.skipped for cell in cells if cell.skipped)
    return f"skipped: {'; '.join(reasons)}" if reasons else "no time passes, so there is nothing to draw"


def _curve(sweep: Sweep, network: str, num_ranks: int, name: str) -> list[tuple[int, float]]:
    own = [cell for cell in sweep.cells if (cell.network, cell.num_ranks, cell.algorithm) == (network, num_ranks, name)]
    return [(cell.size_bytes, cell.time_s) for cell in own if cell.time_s]


def _notes(sweep: Sweep) -> list[str]:
    notes = sweep.skipped()
    if len(sweep.ranks) > _MAX_PANELS:
        least, middle, largest = panel_ranks(sweep.ranks)
        drawn = f"time against size is drawn for {least}, {middle} and {largest} ranks"
        notes.insert(0, f"{drawn}; for the others the map shows the fastest")
    if len(notes) > _MAX_NOTES:
        notes[_MAX_NOTES - 1 :] = [f"and {len(notes) - _MAX_NOTES + 1} more skipped"]
    made = ", ".join(str(sweep.provenance[name]) for name in ("ringsim", "date", "command") if name in sweep.provenance)
    lines = [*notes, *library_notes(sweep), f"simulated with ringsim {made}"]
    return [part for line in lines for part in textwrap.wrap(line, _NOTE_LENGTH, break_on_hyphens=False)]


Names = npt.NDArray[np.object_]

NOBODY, TIED = "", "tied"
TIE = 1.02  # a smaller speed-up over the ring would not show in a measurement
_GAIN_SIZE = 8.0  # points
_ROW = (-0.5, 0.5)


def draw_winner_map(axes: Axes, sweep: Sweep, network: str, styles: Styles) -> list[Patch]:
    """Draw the fastest algorithms with their gains; return the legend."""
    ranks = sweep.ranks
    set_size_axis(axes, sweep.sizes_bytes)
    axes.set_ylim(-0.5, len(ranks) - 0.5)
    axes.set_yticks(range(len(ranks)), [f"{num_ranks} ranks" for num_ranks in ranks], fontsize=points(8))
    axes.tick_params(axis="y", length=0)
    names, edges = winning_names(sweep, network), size_edges(sweep.sizes_bytes)
    areas = {
        name: _area(name, styles, sweep.baseline(network)) for name in [*styles, TIED, NOBODY] if (names == name).any()
    }
    for name, area in areas.items():
        row, column = np.nonzero(names == name)
        charts.draw_boxes(axes, charts.boxes(row, edges[column], edges[column + 1], _ROW), linewidth=0, **area)
    lines: dict[str, Any] = {"colors": palette().paper, "linewidths": 0.8, "zorder": 1.5}
    axes.vlines(edges[1:-1], *axes.get_ylim(), **lines)
    axes.hlines(np.arange(len(ranks) - 1) + 0.5, *axes.get_xlim(), **lines)
    _draw_gains(axes, sweep, network, styles)
    return [Patch(linewidth=0, **area) for area in areas.values()]


def _area(name: str, styles: Styles, baseline: str) -> dict[str, Any]:
    if name == NOBODY:
        return {"label": "all skipped", "facecolor": palette().paper, "edgecolor": palette().grey, "hatch": "xx"}
    if name == TIED:
        label = f"{baseline}, within {TIE - 1:.0%} of the fastest"
        return {"label": label, "facecolor": palette().light_grey, "edgecolor": palette().grey}
    return {"label": name, **styles[name].area}


def winning_names(sweep: Sweep, network: str) -> Names:
    """Return the fastest algorithms, (num_ranks, num_sizes); TIED with the baseline, NOBODY if all are skipped."""
    names = np.full((len(sweep.ranks), len(sweep.sizes_bytes)), NOBODY, dtype=object)
    for place, winner in _winners(sweep, network).items():
        is_other = winner.cell.algorithm != sweep.baseline(network)
        tied = is_other and (winner.over_ring or math.inf) < TIE
        names[place] = TIED if tied else winner.cell.algorithm
    return names


def _winners(sweep: Sweep, network: str) -> dict[tuple[int, int], Winner]:
    winners = ((place, winner) for place, winner in sweep.winners().items() if place[0] == network)
    return {(sweep.ranks.index(ranks), sweep.sizes_bytes.index(size)): winner for (_, ranks, size), winner in winners}


def size_edges(sizes_bytes: Sequence[int]) -> charts.Floats:
    """Return (num_sizes + 1,) edges, half-way between sizes on a logarithmic axis."""
    log = np.log2(np.asarray(sizes_bytes, dtype=np.float64))
    if len(log) == 1:
        return np.asarray(2 ** np.array([log[0] - 1, log[0] + 1]))
    middle = (log[1:] + log[:-1]) / 2
    return np.asarray(2 ** np.concatenate([[2 * log[0] - middle[0]], middle, [2 * log[-1] - middle[-1]]]))


def set_size_axis(axes: Axes, sizes_bytes: Sequence[int], max_ticks: int = 16) -> None:
    """Set a logarithmic axis over the cells."""
    edges = size_edges(sizes_bytes)
    axes.set_xscale("log", base=2)
    axes.set_xlim(edges[0], edges[-1])
    ticks = sizes_bytes[:: -(-len(sizes_bytes) // max_ticks)]
    axes.set_xticks(ticks, [format_size(size) for size in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=points(8))


def _draw_gains(axes: Axes, sweep: Sweep, network: str, styles: Styles) -> None:
    size, (across, per_rank) = points(_GAIN_SIZE), charts.points_per_unit(axes)
    log = np.log2(size_edges(sweep.sizes_bytes))
    rooms = np.diff(log) / (log[-1] - log[0]) * across * np.ptp(axes.get_xlim())
    if per_rank <= 1.2 * size:
        return
    labels: list[charts.Label] = []
    names = winning_names(sweep, network)
    for (row, column), winner in _winners(sweep, network).items():
        text = format_gain(sweep, winner)
        if text and len(text) * 0.65 * size < rooms[column]:
            ink = palette().ink if names[row, column] == TIED else styles[winner.cell.algorithm].ink
            labels.append((float(sweep.sizes_bytes[column]), float(row), text, ink, False))
    charts.draw_labels(axes, labels, size)
