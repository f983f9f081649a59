"""Pictures of a page as SVG, with real text, in the colours of the page's style, so that they follow light and dark."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("blue", "vermillion", "orange", "green", "sky", "faint")
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 560.0, 76.0, 28.0, 12.0, 44.0
HEIGHT, ROW = 300.0, 26.0
_MOST_TICKS = 9
_BEYOND = 1e100

Label = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A point, with the ends of its interval if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """Points of one kind: joined by a line, marked by dots, or both; colour: one of COLOURS.

    With neither it is the key of the diamonds of `range_chart`.
    """

    name: str
    points: tuple[ChartPoint, ...]
    colour: str
    line: bool = True
    dots: bool = True
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places on the page, along one axis."""

    first: float
    last: float
    begin: float
    end: float
    log: bool

    def place(self, value: float) -> float:
        """Returns the place of a value."""
        low, high, at = (math.log(v) if self.log else v for v in (self.first, self.last, max(value, self.first)))
        return self.begin + (self.end - self.begin) * (at - low) / ((high - low) or 1.0)

    def ticks(self, base: float) -> list[float]:
        """Returns round values; base: 2 for sizes, else 10."""
        return _log_ticks(self.first, self.last, base) if self.log else _plain_ticks(self.first, self.last)


def figure(title: str, svg: str, legend: Sequence[ChartSeries] = (), note: str = "") -> str:
    """Returns a picture with its title, legend and a note; "" where there is no picture."""
    if not svg:
        return ""
    keys = "".join(f'<li><i class="key {s.colour}{_dash(s)}"></i>{escape(s.name)}</li>' for s in legend)
    listed = f'<ul class="legend">{keys}</ul>' if keys else ""
    below = f'<p class="faint">{escape(note)}</p>' if note else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}{listed}{below}</figure>"


def line_chart(
    series: Sequence[ChartSeries],
    x_label: str,
    x_text: Label,
    y_text: Label,
    *,
    log: tuple[bool, bool],
    base: float = 2,
) -> str:
    """Returns the SVG of lines and points; "" without points. log: of x and y. base: of the ticks of x."""
    points = [point for one in series for point in _shown(one)]
    if not points:
        return ""
    ys = [value for p in points for value in (p.y, p.low, p.high) if value is not None]
    x = _scale([p.x for p in points], LEFT, WIDTH - RIGHT, log[0], 0.0)
    y = _scale(ys, HEIGHT - BOTTOM, TOP, log[1], 0.05)
    parts = [_x_axis(x, x_label, x_text, base, HEIGHT), _y_axis(y, y_text)]
    parts += [_drawn(one, x, y, x_text, y_text) for one in series]
    return _svg("".join(parts), HEIGHT)


def range_chart(rows: Sequence[tuple[str, ChartPoint, float | None]], x_label: str, x_text: Label) -> str:
    """Returns a row for each name: the interval as a band, the point as a dot, another value as a diamond; log x."""
    values = [v for _, p, other in rows for v in (p.x, p.low, p.high, other) if v is not None and v > 0]
    if not values:
        return ""
    height = TOP + ROW * len(rows) + BOTTOM
    x = _scale(values, LEFT + 40, WIDTH - RIGHT, True, 0.05)
    parts = [_x_axis(x, x_label, x_text, 10, height)]
    for number, (name, point, other) in enumerate(rows):
        y = TOP + ROW * (number + 0.5)
        tip = f"<title>{escape(point.note)}</title>"
        parts.append(f'<text class="end" x="{LEFT + 32:.0f}" y="{y + 4:.1f}">{escape(name)}</text>')
        if point.low and point.high:
            ends = f'x1="{x.place(point.low):.1f}" x2="{x.place(point.high):.1f}"'
            parts.append(f'<line class="band orange" {ends} y1="{y:.1f}" y2="{y:.1f}">{tip}</line>')
        if point.x > 0:
            parts.append(
                f'<circle class="dot vermillion" cx="{x.place(point.x):.1f}" cy="{y:.1f}" r="5">{tip}</circle>'
            )
        if other:
            at = x.place(other)
            corners = f"{at - 6:.1f},{y:.1f} {at:.1f},{y - 6:.1f} {at + 6:.1f},{y:.1f} {at:.1f},{y + 6:.1f}"
            parts.append(f'<polygon class="hollow blue" points="{corners}">{tip}</polygon>')
    return _svg("".join(parts), height)


