"""Pictures of a comparison and of loss curves, and figures as SVG in a page."""

import re
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from syrupy.assertion import SnapshotAssertion

from ringsim.calibration import ComparedCase, Comparison, Timing
from ringsim.libraries import Call
from ringsim.report.plots.charts import Curve, draw_curves, draw_loss_curves, set_axis
from ringsim.report.plots.comparison_figure import draw_errors, draw_times, format_factor, format_percent
from ringsim.report.plots.style import drawing, inline_svg, new_figure
from ringsim.units import format_time
from tests.ringsim.report.described import describe


def comparison(ratios: list[float], num_groups: int = 1, used: bool = False) -> Comparison:
    """Predictions that are so many times the measured 1 ms, for as many sizes, of several algorithms."""
    cases = [
        ComparedCase(
            Timing(Call("all_reduce", 1024 << place, 4, 1), f"algorithm{group}", (1e-3,), spread_s=(9e-4, 11e-4)),
            ratio * 1e-3,
            "test",
            used,
        )
        for group in range(num_groups)
        for place, ratio in enumerate(ratios)
    ]
    return Comparison("box", tuple(cases))


def loss_curves() -> Figure:
    """Of eight strategies, two of which are alike."""
    figure = Figure()
    curves = {f"strategy {number}": [3.0 + number / 9 - step / 30 for step in range(60)] for number in range(7)}
    draw_loss_curves(figure.subplots(), curves | {"like the first": curves["strategy 0"]})
    return figure


FIGURES = {
    "small errors": lambda: draw_errors(comparison([0.9, 1.2])),
    "large errors": lambda: draw_errors(comparison([0.05, 1.0, 9.0])),
    "many errors": lambda: draw_errors(comparison([1.0, 1.1], num_groups=26)),
    "many times": lambda: draw_times(comparison([1.0, 1.1], num_groups=26)),
    "used in the calibration": lambda: draw_times(comparison([1.0], used=True)),
    "losses": loss_curves,
}


@pytest.mark.parametrize("name", FIGURES)
def test_lines_can_be_told_apart(name: str, snapshot: SnapshotAssertion) -> None:
    """By colour and stroke together; what cannot is counted, not drawn. The legend has what occurs.

    Small errors are in percent on a linear axis; large ones are factors on a logarithmic one, on which half and twice
    lie as far from none.
    """
    figure = FIGURES[name]()
    assert describe(figure) == snapshot
    lines = [line for line in figure.axes[0].get_lines() if not str(line.get_label()).startswith("_")][:18]
    styles = {(line.get_color(), str(line.get_linestyle()), str(line.get_marker())) for line in lines}
    assert len(styles) == len(lines)
    ticks = figure.axes[0].get_yticks()
    assert name != "large errors" or (len(ticks) < 16 and np.allclose(np.asarray(ticks) * ticks[::-1], 1))


def test_errors_in_words() -> None:
    """Errors are written in percent or as factors."""
    assert [format_percent(ratio) for ratio in (0.9, 1.0, 1.125)] == ["-10%", "right", "+12.5%"]
    assert [format_factor(ratio) for ratio in (0.5, 1.0, 3.0)] == ["2x too short", "right", "3x too long"]


@pytest.mark.parametrize("width", [3.0, 12.0])
@pytest.mark.parametrize("ends_s", [(6e-3, 19e-3), (1.5e-3, 80e-3), (9e-3, 9.5e-3), (2e-5, 0.2), (1e-6, 1e3)])
def test_the_ticks_of_a_logarithmic_axis_have_room(ends_s: tuple[float, float], width: float) -> None:
    """At least two of them, and no label over the next."""
    figure = new_figure(width, 2)
    axes = figure.subplots()
    axes.plot(ends_s, [0, 1])
    set_axis(axes.xaxis, "time", format_time, log_base=10)
    axes.set_xlim(*ends_s)
    FigureCanvasAgg(figure).draw()
    ticks = [tick for tick in axes.xaxis.get_major_ticks() if ends_s[0] <= tick.get_loc() <= ends_s[1]]
    labels = [tick.label1.get_window_extent() for tick in ticks]
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
