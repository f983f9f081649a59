"""Short texts in bulk: a thousand numbers drawn as one collection cost what ten `Axes.text` do."""

from collections.abc import Sequence
from functools import cache

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

Label = tuple[float, float, str, str, bool]  # x, y (the centre of a digit's height), text, colour, bold


def draw_labels(axes: Axes, labels: Sequence[Label], size: float) -> None:
    """Writes each text centred at its (x, y) in data coordinates, `size` points high."""
    if not labels:
        return
    shapes = PathCollection(
        [_outline(text, size, bold) for _, _, text, _, bold in labels],
        offsets=[(x, y) for x, y, *_ in labels],
        offset_transform=axes.transData,
        facecolors=[colour for _, _, _, colour, _ in labels],
        linewidths=0,
        clip_on=False,
        zorder=4,
    )
    shapes.set_transform(Affine2D().scale(axes.figure.dpi / 72))
    axes.add_collection(shapes, autolim=False)


@cache
def _outline(text: str, size: float, bold: bool) -> Path:
    path = TextPath((0, 0), text, size, prop=FontProperties(weight="bold" if bold else "normal"))
    width = float(path.vertices[:, 0].max())  # get_extents() would solve the curves, at ten times the cost
    return path.transformed(Affine2D().translate(-width / 2, -_digit_height(size) / 2))


@cache
def _digit_height(size: float) -> float:
    return float(TextPath((0, 0), "8", size).vertices[:, 1].max())
