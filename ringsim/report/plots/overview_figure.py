"""The page with all pictures of one schedule."""

import os
from pathlib import Path

from matplotlib.figure import Figure, SubFigure

from ringsim.analysis import Overview
from ringsim.files import atomic_file
from ringsim.report.network_table import describe_network
from ringsim.report.plots.chunk_grid import draw_chunk_grid, grid_shape, is_striped
from ringsim.report.plots.lane_layout import LaneLayout
from ringsim.report.plots.lanes import draw_lanes
from ringsim.report.plots.palette import DARK_GREY
from ringsim.report.plots.sizes import draw_sizes
from ringsim.units import format_size, format_time

_DPI = 144
# Inches, here and below; with the dpi about 2000 pixels wide.
_WIDTH, _TITLE_HEIGHT, _SIZES_HEIGHT = 14.0, 0.75, 3.8
_LEFT, _RIGHT = 0.8, 0.25
_PANEL_GAP = (0.12, 0.42)  # across, down


def save_overview(overview: Overview, path: str | os.PathLike[str]) -> None:
    """Draws the page and writes it to `path`, whose suffix says the format: png (also if none), pdf or svg.

    The file appears complete or not at all. Raises OSError if it cannot be written, ValueError for a
    suffix that is no picture's.
    """
    path = Path(path)
    with atomic_file(path) as file:
        draw_overview(overview).savefig(file, format=path.suffix[1:] or "png", dpi=_DPI)


def draw_overview(overview: Overview) -> Figure:
    """Draws the page: lanes above, the chunk grid below them, time against size at the bottom."""
    panel, (num_rows, _) = _panel_height(overview), grid_shape(overview)
    layout = LaneLayout.of(overview.timeline)
    lanes_height = 1.0 + min(max(0.52 * layout.height, 0.8), 9.0)
    grid_height = 1.0 + num_rows * panel + (num_rows - 1) * _PANEL_GAP[1]
    heights = (_TITLE_HEIGHT, lanes_height, grid_height, _SIZES_HEIGHT)
    figure = Figure(figsize=(_WIDTH, sum(heights)), dpi=_DPI)
    head, top, middle, bottom = figure.subfigures(4, 1, squeeze=False, height_ratios=heights)[:, 0]
    _write_title(head, overview)
    draw_lanes(top.subplots(gridspec_kw=_margins(lanes_height, 0.45, 0.5)), overview, layout)
    margins = _margins(grid_height, 0.5, 0.3)
    draw_chunk_grid(middle, overview, margins=margins | _gaps(overview, panel))
    draw_sizes(bottom.subplots(gridspec_kw=_margins(_SIZES_HEIGHT, 0.4, 0.6)), overview)
    return figure


def _panel_height(overview: Overview) -> float:
    return min(max(0.24 * overview.num_ranks, 1.1), 3.0 if is_striped(overview) else 1.6)


def _margins(height: float, above: float, below: float) -> dict[str, float]:
    """Margins as fractions of a figure that is `height` inches high, as matplotlib wants them."""
    return {"left": _LEFT / _WIDTH, "right": 1 - _RIGHT / _WIDTH, "top": 1 - above / height, "bottom": below / height}


def _gaps(overview: Overview, panel_height: float) -> dict[str, float]:
    """The gaps between panels as fractions of a panel."""
    _, num_columns = grid_shape(overview)
    panel_width = (_WIDTH - _LEFT - _RIGHT - (num_columns - 1) * _PANEL_GAP[0]) / num_columns
    return {"wspace": _PANEL_GAP[0] / panel_width, "hspace": _PANEL_GAP[1] / panel_height}


def _write_title(figure: SubFigure, overview: Overview) -> None:
    left = _LEFT / _WIDTH
    ranks = "1 rank" if overview.num_ranks == 1 else f"{overview.num_ranks} ranks"
    steps = "1 step" if overview.num_steps == 1 else f"{overview.num_steps} steps"
    chunks = "1 chunk" if overview.num_chunks == 1 else f"{overview.num_chunks} chunks"
    name = f"{overview.collective.value}, algorithm {overview.algorithm}"
    run = f"{ranks}, {format_size(overview.size_bytes)} in {chunks}"
    costs = [
        *describe_network(overview.network.as_dict()),
        f"done after {format_time(overview.timeline.time_s)}, {steps}",
    ]
    figure.text(left, 0.62, f"{name}, {run}", fontsize=15, fontweight="bold", va="center")
    figure.text(left, 0.18, "   ·   ".join(costs), fontsize=10, color=DARK_GREY, va="center")
