"""All colours: palettes, the style of each algorithm, and the colour of each rank.

The hues are Okabe and Ito's, safe for colour-blind readers. Styles with the same stroke and hatch differ by a CIELAB
distance of at least 20.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

WHITE, BLACK = "#FFFFFF", "#000000"
_MIDDLE = 0.5  # lightness below which paper counts as dark


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def mixed(first: str, second: str, share: float) -> str:
    """Return the first colour with a share of the second, as #RRGGBB."""
    parts = zip(_rgb(first), _rgb(second), strict=True)
    return "#" + "".join(f"{round(low + share * (high - low)):02X}" for low, high in parts)


def lightness(colour: str) -> float:
    """Return the luma, 0 to 1 (ITU-R BT.601)."""
    red, green, blue = _rgb(colour)
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255


def ink_on(colour: str) -> str:
    """Return black or white, which is readable on the colour."""
    return BLACK if lightness(colour) > _MIDDLE else WHITE


class Texture(Enum):
    """The dashes of lines and the hatch of areas."""

    SOLID = ("-", "")
    DASHED = ((0, (5, 1.5)), "//")
    DASH_DOT = ((0, (5, 1.2, 1.2, 1.2)), "\\\\")
    DOTTED = ((0, (1.2, 1.2)), "..")


class Style(NamedTuple):
    """The style of an algorithm's lines and areas."""

    colour: str
    texture: Texture

    @property
    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.texture.value[0]}

    @property
    def ink(self) -> str:
        return ink_on(self.colour)

    @property
    def area(self) -> dict[str, Any]:
        hatch_colour = mixed(self.colour, ink_on(self.ink), 0.4)
        return {"facecolor": self.colour, "hatch": self.texture.value[1] or None, "edgecolor": hatch_colour}


class _Look(NamedTuple):
    on_light: str
    on_dark: str
    texture: Texture


# A family of algorithms has a hue.
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


class Palette(NamedTuple):
    """Colours as #RRGGBB; sky and peach are lighter variants of blue and vermillion."""

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

    @classmethod
    def of(cls, paper: str, ink: str) -> "Palette":
        greys = (mixed(ink, paper, share) for share in (0.267, 0.604, 0.851, 0.949))
        return cls(paper, ink, *greys, **(_ON_DARK if lightness(paper) < _MIDDLE else _ON_LIGHT))

    @property
    def is_dark(self) -> bool:
        return lightness(self.paper) < _MIDDLE

    def styles_of(self, algorithms: Sequence[str]) -> dict[str, Style]:
        own = [name for name in algorithms if name not in _LOOKS]
        looks = {name: _LOOKS.get(name) or _USERS_OWN[own.index(name) % len(_USERS_OWN)] for name in algorithms}
        return {name: self._style(look) for name, look in looks.items()}

    def series_style(self, number: int) -> tuple[Style, str]:
        """Return style and marker of a curve; the first 147 differ."""
        rounds, place = divmod(number, len(_SERIES))
        return self._style(_SERIES[place]), MARKERS[(number + rounds) % len(MARKERS)]

    def _style(self, look: _Look) -> Style:
        return Style(look.on_dark if self.is_dark else look.on_light, look.texture)


# Sky blue is lightened, on light paper, so that it differs from blue and orange in grey.
_ON_LIGHT = {"blue": "#0072B2", "sky": "#8ACBF2", "orange": "#E69F00", "vermillion": "#D55E00", "peach": "#FBCBA5"}
_ON_DARK = {"blue": "#2383C4", "sky": "#A6DAF8", "orange": "#E69F00", "vermillion": "#F0723A", "peach": "#8A4A2C"}
# Paper and ink.
OWN_STYLES = {"light": (WHITE, BLACK), "dark": ("#14181D", "#E8EAED"), "page": (WHITE, "#1B1B1B")}
_DARK_PAGE = ("#14171A", "#E8E8E8")


def svg_colours() -> str:
    """Return CSS that adapts pictures of `inline_svg` to light or dark mode."""
    light, dark = Palette.of(*OWN_STYLES["page"]), Palette.of(*_DARK_PAGE)
    pairs = {look.on_light: look.on_dark for look in _SERIES} | dict(zip(light, dark, strict=True))
    variables = "".join(f" --x{one[1:]}: {other};".lower() for one, other in pairs.items())
    return f"@media (prefers-color-scheme: dark) {{ figure svg {{{variables} }} }}\n"


# Readable on white and on black; vermillion is reserved for faults.
_FEW_RANKS = ("#3B82C4", "#E69F00", "#1A9E77", "#C76AA5", "#62C3EE", "#D8C820", "#9A6A44", "#8A8A8A")
# For more ranks a scale from purple to yellow (viridis), in which neighbours look alike.
_SCALE = ("#56308C", "#3E5A96", "#2A7D8E", "#24A087", "#5AC364", "#AAD73C", "#F5E43C")


def contributor_colours(num_ranks: int) -> list[str]:
    """Return a colour per rank, as #RRGGBB.

    >>> contributor_colours(2)
    ['#3B82C4', '#E69F00']
    """
    if num_ranks <= len(_FEW_RANKS):
        return list(_FEW_RANKS[:num_ranks])
    places = [rank / (num_ranks - 1) * (len(_SCALE) - 1) for rank in range(num_ranks)]
    below = [min(int(place), len(_SCALE) - 2) for place in places]
    return [mixed(_SCALE[low], _SCALE[low + 1], place - low) for low, place in zip(below, places, strict=True)]
