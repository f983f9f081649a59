"""Pictures of a `Comparison`: time against size, predicted and measured, and error against size."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from ringsim.calibration import ComparedCase, Comparison
from ringsim.files import atomic_file
from ringsim.network import Floats
from ringsim.report.plots.palette import BLACK, BLUE, DARK_GREY, GREY, LIGHT_GREY, ORANGE, SKY, VERMILLION, WHITE
from ringsim.units import format_size, format_time

_COLOURS = (BLUE, VERMILLION, ORANGE, SKY, BLACK, GREY)
_DASHES = ("-", "--", ":", "-.")  # so that more groups than colours can be told apart
_DPI = 144
_SIZE = (10.0, 5.6)  # inches
_MAX_GROUPS = len(_COLOURS) * len(_DASHES)


def save_times(comparison: Comparison, path: Path) -> None:
    """Draws time against size into a file, see `draw_times`."""
    _save(draw_times(comparison), path)


def draw_times(comparison: Comparison) -> Figure:
    """Draws time against size: lines are predictions, points the measured medians with their spread."""
    figure, axes = _page(f"Time on {comparison.network}: predicted and measured")
    for group in _groups(comparison):
        axes.plot(group.sizes, group.times_s("predicted"), group.dash, color=group.colour, linewidth=1.6)
        measured, low, high = (group.times_s(name) for name in ("measured", "low", "high"))
        bars = np.stack([np.maximum(measured - low, 0), np.maximum(high - measured, 0)])
        axes.errorbar(group.sizes, measured, yerr=bars, fmt="none", ecolor=group.colour, elinewidth=1)
        _points(axes, group, measured)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_time(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("time")
    _legend(axes, comparison, [Line2D([], [], color=DARK_GREY, label="predicted")])
    return figure


def save_errors(comparison: Comparison, path: Path) -> None:
    """Draws the error of each case; bars show how far the measured times themselves lie apart."""
    figure, axes = _page(f"Error of the prediction on {comparison.network}")
    for group in _groups(comparison):
        measured, error = group.times_s("measured"), group.times_s("predicted") / group.times_s("measured") - 1
        low, high = group.times_s("low") / measured - 1, group.times_s("high") / measured - 1
        axes.vlines(group.sizes, low, high, color=LIGHT_GREY, linewidth=5, zorder=0)
        axes.plot(group.sizes, error, group.dash, color=group.colour, linewidth=1)
        _points(axes, group, error)
    axes.axhline(0, color=DARK_GREY, linewidth=1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.0%}"))
    axes.set_ylabel("predicted / measured - 1")
    _legend(axes, comparison, [Line2D([], [], color=LIGHT_GREY, linewidth=5, label="spread of the measured")])
    _save(figure, path)


class _Group(NamedTuple):
    """Cases that differ in size alone, and how they are drawn."""

    label: str
    colour: str
    dash: str
    cases: Sequence[ComparedCase]

    @property
    def sizes(self) -> Floats:
        return np.array([compared.case.size_bytes for compared in self.cases], dtype=float)

    def times_s(self, name: str) -> Floats:
        """(num_cases,) seconds."""
        values = {
            "predicted": [compared.predicted_s for compared in self.cases],
            "measured": [compared.case.measured_s for compared in self.cases],
            "low": [compared.case.spread_s[0] for compared in self.cases],
            "high": [compared.case.spread_s[1] for compared in self.cases],
        }
        return np.array(values[name], dtype=float)


def _groups(comparison: Comparison) -> Iterator[_Group]:
    cases_by_line: dict[tuple[str, str, int, int], list[ComparedCase]] = {}
    for compared in comparison.cases:
        case = compared.case
        if compared.predicted_s is not None:
            key = case.collective, case.algorithm, case.num_ranks, case.num_nodes
            cases_by_line.setdefault(key, []).append(compared)
    for number, ((test, algorithm, ranks, nodes), cases) in enumerate(sorted(cases_by_line.items())[:_MAX_GROUPS]):
        hosts = f" on {nodes} hosts" if nodes > 1 else ""
        dash, colour = divmod(number, len(_COLOURS))
        ordered = sorted(cases, key=lambda compared: compared.case.size_bytes)
        yield _Group(f"{test} ({algorithm}), {ranks} ranks{hosts}", _COLOURS[colour], _DASHES[dash], ordered)


def _points(axes: Axes, group: _Group, values: Floats) -> None:
    """Filled where held out, hollow where used in the calibration."""
    used = np.array([compared.used_in_calibration for compared in group.cases], dtype=bool)
    for mask, face in ((~used, group.colour), (used, WHITE)):
        axes.scatter(group.sizes[mask], values[mask], s=26, color=group.colour, facecolors=face, zorder=3)


def _page(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9))
    axes.set_xlabel("size of the whole tensor")
    axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _legend(axes: Axes, comparison: Comparison, others: list[Line2D]) -> None:
    groups = list(_groups(comparison))
    _set_size_ticks(axes, groups)
    point: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 5, "markeredgecolor": DARK_GREY}
    others = [
        *others,
        Line2D([], [], **point, markerfacecolor=DARK_GREY, label="measured, held out"),
        Line2D([], [], **point, markerfacecolor=WHITE, label="measured, used in the calibration"),
    ]
    lines = [Line2D([], [], color=group.colour, **_dashed(group), label=group.label) for group in groups]
    axes.legend(handles=[*lines, *others], fontsize=8, framealpha=1, edgecolor=WHITE, loc="upper left",
                bbox_to_anchor=(1.0, 1.0))  # fmt: skip


def _dashed(group: _Group) -> dict[str, Any]:
    return {"linestyle": group.dash}


def _set_size_ticks(axes: Axes, groups: Sequence[_Group]) -> None:
    """Powers of two, at most nine of them."""
    sizes = np.concatenate([group.sizes for group in groups]) if groups else np.array([1.0])
    first, last = int(np.floor(np.log2(sizes.min()))), int(np.ceil(np.log2(sizes.max())))
    ticks = 2.0 ** np.arange(first, last + 1, max(1, -(-(last - first) // 8)))
    axes.set_xticks(ticks, [format_size(tick) for tick in ticks.tolist()])
    axes.xaxis.set_minor_locator(NullLocator())


def _save(figure: Figure, path: Path) -> None:
    with atomic_file(os.fspath(path)) as file:
        figure.savefig(file, format="png", dpi=_DPI)
