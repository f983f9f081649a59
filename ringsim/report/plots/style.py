"""Matplotlib's settings for all pictures: `drawing`, `palette`, `new_figure` and `save_figure`.

Fonts, colours and resolution are the user's settings of matplotlib where these are not its defaults.
"""

import io
import os
import re
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

import matplotlib.style
from matplotlib import rc_context, rcParams, rcParamsDefault
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from ringsim.files import atomic_file
from ringsim.report.colours import BLACK, OWN_STYLES, WHITE, Palette


def palette() -> Palette:
    """Return the colours for matplotlib's settings as they are now."""
    return _palette(_hex(rcParams["axes.facecolor"], WHITE), _hex(rcParams["text.color"], BLACK))


_palette = cache(Palette.of)


def _hex(colour: str, otherwise: str) -> str:
    return otherwise if colour in ("none", "auto", "inherit") else to_hex(colour).upper()


_DPI = 144.0  # with the widths of the pages about 2000 pixels
# Matplotlib's types know every name, and take no other string.
_SETTINGS, _DEFAULTS = cast(MutableMapping[str, Any], rcParams), cast(MutableMapping[str, Any], rcParamsDefault)


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
        _SETTINGS["text.usetex"] = False  # a file of settings would start latex, with the file's own preamble
        _SETTINGS["svg.fonttype"] = setting("svg.fonttype", "none")  # text that can be searched and copied
        yield


def check_style(style: str) -> None:
    """Raise ValueError, in one line, for a style that there is not."""
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
            raise OSError  # matplotlib would import package of package.style, and open what is behind a URL
        matplotlib.style.use(style)
    except (OSError, ValueError, UnicodeError) as error:
        known = ", ".join(name for name in matplotlib.style.available if not name.startswith("_"))
        why = "" if not Path(style).exists() else f" ({' '.join(str(error).split())})"
        raise ValueError(
            f"{style!r} is not a style{why}: give light, dark, a file of matplotlib settings, or one of {known}"
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
    """Return an empty page of `width` by `height` inches, scaled with the user's font size."""
    scale = font_scale()
    return Page(figsize=(width * scale, height * scale), dpi=setting("figure.dpi", _DPI), **rest)


def save_figure(draw: Callable[[], Figure], path: str | os.PathLike[str], style: str | None = None) -> None:
    """Draw a page and writes it to `path`, whose suffix says the format: png (also if none), pdf or svg.

    style: as for `drawing`. The file appears complete or not at all. Raises OSError if it cannot be written,
    ValueError for a suffix that is no picture's and a style that there is not.
    """
    path = Path(path)
    with drawing(style), atomic_file(path) as file:
        if path.suffix.lower() == ".svg":
            file.write(_svg(draw()).encode())
        else:
            draw().savefig(file, format=path.suffix[1:] or "png")


def _svg(figure: Figure, **settings: Any) -> str:
    """Return a figure as SVG whose texts keep their spaces: browsers drop the indentation of code otherwise."""
    file = io.StringIO()
    figure.savefig(file, format="svg", **settings)
    return re.sub(r"<text (?=[^>]*>(?: |[^<]*  ))", '<text xml:space="preserve" ', file.getvalue())


def inline_svg(figure: Figure, *, transparent: bool = True) -> str:
    """Return a figure drawn in the style `page` as an SVG element of a page: the same text for the same figure.

    Its colours are variables, which `svg_colours` defines for dark pages. transparent: without the paper.
    """
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.hashsalt": "ringsim"}):
        svg = _svg(figure, transparent=transparent, metadata=metadata)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)[\")]", svg))
    svg = re.sub(r' id="([^"]*)"', lambda name: name[0] if name[1] in used else "", svg)
    return re.sub(r"(?<=: )#([0-9a-f]{6})\b", r"var(--x\1, #\1)", svg)
