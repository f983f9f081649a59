"""`drawing` and `save_figure`: the settings of matplotlib under which all pictures are made.

What the user has set stays: fonts, colours and resolution are matplotlib's settings where they are not its defaults.
"""

import io
import os
import re
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import matplotlib.style
from matplotlib import rc_context, rcParams, rcParamsDefault
from matplotlib.figure import Figure

from ringsim.files import atomic_file

_DPI = 144.0  # with the widths of the pages about 2000 pixels
_LIGHT = {"paper": "#FFFFFF", "ink": "#000000"}
_DARK = {"paper": "#14181D", "ink": "#E8EAED"}
# Matplotlib's types know every name, and take no other string.
_SETTINGS, _DEFAULTS = cast(MutableMapping[str, Any], rcParams), cast(MutableMapping[str, Any], rcParamsDefault)
OWN_STYLES = {"light": _LIGHT, "dark": _DARK, "page": {"paper": "#FFFFFF", "ink": "#1B1B1B"}}


@contextmanager
def drawing(style: str | None = None) -> Iterator[None]:
    """Set matplotlib up for a picture, and back when the block ends.

    style: light, dark, or the name or file of a style of matplotlib; None: the settings as they are.
    Raises ValueError for a style that there is not.
    """
    with rc_context():
        if style is not None:
            _use(style)
        _SETTINGS["text.parse_math"] = False  # a $ in a name is a $
        _SETTINGS["svg.fonttype"] = setting("svg.fonttype", "none")  # text that can be searched and copied
        yield


def check_style(style: str) -> None:
    """Raise ValueError, in one line, for a style that there is not."""
    with rc_context():
        _use(style)


def _use(style: str) -> None:
    if style in OWN_STYLES:
        paper, ink = OWN_STYLES[style]["paper"], OWN_STYLES[style]["ink"]
        _SETTINGS.update(dict.fromkeys(("figure.facecolor", "axes.facecolor"), paper))
        inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
        _SETTINGS.update(dict.fromkeys(inked, ink))
        return
    try:
        matplotlib.style.use(style)
    except (OSError, ValueError, UnicodeError) as error:
        known = ", ".join(name for name in matplotlib.style.available if not name.startswith("_"))
        why = "" if not Path(style).exists() else f" ({' '.join(str(error).split())})"
        raise ValueError(
            f"{style!r} is no style{why}: give light, dark, a file of matplotlib settings, or one of {known}"
        ) from None


def setting(name: str, ours: Any) -> Any:
    """Return matplotlib's setting of this name if the user has changed it, else ours."""
    theirs = _SETTINGS[name]
    return ours if theirs == _DEFAULTS[name] else theirs


def font_scale() -> float:
    """Return how many times as large as matplotlib's own the user's font is."""
    return float(rcParams["font.size"] / rcParamsDefault["font.size"])


def points(size: float) -> float:
    """Return the size of a text in points, where `size` is what it has with matplotlib's own font size."""
    return size * font_scale()


class Page(Figure):
    """A figure that a notebook shows as it is, without pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def new_figure(width: float, height: float, **rest: Any) -> Figure:
    """Return an empty page of so many inches, larger or smaller as the user's font is."""
    scale = font_scale()
    return Page(figsize=(width * scale, height * scale), dpi=setting("figure.dpi", _DPI), **rest)


def save_figure(draw: Callable[[], Figure], path: str | os.PathLike[str], style: str | None = None) -> None:
    """Draw a page and writes it to `path`, whose suffix says the format: png (also if none), pdf or svg.

    style: as for `drawing`. The file appears complete or not at all. Raises OSError if it cannot be written,
    ValueError for a suffix that is no picture's and a style that there is not.
    """
    path = Path(path)
    with drawing(style), atomic_file(path) as file:
        draw().savefig(file, format=path.suffix[1:] or "png")


def inline_svg(figure: Figure, *, transparent: bool = True) -> str:
    """Return a figure drawn in the style `page` as an SVG element of a page: the same text for the same figure.

    Its colours are variables, which `svg_colours` defines for dark pages. transparent: without the paper.
    """
    file = io.StringIO()
    with rc_context({"svg.hashsalt": "ringsim"}):
        figure.savefig(
            file, format="svg", transparent=transparent, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    svg = file.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)[\")]", svg))
    svg = re.sub(r' id="([^"]*)"', lambda name: name[0] if name[1] in used else "", svg)
    return re.sub(r"(?<=: )#([0-9a-f]{6})\b", r"var(--x\1, #\1)", svg)
