"""A colour and a stroke for each algorithm, the same in every picture: a family has a hue."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ringsim.report.plots.palette import BLACK, BLUE, DARK_GREY, GREY, ORANGE, SKY, VERMILLION, WHITE


class Style(NamedTuple):
    """The colour of an algorithm's area, and the stroke of its line."""

    colour: str
    stroke: Any  # as matplotlib takes a line's style

    @property
    def ink(self) -> str:
        """Black or white, whichever can be read on the colour."""
        red, green, blue = (int(self.colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return BLACK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else WHITE


_SOLID, _DASHED, _DOTTED, _DASH_DOT = "-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2))
_STYLES = {
    "ring": Style(BLUE, _SOLID),
    "bidirectional_ring": Style(SKY, _DASHED),
    "multi_ring": Style("#0B3C5D", _DASH_DOT),
    "gloo_ring": Style("#5E9BBF", _DOTTED),
    "halving_doubling": Style("#009E73", _SOLID),
    "recursive_doubling": Style("#8FD9BF", _DASHED),
    "double_binary_tree": Style(ORANGE, _SOLID),
    "binomial_tree": Style("#F0E442", _DASHED),
    "direct": Style(VERMILLION, _SOLID),
    "two_shot": Style("#F4B393", _DASHED),
    "hierarchical": Style("#7B3F98", _SOLID),
    "torus": Style("#CC79A7", _DASHED),
    "parameter_server": Style(GREY, _SOLID),
    "naive_ring": Style(DARK_GREY, _DASHED),
}
_USERS_OWN = (Style(BLACK, _SOLID), Style("#8C510A", _DASH_DOT), Style("#A6611A", _DOTTED), Style("#B2182B", _DASHED))


def styles_of(algorithms: Sequence[str]) -> dict[str, Style]:
    """Returns a style for each; users' own algorithms get those that are kept for them, in turn."""
    own = [name for name in algorithms if name not in _STYLES]
    return {name: _STYLES.get(name) or _USERS_OWN[own.index(name) % len(_USERS_OWN)] for name in algorithms}
