"""Tests of `ringsim.report.plots.charts`, and of figures as SVG in a page."""

import re

import numpy as np
from matplotlib.figure import Figure

from ringsim.report.plots.charts import Curve, draw_curves, set_axis
from ringsim.report.plots.style import drawing, inline_svg, new_figure


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
