"""Pictures of a `Comparison`: times and errors against size."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from ringsim.calibration import ComparedCase, Comparison
from ringsim.estimates import INSIDE
from ringsim.network import Floats
from ringsim.report.colours import Style
from ringsim.report.plots.charts import SIZES, TIMES, Scale, describe_axes
from ringsim.report.plots.style import new_figure, palette, points

_SIZE = (10.0, 5.6)  # inches
_MAX_GROUPS = 24  # whose lines can be told apart
_LINEAR_ERRORS = 0.5  # largest error for a linear axis in percent
_BAND = 0.15  # opacity of an interval
_SPREAD = 0.3  # opacity of the spread of the measured times
_FACTORS = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1e3, 1e4)


def draw_times(comparison: Comparison) -> Figure:
    """Draw predictions as lines, and measured medians with their spread as points."""
    figure, axes = _page(f"Time on {comparison.network}: predicted and measured", TIMES)
    draw_time_curves(axes, comparison)
    others: list[Line2D | Patch] = [Line2D([], [], color=palette().dark_grey, label="predicted")]
    if comparison.has_intervals:
        others.append(Patch(color=palette().dark_grey, alpha=_BAND, linewidth=0, label=f"expected to {INSIDE:.0%}"))
    _draw_legend(axes, _groups(comparison), others)
    return figure


def draw_time_curves(axes: Axes, comparison: Comparison) -> bool:
    """Draw the curves of `draw_times`; return whether there are any."""
    groups = _groups(comparison)
    for group in groups[:_MAX_GROUPS]:
        colour = group.style.colour
        _draw_group(axes, group, group.predicted_s, group.measured_s, 1.6)
        axes.fill_between(group.sizes, group.least_s, group.most_s, color=colour, alpha=_BAND, linewidth=0)
        measured_s = group.measured_s
        bars = np.stack([np.maximum(measured_s - group.low_s, 0), np.maximum(group.high_s - measured_s, 0)])
        axes.errorbar(group.sizes, measured_s, yerr=bars, fmt="none", ecolor=colour, elinewidth=1)
    return bool(groups)


def draw_errors(comparison: Comparison) -> Figure:
    """Draw the error of each case, with the spread of the measured times.

    Small errors are in percent; others are factors on a logarithmic axis, on which half and twice are equally far off.
    """
    figure, axes = _page(f"Error of the prediction on {comparison.network}")
    groups = _groups(comparison)
    ratios = np.concatenate([group.ratios for group in groups]) if groups else np.ones(1)
    is_linear = bool((np.abs(ratios - 1) <= _LINEAR_ERRORS).all())
    for group in groups[:_MAX_GROUPS]:
        low, high = group.low_s / group.measured_s, group.high_s / group.measured_s
        axes.vlines(group.sizes, low, high, color=group.style.colour, alpha=_SPREAD, linewidth=5, zorder=0)
        _draw_group(axes, group, group.ratios, group.ratios, 1)
    axes.axhline(1, color=palette().dark_grey, linewidth=1)
    _set_error_axis(axes, ratios, is_linear=is_linear)
    spread: dict[str, Any] = {"alpha": _SPREAD, "linewidth": 5, "label": "spread of the measured times"}
    _draw_legend(axes, groups, [Line2D([], [], color=palette().dark_grey, **spread)])
    return figure


def _set_error_axis(axes: Axes, ratios: Floats, *, is_linear: bool) -> None:
    if is_linear:
        axes.yaxis.set_major_formatter(lambda value, _: format_percent(value))
        axes.set_ylabel("predicted / measured - 1")
        return
    furthest = float(np.exp(np.abs(np.log(ratios)).max()))
    shown = [factor for factor in _FACTORS if factor <= 1.5 * furthest]
    shown = [1.0, *shown[1:][:: -(-len(shown) // 6)]]
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(sorted({*shown, *(1 / factor for factor in shown)})))
    axes.yaxis.set_major_formatter(lambda value, _: format_factor(value))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("predicted / measured")


def format_percent(ratio: float) -> str:
    """Return an error in percent: +20%."""
    return "right" if abs(ratio - 1) < 1e-6 else f"{100 * (ratio - 1):+.3g}%"


def format_factor(ratio: float) -> str:
    """Return an error as a factor: 2x too long, 3x too short."""
    if abs(np.log(ratio)) < 1e-6:
        return "right"
    return f"{ratio:g}x too long" if ratio > 1 else f"{1 / ratio:g}x too short"


class _Group(NamedTuple):
    """Cases that differ in size alone, as (num_cases,) columns."""

    label: str
    style: Style
    marker: str
    sizes: Floats
    predicted_s: Floats
    measured_s: Floats
    low_s: Floats
    high_s: Floats
    used: Floats  # 1 where it was used in the calibration
    least_s: Floats  # ends of the interval in which the measured time is expected; NaN if unknown
    most_s: Floats

    @property
    def ratios(self) -> Floats:
        return self.predicted_s / self.measured_s


def _groups(comparison: Comparison) -> list[_Group]:
    cases_by_line: dict[tuple[str, str, int, int, str], list[ComparedCase]] = {}
    for compared, log in zip(comparison.cases, comparison.logs(), strict=True):
        case = compared.case
        if compared.predicted_s is not None:
            key = *case.group, log
            cases_by_line.setdefault(key, []).append(compared)
    groups = []
    for number, ((test, algorithm, ranks, nodes, log), cases) in enumerate(sorted(cases_by_line.items())):
        hosts = f" on {nodes} hosts" if nodes > 1 else ""
        label = f"{test} ({algorithm}), {ranks} ranks{hosts}" + (f", {log}" if log else "")
        rows = [
            (one.case.call.size_bytes, one.predicted_s, one.case.measured_s, *one.case.spread_s,
             one.used_in_calibration, *(one.interval.ends if one.interval else (np.nan, np.nan)))
            for one in sorted(cases, key=lambda compared: compared.case.call.size_bytes)
        ]  # fmt: skip
        groups.append(_Group(label, *palette().series_style(number), *np.array(rows, dtype=float).T))
    return groups


def _draw_group(axes: Axes, group: _Group, line: Floats, values: Floats, width: float) -> None:
    axes.plot(group.sizes, line, linewidth=width, label=group.label, **group.style.line)
    for mask, face in ((group.used == 0, group.style.colour), (group.used == 1, palette().paper)):
        axes.scatter(group.sizes[mask], values[mask], s=26, marker=group.marker, color=group.style.colour,
                     facecolors=face, zorder=3)  # fmt: skip


def _page(title: str, y: Scale | None = None) -> tuple[Figure, Axes]:
    figure = new_figure(*_SIZE, layout="constrained")
    axes = figure.add_subplot()
    describe_axes(axes, title, SIZES, y)
    return figure, axes


def _draw_legend(axes: Axes, groups: Sequence[_Group], others: list[Line2D | Patch]) -> None:
    colours = palette()
    point: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 5, "markeredgecolor": colours.dark_grey}
    for used, face, label in ((0, colours.dark_grey, "measured, held out"),
                              (1, colours.paper, "measured, used in the calibration")):  # fmt: skip
        if any((group.used == used).any() for group in groups):
            others.append(Line2D([], [], **point, markerfacecolor=face, label=label))
    lines = [
        Line2D([], [], marker=group.marker, markersize=4, label=group.label, **group.style.line)
        for group in groups[:_MAX_GROUPS]
    ]
    if len(groups) > _MAX_GROUPS:
        others.append(Line2D([], [], linestyle="none", label=f"and {len(groups) - _MAX_GROUPS} more, not drawn"))
    axes.legend(handles=[*lines, *others], fontsize=points(8), frameon=False, handlelength=3.2, loc="upper left",
                bbox_to_anchor=(1.0, 1.0))  # fmt: skip
