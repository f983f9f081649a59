"""`palette`: the colours of the pictures, made of the paper and the ink that matplotlib's settings name.

The hues are Okabe and Ito's, told apart by the colour-blind, and chosen to differ in lightness for print. The greys lie
between ink and paper, so a page follows any style of matplotlib, light or dark.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from matplotlib import rcParams
from matplotlib.colors import to_hex, to_rgb

_WHITE, _BLACK = "#FFFFFF", "#000000"
_MIDDLE = 0.5  # of lightness: paper that is darker takes the hues for dark paper


class Palette(NamedTuple):
    """Paper, ink and what lies between them, then the hues; each as #RRGGBB.

    sky: a lighter neighbour of `blue`. peach: likewise of `vermillion`.
    """

    paper: str
    ink: str
    dark_grey: str
    grey: str
    light_grey: str
    pale_grey: str
    blue: str
    sky: str
    orange: str
    vermillion: str
    peach: str

    @property
    def is_dark(self) -> bool:
        """Whether light is written on dark."""
        return lightness(self.paper) < _MIDDLE


# Sky blue is lightened, on light paper, so that it differs from blue and orange in grey.
_ON_LIGHT = {"blue": "#0072B2", "sky": "#8ACBF2", "orange": "#E69F00", "vermillion": "#D55E00", "peach": "#FBCBA5"}
_ON_DARK = {"blue": "#2383C4", "sky": "#A6DAF8", "orange": "#E69F00", "vermillion": "#F0723A", "peach": "#8A4A2C"}


def palette() -> Palette:
    """Return the colours for matplotlib's settings as they are now."""
    return _palette(_hex(rcParams["axes.facecolor"], _WHITE), _hex(rcParams["text.color"], _BLACK))


@cache
def _palette(paper: str, ink: str) -> Palette:
    greys = (mixed(ink, paper, share) for share in (0.267, 0.604, 0.851, 0.949))
    return Palette(paper, ink, *greys, **(_ON_DARK if lightness(paper) < _MIDDLE else _ON_LIGHT))


def _hex(colour: str, otherwise: str) -> str:
    return otherwise if colour in ("none", "auto", "inherit") else to_hex(colour).upper()


def mixed(first: str, second: str, share: float) -> str:
    """Return the first colour with so large a share of the second in it."""
    return to_hex(
        tuple(np.average([to_rgb(first), to_rgb(second)], axis=0, weights=[1 - share, share]).tolist())
    ).upper()


def lightness(colour: str) -> float:
    """Return the luma of a colour, 0 to 1: how light it is when printed in grey (ITU-R BT.601)."""
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def ink_on(colour: str) -> str:
    """Return black or white, whichever can be read on the colour."""
    return _BLACK if lightness(colour) > _MIDDLE else _WHITE


def page_colours() -> dict[str, str]:
    """Return for each colour of the palette on a light page its counterpart on a dark one, as #rrggbb."""
    light, dark = (_palette(paper, ink) for paper, ink in (("#FFFFFF", "#1B1B1B"), ("#14171A", "#E8E8E8")))
    return {one.lower(): other.lower() for one, other in zip(light, dark, strict=True)}
