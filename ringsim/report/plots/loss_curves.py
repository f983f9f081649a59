"""Loss curves that lie on one another, and can be told apart all the same."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from ringsim.report.plots.algorithm_styles import series_style

_WIDEST, _THINNEST = 5.0, 1.2  # points
_MARKS = 8  # on each curve


def draw_loss_curves(axes: Axes, curves: Mapping[str, Sequence[float]]) -> None:
    """Draws each curve against its step, the first the widest and below the others; none has the marks of another.

    The marks stand at other steps on each curve, so that those of equal curves do not hide one another.
    """
    for number, (name, losses) in enumerate(curves.items()):
        style, marker = series_style(number)
        width = max(_THINNEST, _WIDEST - 1.3 * number)
        stride = max(1, len(losses) // _MARKS)
        axes.plot(range(1, len(losses) + 1), losses, linestyle=style.stroke, color=style.colour, linewidth=width,
                  marker=marker, markersize=max(5.0, width + 1.5), markeredgewidth=0.6, markeredgecolor=style.ink,
                  markevery=(number * stride // max(len(curves), 1) % stride, stride), label=name)  # fmt: skip
    axes.set_xlabel("step")
