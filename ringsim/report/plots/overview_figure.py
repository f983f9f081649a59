"""The page with all pictures of one schedule."""

import os
import textwrap

from matplotlib.figure import Figure, SubFigure

from ringsim.analysis import ChunkStates, Overview
from ringsim.report.network_table import named_network
from ringsim.report.plots.chunk_grid import draw_chunk_grid, grid_shape, is_striped
from ringsim.report.plots.lane_facts import LaneFacts
from ringsim.report.plots.lane_notes import title_pad
from ringsim.report.plots.lanes import draw_lanes
from ringsim.report.plots.pairs import draw_pairs
from ringsim.report.plots.palette import palette
from ringsim.report.plots.sizes import draw_sizes
from ringsim.report.plots.style import font_scale, new_figure, points, save_figure
from ringsim.units import format_size, format_time

# Inches, here and below, with matplotlib's own font size.
WIDTH, LEFT, LEFT_OF_HOSTS, RIGHT = 14.0, 0.8, 1.6, 0.25
_TITLE_HEIGHT, _LINE_HEIGHT, _SIZES_HEIGHT = 0.75, 0.22, 3.8
_PANEL_GAP = (0.12, 0.42)  # across and down
_SIZES_SHARE, _PAIRS_GAP = 0.7, 0.06  # of the width
_NOTE_LENGTH = 170  # characters


def save_overview(overview: Overview, path: str | os.PathLike[str], style: str | None = None) -> None:
    """Draws the page and writes it to `path`, as `save_figure` does and with its errors."""
    save_figure(lambda: draw_overview(overview), path, style)


def draw_overview(overview: Overview) -> Figure:
    """Draws the page: lanes, below them the chunk grid, at the bottom time against size and who sends to whom."""
    facts = LaneFacts.of_overview(overview)
    left = LEFT_OF_HOSTS if facts.group_of_rank else LEFT
    notes = textwrap.wrap(_notes(facts), _NOTE_LENGTH)
    title_height = _TITLE_HEIGHT + _LINE_HEIGHT * len(notes)
    lanes_height, above = lanes_height_of(facts)
    grid_height = grid_height_of(overview)
    heights = (title_height, lanes_height, grid_height, _SIZES_HEIGHT)
    figure = new_figure(WIDTH, sum(heights))
    head, top, middle, bottom = figure.subfigures(4, 1, squeeze=False, height_ratios=heights)[:, 0]
    _write_title(head, overview, notes, title_height)
    draw_lanes(top.subplots(gridspec_kw=margins(lanes_height, above, 0.5, left)), facts)
    draw_chunk_grid(middle, overview, margins=margins(grid_height, 0.5, 0.3) | panel_gaps(overview),
                    heading=_grid_heading(overview))  # fmt: skip
    _draw_bottom(bottom, overview, facts)
    return figure


def lanes_height_of(facts: LaneFacts) -> tuple[float, float]:
    """Returns the height of the lanes with what stands around them, and how much of it is above them."""
    above = 0.28 + title_pad(facts) / font_scale() / 72
    return above + 0.55 + min(max(0.52 * facts.layout.height, 0.8), 9.0), above


def _draw_bottom(figure: SubFigure, overview: Overview, facts: LaneFacts) -> None:
    edges = margins(_SIZES_HEIGHT, 0.4, 0.6)
    middle = edges["left"] + _SIZES_SHARE * (edges["right"] - edges["left"])
    draw_sizes(figure.subplots(gridspec_kw=edges | {"right": middle}), overview)
    beside = edges | {"left": middle + _PAIRS_GAP, "bottom": 0.2 / _SIZES_HEIGHT}
    if len(overview.timeline):
        draw_pairs(figure.subplots(gridspec_kw=beside), facts, overview.algorithm)


def grid_height_of(overview: Overview | ChunkStates) -> float:
    """Returns the height of the chunk grid with what stands around it."""
    num_rows, _ = grid_shape(overview)
    return 1.0 + num_rows * _panel_height(overview) + (num_rows - 1) * _PANEL_GAP[1]


def _panel_height(overview: Overview | ChunkStates) -> float:
    return min(max(0.24 * overview.num_ranks, 1.1), 3.0 if is_striped(overview) else 1.6)


def margins(height: float, above: float, below: float, left: float = LEFT) -> dict[str, float]:
    """Returns margins as fractions of a figure that is `height` inches high, as matplotlib wants them."""
    return {"left": left / WIDTH, "right": 1 - RIGHT / WIDTH, "top": 1 - above / height, "bottom": below / height}


def panel_gaps(overview: Overview | ChunkStates) -> dict[str, float]:
    """Returns the gaps between panels as fractions of a panel."""
    _, num_columns = grid_shape(overview)
    panel_width = (WIDTH - LEFT - RIGHT - (num_columns - 1) * _PANEL_GAP[0]) / num_columns
    return {"wspace": _PANEL_GAP[0] / panel_width, "hspace": _PANEL_GAP[1] / _panel_height(overview)}


def _grid_heading(overview: Overview) -> str:
    heading = "What each rank holds of each chunk"
    return f"{heading}: of what was applied before everything stopped" if overview.stall else heading


def _notes(facts: LaneFacts) -> str:
    """What is slow and what fails on this network, as a line below the title."""
    marks = facts.landmarks
    slow = [f"rank {rank} ({times:g} times slower)" for rank, times in marks.slow_ranks.items()]
    slow += [f"{name} ({how})" for name, how in marks.slow_links.items()]
    failing = [f"{name} at {format_time(at_s)}" for name, at_s in marks.failures.items()]
    parts = [f"slow: {', '.join(slow)}"] * bool(slow) + [f"fails: {', '.join(failing)}"] * bool(failing)
    return "   ·   ".join(parts)


def _write_title(figure: SubFigure, overview: Overview, notes: list[str], height: float) -> None:
    left = LEFT / WIDTH
    ranks = "1 rank" if overview.num_ranks == 1 else f"{overview.num_ranks} ranks"
    steps = "1 step" if overview.num_steps == 1 else f"{overview.num_steps} steps"
    chunks = "1 chunk" if overview.num_chunks == 1 else f"{overview.num_chunks} chunks"
    name = f"{overview.collective.value}, algorithm {overview.algorithm}"
    run = f"{ranks}, {format_size(overview.size_bytes)} in {chunks}"
    done = f"done after {format_time(overview.timeline.time_s)}, {steps}"
    if overview.stall:
        done = f"never finishes: {overview.stall.num_unfinished} of {overview.stall.num_transfers} transfers hang"
    costs = [*named_network(overview.network.as_dict()), done]
    colours = palette()
    figure.text(left, 1 - 0.28 / height, f"{name}, {run}", fontsize=points(15), fontweight="bold", va="center")
    figure.text(left, 1 - 0.61 / height, "   ·   ".join(costs), fontsize=points(10), va="center",
                color=colours.vermillion if overview.stall else colours.dark_grey)  # fmt: skip
    for number, line in enumerate(notes, 1):
        figure.text(left, 1 - (0.61 + _LINE_HEIGHT * number) / height, line, fontsize=points(9), va="center",
                    color=colours.vermillion)  # fmt: skip
