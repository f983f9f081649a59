"""A figure in words: all that is written on it, and the shapes in each of its axes, to be compared with a snapshot."""

import re
import textwrap
from collections.abc import Iterator

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation

from ringsim.report.plots.charts import Labels
from ringsim.report.plots.style import palette


def describe(figure: Figure) -> str:
    """Return the words, each once, then for each axes its limits and the artists that have a name.

    What makes each picture another one, the time and the command, is left out.
    """
    written = [artist.get_text() for artist in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    written += [text for labels in figure.findobj(Labels) for text in labels.texts]
    written = [re.sub(r"(with ringsim) .*", r"\1", text, flags=re.DOTALL) for text in written]
    words = dict.fromkeys(" ".join(text.split()) for text in written if re.search("[a-z]{2}|→", text))
    return "\n".join([textwrap.fill(" | ".join(words), 110), *(line for axes in figure.axes for line in _lines(axes))])


def _lines(axes: Axes) -> Iterator[str]:
    for name, limits in ((axes.get_xscale(), axes.get_xlim()), (axes.get_yscale(), axes.get_ylim())):
        yield f"{name} axis: {limits[0]:.4g} to {limits[1]:.4g}"
    if marked := [text.get_text() for text in axes.get_yticklabels() if text.get_color() == palette().vermillion]:
        yield f"marked: {', '.join(marked)}"
    for image in axes.get_images():
        pixels = np.asarray(image.get_array(), dtype=float)
        yield f"image of {pixels.shape}: mean {pixels.mean():.4f}, by row {pixels.mean(axis=(1, 2)).round(3).tolist()}"
    if arrows := [text.xy for text in axes.texts if isinstance(text, Annotation) and text.arrow_patch]:
        yield f"arrows: {np.round(arrows, 3).tolist()}"
    for artist in (*axes.collections, *axes.get_lines()):
        if not str(artist.get_label()).startswith("_"):
            yield f"{artist.get_label()}: {_shape(artist)}"


def _shape(artist: Artist) -> str:
    """Return how many points or shapes it has, its colours and strokes, and from where to where they reach."""
    if isinstance(artist, Line2D):
        x, y = artist.get_data()
        style = f"{to_hex(artist.get_color())} {artist.get_linestyle()} {artist.get_marker()}"
        values = " ".join(f"{value:.4g}" for value in np.asarray(y, dtype=float)[:4])
        return f"{len(x)} points {style} {artist.get_linewidth():.3g}, {np.min(x):.4g} to {np.max(x):.4g}: {values}"
    paths = artist.get_paths()
    shapes = [np.asarray(path.vertices) for path in paths] or [np.full((1, 2), np.nan)]
    points = np.asarray(artist.get_offsets()) if isinstance(artist, PathCollection) else np.concatenate(shapes)
    colours = [to_hex(colour) for colour in (*artist.get_facecolor()[:1], *artist.get_edgecolor()[:1])]
    return f"{len(paths)} in {' '.join(colours)}, {points.min(axis=0).round(9)} to {points.max(axis=0).round(9)}"
