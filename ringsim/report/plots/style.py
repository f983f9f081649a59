"""Matplotlib's settings for all pictures, and pages of panels.

The user's fonts, colours and resolution apply where they differ from matplotlib's defaults.
"""

import io
import os
import re
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import matplotlib.style
from matplotlib import rc_context, rcParams, rcParamsDefault
from matplotlib.colors import to_hex
from matplotlib.figure import Figure, SubFigure

from ringsim.files import atomic_file
from ringsim.report.colours import BLACK, OWN_STYLES, WHITE, Palette


def palette() -> Palette:
    """Return the colours for the current settings."""
    return _palette(_hex(rcParams["axes.facecolor"], WHITE), _hex(rcParams["text.color"], BLACK))


_palette = cache(Palette.of)


def _hex(colour: str, otherwise: str) -> str:
    return otherwise if colour in ("none", "auto", "inherit") else to_hex(colour).upper()


# Inches, with matplotlib's own font size.
WIDTH, LEFT, RIGHT = 14.0, 0.8, 0.25
_TITLE_HEIGHT, _LINE_HEIGHT = 0.53, 0.22
_DPI = 144.0  # with the widths of the pages about 2000 pixels
# Matplotlib's types list every setting, and accept no other string.
_SETTINGS, _DEFAULTS = cast(MutableMapping[str, Any], rcParams), cast(MutableMapping[str, Any], rcParamsDefault)


@contextmanager
def drawing(style: str | None = None) -> Iterator[None]:
    """Set matplotlib up for a picture of a style, see `plot`, and restore its settings when the block ends.

    Raises ValueError for an unknown style.
    """
    with rc_context():
        if style is not None:
            _use(style)
        _SETTINGS["text.parse_math"] = False  # a $ in a name is a $
        _SETTINGS["text.usetex"] = False  # a settings file could start latex with its own preamble
        _SETTINGS["svg.fonttype"] = setting("svg.fonttype", "none")  # text that can be searched and copied
        yield


def check_style(style: str) -> None:
    """Raise ValueError for an unknown style."""
    with rc_context():
        _use(style)


def _use(style: str) -> None:
    if style in OWN_STYLES:
        paper, ink = OWN_STYLES[style]
        _SETTINGS.update(dict.fromkeys(("figure.facecolor", "axes.facecolor"), paper))
        inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
        _SETTINGS.update(dict.fromkeys(inked, ink))
        return
    try:
        if style not in ("default", *matplotlib.style.available) and not Path(style).is_file():
            raise OSError  # matplotlib would import the package of package.style, and open URLs
        matplotlib.style.use(style)
    except (OSError, ValueError, UnicodeError) as error:
        known = ", ".join(name for name in matplotlib.style.available if not name.startswith("_"))
        why = "" if not Path(style).exists() else f" ({' '.join(str(error).split())})"
        raise ValueError(
            f"{style!r} is not a style{why}: give light, dark, a file of matplotlib settings, or one of {known}"
        ) from None


def setting(name: str, ours: Any) -> Any:
    """Return matplotlib's setting if the user has changed it, else ours."""
    theirs = _SETTINGS[name]
    return ours if theirs == _DEFAULTS[name] else theirs


def font_scale() -> float:
    """Return the font size over matplotlib's default."""
    return float(rcParams["font.size"] / rcParamsDefault["font.size"])


def points(size: float) -> float:
    """Return a text size scaled with the user's font size."""
    return size * font_scale()


class Page(Figure):
    """A figure that a notebook shows without pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def new_figure(width: float, height: float, **rest: Any) -> Figure:
    """Return an empty page in inches, scaled like `points`."""
    scale = font_scale()
    return Page(figsize=(width * scale, height * scale), dpi=setting("figure.dpi", _DPI), **rest)


class Panel(NamedTuple):
    """A band of a page, which `draw` fills within margins in inches."""

    height: float
    draw: Callable[[SubFigure, dict[str, float]], None]
    above: float = 0.0
    below: float = 0.0
    left: float = LEFT
    right: float = RIGHT


def page_of(panels: Sequence[Panel]) -> Figure:
    """Return a page of panels."""
    heights = [panel.height for panel in panels]
    figure = new_figure(WIDTH, sum(heights))
    parts = figure.subfigures(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, (height, draw, above, below, left, right) in zip(parts, panels, strict=True):
        across = {"left": left / WIDTH, "right": 1 - right / WIDTH}
        draw(part, across | {"top": 1 - above / height, "bottom": below / height})
    return figure


def head(title: str, *lines: tuple[str, float, str], left: float = LEFT) -> Panel:
    """Return the title of a page; lines: text, points, and colour."""
    height = _TITLE_HEIGHT + _LINE_HEIGHT * len(lines)

    def draw(figure: SubFigure, margins: dict[str, float]) -> None:
        x = margins["left"]
        figure.text(x, 1 - 0.28 / height, title, fontsize=points(15), fontweight="bold", va="center")
        for number, (text, size, colour) in enumerate(lines):
            y = 1 - (0.61 + _LINE_HEIGHT * number) / height
            figure.text(x, y, text, fontsize=points(size), va="center", color=colour)

    return Panel(height, draw, left=left)


def save_figure(draw: Callable[[], Figure], path: str | os.PathLike[str], style: str | None = None) -> None:
    """Draw a page and write it to `path`: png (also without a suffix), pdf or svg, by its suffix.

    The file appears complete or not at all. Raises OSError if it cannot be written, and ValueError for another suffix
    or an unknown style.
    """
    path = Path(path)
    with drawing(style), atomic_file(path) as file:
        if path.suffix.lower() == ".svg":
            file.write(_svg(draw()).encode())
        else:
            draw().savefig(file, format=path.suffix[1:] or "png")


def _svg(figure: Figure, **settings: Any) -> str:
    """Write SVG whose texts keep their spaces, which browsers would drop."""
    file = io.StringIO()
    figure.savefig(file, format="svg", **settings)
    return re.sub(r"<text (?=[^>]*>(?: |[^<]*  ))", '<text xml:space="preserve" ', file.getvalue())


def inline_svg(figure: Figure, *, transparent: bool = True) -> str:
    """Return a figure in the style `page` as an SVG element, the same for the same figure.

    Its colours are variables, see `svg_colours`. transparent: without the paper.
    """
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.hashsalt": "ringsim"}):
        svg = _svg(figure, transparent=transparent, metadata=metadata)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)[\")]", svg))
    svg = re.sub(r' id="([^"]*)"', lambda name: name[0] if name[1] in used else "", svg)
    return re.sub(r"(?<=: )#([0-9a-f]{6})\b", r"var(--x\1, #\1)", svg)
