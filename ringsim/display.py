"""`Displayed`: results that draw themselves, and show themselves in notebooks.

How a result is drawn is known at the top, in `ringsim.report`, which imports the results, so that they cannot import
it. They ask here for whoever draws, and `ringsim/__init__`, which is loaded before any part of the package, says who
that is. Matplotlib is not imported before something is drawn.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Display(NamedTuple):
    """Who draws a result as a matplotlib Figure, in a style or None; and who writes it as HTML, if there is such."""

    figure: Callable[[Any, str | None], "Figure"]
    html: Callable[[Any], str | None]


_display: list[Display] = []


def set_display(display: Display) -> None:
    """Says who draws the results from now on."""
    _display[:] = [display]


class Displayed:
    """A result with a picture, and perhaps a form in HTML."""

    __slots__ = ()

    def plot(self, *, style: str | None = None) -> "Figure":
        """Returns a picture of it, as `ringsim.plot` does; style: light, dark, or one of matplotlib's."""
        return _display[0].figure(self, style)

    def _repr_html_(self) -> str | None:
        """What a notebook shows."""
        return _display[0].html(self)
