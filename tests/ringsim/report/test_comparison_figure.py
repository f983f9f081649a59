"""Pictures of a comparison and of loss curves, and figures as SVG in a page."""

import re
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ringsim.calibration import ComparedCase, Comparison, TimedCase
from ringsim.report.plots.charts import Curve, draw_curves, draw_loss_curves, set_axis
from ringsim.report.plots.comparison_figure import draw_errors, draw_times, format_factor, format_percent
from ringsim.report.plots.style import drawing, inline_svg, new_figure
from ringsim.units import format_time
from tests.ringsim.report.test_lanes import legend_of


def comparison(ratios: list[float], num_groups: int = 1, used: bool = False) -> Comparison:
    """Predictions that are so many times the measured 1 ms, for as many sizes, of several algorithms."""
    cases = [
        ComparedCase(
            TimedCase("all_reduce", f"algorithm{group}", 1024 << place, 4, 1, (1e-3,), spread_s=(9e-4, 11e-4)),
            ratio * 1e-3,
            "test",
            used,
        )
        for group in range(num_groups)
        for place, ratio in enumerate(ratios)
    ]
    return Comparison("box", tuple(cases))


def test_small_errors_are_in_percent() -> None:
    """On a linear axis, on which the line of no error is named so."""
    [axes] = draw_errors(comparison([0.9, 1.2])).axes
    assert axes.get_yscale() == "linear"
    [line] = [line for line in axes.get_lines() if "algorithm0" in str(line.get_label())]
    assert np.asarray(line.get_ydata()).tolist() == [0.9, 1.2]
    assert [format_percent(ratio) for ratio in (0.9, 1.0, 1.125)] == ["-10%", "right", "+12.5%"]


def test_large_errors_are_factors() -> None:
    """On a logarithmic axis with few ticks; half and twice lie as far from none."""
    [axes] = draw_errors(comparison([0.05, 1.0, 9.0])).axes
    assert axes.get_yscale() == "log"
    ticks = axes.get_yticks()
    np.testing.assert_allclose(np.asarray(ticks) * ticks[::-1], 1)
    assert len(ticks) < 16
    assert [format_factor(ratio) for ratio in (0.5, 1.0, 3.0)] == ["2x too short", "right", "3x too long"]


@pytest.mark.parametrize("draw", [draw_times, draw_errors])
def test_lines_can_be_told_apart(draw: object) -> None:
    """By colour and stroke together; what cannot is counted, not drawn."""
    assert callable(draw)
    [axes] = draw(comparison([1.0, 1.1], num_groups=26)).axes
    lines = [line for line in axes.get_lines() if "algorithm" in str(line.get_label())]
    assert len(lines) == 24
    assert len({(line.get_color(), str(line.get_linestyle())) for line in lines[:18]}) == 18
    assert legend_of(axes)[-1] == "and 2 more, not drawn"


def test_the_legend_says_what_occurs() -> None:
    """Held out, or used in the calibration; not both if there is one."""
    assert "measured, used in the calibration" not in legend_of(draw_times(comparison([1.0])).axes[0])
    entries = legend_of(draw_times(comparison([1.0], used=True)).axes[0])
    assert "measured, used in the calibration" in entries
    assert "measured, held out" not in entries


def test_loss_curves_can_be_told_apart() -> None:
    """Each has a marker or colour of its own, and its marks at other steps; the later ones are thinner, on top."""
    axes = Figure().subplots()
    curves = {f"strategy {number}": [3.0 + number / 9 - step / 30 for step in range(60)] for number in range(7)}
    draw_loss_curves(axes, curves | {"like the first": curves["strategy 0"]})
    assert axes.get_lines()[0].get_label() == "strategy 0 ≈ like the first"
    lines = axes.get_lines()
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 7
    assert len({line.get_markevery()[0] for line in lines}) == 7
    widths = [line.get_linewidth() for line in lines]
    assert widths == sorted(widths, reverse=True)
    assert min(widths) > 1


@pytest.mark.parametrize("width", [3.0, 12.0])
@pytest.mark.parametrize("ends_ms", [(6, 19), (1.5, 80), (9, 9.5), (0.02, 200), (1e-3, 1e6)])
def test_the_ticks_of_a_logarithmic_axis_have_room(ends_ms: tuple[float, float], width: float) -> None:
    """At least two of them, and no label over the next."""
    figure = new_figure(width, 2)
    axes = figure.subplots()
    axes.plot([end / 1e3 for end in ends_ms], [0, 1])
    set_axis(axes.xaxis, "time", format_time, log_base=10)
    axes.set_xlim(*(end / 1e3 for end in ends_ms))
    FigureCanvasAgg(figure).draw()
    low, high = axes.get_xlim()
    labels = [
        label.label1.get_window_extent() for label in axes.xaxis.get_major_ticks() if low <= label.get_loc() <= high
    ]
    assert len(labels) >= 2
    assert all(left.x1 < right.x0 for left, right in pairwise(labels))


def test_what_an_axis_cannot_hold_is_left_out() -> None:
    """Infinite times, as where something fails; without anything else there is nothing to draw."""
    axes = Figure().subplots()
    assert draw_curves(axes, [Curve("a", [1, 2, 4], [2.0, float("inf"), 1e300])])
    [line] = axes.get_lines()
    assert np.isfinite(np.asarray(line.get_ydata())).tolist() == [True, False, False]
    assert not draw_curves(axes, [Curve("a", [1], [float("inf")]), Curve("b", [], [])])


def test_a_picture_in_a_page_is_the_same_every_time_and_its_names_are_text() -> None:
    """Its colours are those of the page, light or dark; nothing in it has a name that another picture has, too."""

    def svg() -> str:
        with drawing("page"):
            figure = new_figure(4, 3)
            axes = figure.subplots()
            set_axis(axes.xaxis, "<x> & $y$", str, log_base=2)
            draw_curves(axes, [Curve("<a>", [1, 2], [1, 2])])
            axes.legend()
            return inline_svg(figure)

    text = svg()
    assert text == svg()
    assert text.startswith("<svg")
    assert "&lt;x&gt; &amp; $y$</text>" in text
    assert "stroke: var(--x0072b2, #0072b2)" in text
    assert "figure_1" not in text
    assert not re.search(r"<(metadata|script)|202\d", text)
