"""A colour, a stroke and a hatch for each algorithm, the same in every picture: a family has a hue.

Colours with the same stroke and hatch differ for the colour-blind too, by a CIELAB distance of at least 20, and differ
as much from the paper: tests/ringsim/report/test_colours.py simulates them.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from ringsim.report.plots.style import ink_on, mixed, page_colours, palette


class Texture(Enum):
    """How a line is dashed, and an area hatched: what tells styles apart beside their colours."""

    SOLID = ("-", "")
    DASHED = ((0, (5, 1.5)), "//")
    DASH_DOT = ((0, (5, 1.2, 1.2, 1.2)), "\\\\")
    DOTTED = ((0, (1.2, 1.2)), "..")


class Style(NamedTuple):
    """The colour of an algorithm's area and line, and their texture."""

    colour: str
    texture: Texture

    @property
    def stroke(self) -> Any:
        """Of its line, as matplotlib takes a line's style."""
        return self.texture.value[0]

    @property
    def ink(self) -> str:
        """Black or white, whichever can be read on the colour."""
        return ink_on(self.colour)

    @property
    def area(self) -> dict[str, Any]:
        """Of its area, as matplotlib takes a patch's properties; the hatch leaves what is written on it readable."""
        hatch_colour = mixed(self.colour, ink_on(self.ink), 0.4)
        return {"facecolor": self.colour, "hatch": self.texture.value[1] or None, "edgecolor": hatch_colour}


class _Look(NamedTuple):
    on_light: str
    on_dark: str
    texture: Texture


_LOOKS = {
    "ring": _Look("#0072B2", "#2383C4", Texture.SOLID),
    "bidirectional_ring": _Look("#63C0F7", "#9DCAEE", Texture.DASHED),
    "multi_ring": _Look("#0B3C5D", "#3A75A4", Texture.DASH_DOT),
    "gloo_ring": _Look("#3F88C5", "#6CB5E6", Texture.DOTTED),
    "halving_doubling": _Look("#1CAE82", "#2AC095", Texture.SOLID),
    "recursive_doubling": _Look("#18947E", "#61DAC2", Texture.DASHED),
    "double_binary_tree": _Look("#E69F00", "#E69F00", Texture.SOLID),
    "binomial_tree": _Look("#D6C21A", "#F0E442", Texture.DASHED),
    "direct": _Look("#CC5600", "#DD5C28", Texture.SOLID),
    "two_shot": _Look("#F4A582", "#F4A582", Texture.DASHED),
    "hierarchical": _Look("#A35BC4", "#CF92EB", Texture.DASH_DOT),
    "torus": _Look("#D17AA2", "#C9739F", Texture.DOTTED),
    "pairwise": _Look("#4B1596", "#311FF3", Texture.DASHED),
    "bruck": _Look("#21FC8D", "#64F805", Texture.DASH_DOT),
    "nccl_ring": _Look("#0C1598", "#1718C6", Texture.SOLID),
    "nccl_tree": _Look("#FD9D02", "#FEFEA3", Texture.DASH_DOT),
    "nccl": _Look("#000000", "#FFFFFF", Texture.SOLID),
    "nvls": _Look("#6A2501", "#A1250A", Texture.DOTTED),
    "parameter_server": _Look("#5A5A5A", "#D0CDCB", Texture.DOTTED),
    "naive_ring": _Look("#7A7A7A", "#9A9A9A", Texture.DASH_DOT),
}
_USERS_OWN = (
    _Look("#8C510A", "#A9743A", Texture.DASHED),
    _Look("#B2182B", "#DA4F58", Texture.DASH_DOT),
    _Look("#A68B00", "#C9A904", Texture.DOTTED),
)
_SERIES = sorted((*_LOOKS.values(), *_USERS_OWN), key=lambda look: list(Texture).index(look.texture))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def styles_of(algorithms: Sequence[str]) -> dict[str, Style]:
    """Return a style for each; users' own algorithms get those that are kept for them, in turn."""
    own = [name for name in algorithms if name not in _LOOKS]
    looks = {name: _LOOKS.get(name) or _USERS_OWN[own.index(name) % len(_USERS_OWN)] for name in algorithms}
    return {name: _style(look) for name, look in looks.items()}


def series_style(number: int) -> tuple[Style, str]:
    """Return the style and the marker of line `number`, for lines that are of no algorithm; no two alike below 147."""
    rounds, place = divmod(number, len(_SERIES))
    return _style(_SERIES[place]), MARKERS[(number + rounds) % len(MARKERS)]


def _style(look: _Look) -> Style:
    return Style(look.on_dark if palette().is_dark else look.on_light, look.texture)


def dark_colours() -> dict[str, str]:
    """Return for each colour on a light page its counterpart on a dark one, as #rrggbb."""
    return {look.on_light.lower(): look.on_dark.lower() for look in _SERIES} | page_colours()
