"""Rectangles in bulk, in the rows of ranks, and the room that they have on the page."""

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

Floats = npt.NDArray[np.float64]
Reals = npt.NDArray[np.floating]


def boxes(
    place: npt.NDArray[np.integer] | Floats, begin: Reals, end: Reals, row: tuple[float | Floats, float | Floats]
) -> Floats:
    """Returns a rectangle for each (begin, end) along x, shape (num_boxes, 4, 2).

    place: y of each, such as its rank. row: where it reaches from and to along y, relative to that.
    """
    top, bottom = place + row[0], place + row[1]
    x = np.stack([begin, end, end, begin], axis=-1)
    y = np.stack([top, top, bottom, bottom], axis=-1)
    return np.stack([x, y], axis=-1)


def draw_boxes(axes: Axes, shapes: Floats, label: str, **style: Any) -> None:
    """Adds rectangles to `axes` as one collection, which is much faster than as many patches."""
    axes.add_collection(PolyCollection(list(shapes), label=label, **style), autolim=False)


def points_per_unit(axes: Axes) -> tuple[float, float]:
    """Returns the points (1/72 inch) that one unit along x and one along y take on the page."""
    box = axes.get_position()
    width, height = axes.figure.bbox.width * box.width, axes.figure.bbox.height * box.height
    points = 72 / axes.figure.dpi
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    return width * points / abs(right - left), height * points / abs(top - bottom)
