"""Pictures as SVG: their axes, and what they leave out."""

import re

import pytest

from ringsim.report.pages.charts import (
    ChartPoint,
    ChartSeries,
    Scale,
    figure,
    line_chart,
    range_chart,
    share_chart,
)


@pytest.mark.parametrize(
    ("first", "last", "log", "base", "ticks"),
    [
        (1e-3, 1.0, True, 10, [1e-3, 1e-2, 1e-1, 1.0]),
        (0.15, 6.0, True, 10, [0.2, 0.5, 1.0, 2.0, 5.0]),
        (0.28, 0.42, True, 10, [0.3, 0.35, 0.4]),
        (1024, 2**24, True, 2, [2.0**power for power in range(10, 25, 2)]),
        (0.0, 100.0, False, 10, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]),
        (2.0, 2.0, False, 10, [2.0]),
    ],
)
def test_axes_have_round_ticks(first: float, last: float, log: bool, base: float, ticks: list[float]) -> None:
    """At least two wherever values differ, however near they lie."""
    assert Scale(first, last, 0.0, 1.0, log).ticks(base) == pytest.approx(ticks)


def test_what_an_axis_cannot_hold_is_left_out() -> None:
    """Infinite times, as where something fails; without anything else there is no picture at all."""
    points = ChartPoint(1, 2.0), ChartPoint(2, float("inf")), ChartPoint(4, 1e300)
    svg = line_chart([ChartSeries("a", points, "blue")], "x", str, str, log=(True, True))
    assert svg.count("<circle") == 1
    assert not re.search("nan|inf", svg)
    none = line_chart([ChartSeries("a", points[1:], "blue")], "x", str, str, log=(True, True))
    assert none == figure("title", none) == range_chart([], "x", str) == share_chart([], "x") == ""


def test_points_are_where_their_values_are() -> None:
    """The ends of a logarithmic axis, and its middle."""
    scale = Scale(1.0, 100.0, 0.0, 10.0, True)
    assert [scale.place(value) for value in (1.0, 10.0, 100.0)] == pytest.approx([0.0, 5.0, 10.0])


def test_names_are_text() -> None:
    """In the legend, on the axes and in what is shown under the pointer."""
    series = [ChartSeries("<a>", (ChartPoint(1, 1), ChartPoint(2, 2)), "blue")]
    drawn = figure("<t>", line_chart(series, "<x>", str, str, log=(False, False)), series)
    assert not any(f"<{name}>" in drawn for name in "atx")
