"""Short texts in bulk: a thousand numbers drawn by one artist cost what ten `Axes.text` do."""

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.font_manager import FontProperties

Label = tuple[float, float, str, str, bool]  # x, y (the centre of a digit's height), text, colour, bold


def draw_labels(axes: Axes, labels: Sequence[Label], size: float) -> None:
    """Writes each text centred at its (x, y) in data coordinates, `size` points high."""
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
        """What is written."""
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
