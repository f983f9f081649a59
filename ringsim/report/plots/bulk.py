"""Rectangles and short texts in bulk: a thousand drawn by one artist cost as much as ten artists; and their room."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.collections import PolyCollection
from matplotlib.font_manager import FontProperties
from matplotlib.transforms import ScaledTranslation, Transform

Floats = npt.NDArray[np.float64]
Reals = npt.NDArray[np.floating]
Label = tuple[float, float, str, str, bool]  # x, y (the centre of a digit's height), text, colour, bold


def draw_labels(axes: Axes, labels: Sequence[Label], size: float) -> None:
    """Write each text centred at its (x, y) in data coordinates, `size` points high."""
    if labels:
        axes.add_artist(Labels(labels, size))


class Labels(Artist):
    """Texts at places in data coordinates; in SVG and PDF they are text, as those of `Axes.text` are."""

    def __init__(self, labels: Sequence[Label], size: float) -> None:
        super().__init__()
        self.labels = tuple(labels)
        self.size = size
        self.set_zorder(4)
        self.set_clip_on(False)
        self.set_in_layout(False)

    @property
    def texts(self) -> list[str]:
        """The texts alone."""
        return [text for _, _, text, _, _ in self.labels]

    def draw(self, renderer: RendererBase) -> None:
        """Write them all."""
        if not self.get_visible() or self.axes is None:
            return
        fonts = {bold: FontProperties(size=self.size, weight="bold" if bold else "normal") for bold in (False, True)}
        places = self.axes.transData.transform(np.array([(x, y) for x, y, *_ in self.labels]))
        half = {bold: renderer.get_text_width_height_descent("8", font, False)[1] / 2 for bold, font in fonts.items()}
        _, canvas_height = renderer.get_canvas_width_height()
        for (x, y), (_, _, text, colour, bold) in zip(places.tolist(), self.labels, strict=True):
            width, _, _ = renderer.get_text_width_height_descent(text, fonts[bold], False)
            context = renderer.new_gc()
            context.set_foreground(colour)
            baseline = y - half[bold]
            height = canvas_height - baseline if renderer.flipy() else baseline
            renderer.draw_text(context, x - width / 2, height, text, fonts[bold], 0)
            context.restore()


def boxes(
    place: npt.NDArray[np.integer] | Floats, begin: Reals, end: Reals, row: tuple[float | Floats, float | Floats]
) -> Floats:
    """Return a rectangle for each (begin, end) along x, shape (num_boxes, 4, 2).

    place: y of each, such as its rank. row: where it reaches from and to along y, relative to that.
    """
    top, bottom = place + row[0], place + row[1]
    x = np.stack([begin, end, end, begin], axis=-1)
    y = np.stack([top, top, bottom, bottom], axis=-1)
    return np.stack([x, y], axis=-1)


def draw_boxes(axes: Axes, shapes: Floats, label: str, **style: Any) -> None:
    """Add rectangles to `axes` as one collection, which is much faster than as many patches."""
    axes.add_collection(PolyCollection(list(shapes), label=label, **style), autolim=False)


def points_per_unit(axes: Axes) -> tuple[float, float]:
    """Return the points (1/72 inch) that one unit along x and one along y take on the page."""
    box = axes.get_position()
    width, height = axes.figure.bbox.width * box.width, axes.figure.bbox.height * box.height
    points = 72 / axes.figure.dpi
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    return width * points / abs(right - left), height * points / abs(top - bottom)


def strided(count: int, needed: float, room: float) -> range:
    """Return the indices of the items to label, if an item has `room` points and a label needs `needed` points."""
    stride = next(stride for stride in (1, 2, 4, 8, 16, 32, 64, 128) if stride * room >= needed or stride == 128)
    return range(0, count, stride)


def shifted(axes: Axes, transform: Transform, x: float = 0.0, y: float = 0.0) -> Transform:
    """Return a transform that also shifts by `x` points to the right and `y` points upwards."""
    return transform + ScaledTranslation(x / 72, y / 72, axes.figure.dpi_scale_trans)