def share_chart(rows: Sequence[tuple[str, Sequence[tuple[str, float, str]]]], x_label: str) -> str:
    """Returns a bar for each row whose parts fill it; a part: its colour, its share, and what to say of it."""
    if not rows:
        return ""
    height = TOP + ROW * len(rows) + BOTTOM
    x = Scale(0.0, 1.0, LEFT, WIDTH - RIGHT, False)
    parts = [_x_axis(x, x_label, lambda share: f"{share:.0%}", 10, height)]
    for number, (name, shares) in enumerate(rows):
        y, begin = TOP + ROW * number + 3, 0.0
        parts.append(f'<text class="end" x="{LEFT - 8:.0f}" y="{y + 15:.1f}">{escape(name)}</text>')
        for colour, share, tip in shares:
            left, right = x.place(begin), x.place(begin + share)
            begin += share
            parts.append(
                f'<rect class="part {colour}" x="{left:.1f}" y="{y:.1f}" width="{max(right - left, 0):.1f}" '
                f'height="{ROW - 6:.0f}"><title>{escape(tip)}</title></rect>'
            )
    return _svg("".join(parts), height)


def _svg(body: str, height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">{body}</svg>'


def _scale(values: Sequence[float], begin: float, end: float, log: bool, margin: float) -> Scale:
    """Over all values, with a margin of the length of the axis at both ends."""
    values = [value for value in values if value > 0] or [1.0] if log else list(values)
    low, high = min(values), max(values)
    if log:
        room = (high / low) ** margin if high > low else 2.0
        return Scale(low / room, high * room, begin, end, log)
    room = (high - low) * margin or (abs(high) or 1.0) * 0.05
    return Scale(low - room, high + room, begin, end, log)


def _x_axis(x: Scale, label: str, text: Label, base: float, height: float) -> str:
    bottom = height - BOTTOM
    parts = [f'<line class="axis" x1="{x.begin:.0f}" x2="{x.end:.0f}" y1="{bottom:.0f}" y2="{bottom:.0f}"/>']
    for tick in x.ticks(base):
        at = x.place(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP:.0f}" y2="{bottom:.0f}"/>')
        parts.append(f'<text class="middle" x="{at:.1f}" y="{bottom + 16:.0f}">{escape(text(tick))}</text>')
    middle = (x.begin + x.end) / 2
    parts.append(f'<text class="middle label" x="{middle:.0f}" y="{height - 8:.0f}">{escape(label)}</text>')
    return "".join(parts)


def _y_axis(y: Scale, text: Label) -> str:
    parts = []
    for tick in y.ticks(10):
        at = y.place(tick)
        parts.append(f'<line class="grid" x1="{LEFT:.0f}" x2="{WIDTH - RIGHT:.0f}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="end" x="{LEFT - 8:.0f}" y="{at + 4:.1f}">{escape(text(tick))}</text>')
    return "".join(parts)


def _drawn(series: ChartSeries, x: Scale, y: Scale, x_text: Label, y_text: Label) -> str:
    points = _shown(series)
    parts = []
    if series.line and len(points) > 1:
        path = " ".join(f"{x.place(p.x):.1f},{y.place(p.y):.1f}" for p in points)
        parts.append(f'<polyline class="line {series.colour}{_dash(series)}" points="{path}"/>')
    for point in points:
        at, tip = x.place(point.x), point.note or f"{series.name}: {x_text(point.x)}, {y_text(point.y)}"
        title = f"<title>{escape(tip)}</title>"
        if point.low is not None and point.high is not None:
            ends = f'y1="{y.place(point.low):.1f}" y2="{y.place(point.high):.1f}"'
            parts.append(f'<line class="bar {series.colour}" x1="{at:.1f}" x2="{at:.1f}" {ends}>{title}</line>')
        if series.dots:
            middle = f'cx="{at:.1f}" cy="{y.place(point.y):.1f}"'
            parts.append(f'<circle class="dot {series.colour}" {middle} r="3.5">{title}</circle>')
    return "".join(parts)


def _shown(series: ChartSeries) -> list[ChartPoint]:
    """Those that an axis can hold: not infinities, nor what comes near to the end of floats, as losses may."""
    return [point for point in series.points if abs(point.y) < _BEYOND]


def _dash(series: ChartSeries) -> str:
    if series.line:
        return " dashed" if series.dashed else ""
    return " point" if series.dots else " diamond"


def _log_ticks(first: float, last: float, base: float) -> list[float]:
    """Powers of the base, every so many that they fit; else also 2 and 5 times a power of ten, else as evenly."""
    low, high = math.ceil(math.log(first, base) - 1e-9), math.floor(math.log(last, base) + 1e-9)
    every = max(1, -(-(high - low + 1) // _MOST_TICKS))
    ticks = [float(base) ** power for power in range(low, high + 1, every)]
    if base == 10 and len(ticks) < 3:
        around = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
        finer = [digit * 10.0**power for power in around for digit in (1, 2, 5)]
        ticks = [tick for tick in finer if first <= tick <= last]
    return ticks if len(ticks) > 1 else _plain_ticks(first, last)


def _plain_ticks(first: float, last: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, at most six of them."""
    step = 10.0 ** math.floor(math.log10((last - first) or 1.0))
    step = next((s for s in (step / 5, step / 2, step) if (last - first) / s <= 6), step * 2)
    return [n * step for n in range(math.ceil(first / step - 1e-9), math.floor(last / step + 1e-9) + 1)]
