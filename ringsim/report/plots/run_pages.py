"""The pages of one run: all its pictures, its lanes alone, or what its schedule does without a network."""

import textwrap

from matplotlib.figure import Figure, SubFigure

from ringsim.analysis import (
    ChunkStates,
    RunView,
    check_few_ranks,
    format_troubles,
    lay_out_graph,
    slow_pairs,
)
from ringsim.report.network_table import named_network
from ringsim.report.plots.chunk_grid import draw_chunk_grid, grid_shape, is_striped
from ringsim.report.plots.graph import draw_graph
from ringsim.report.plots.lanes import Lanes, draw_lanes, lanes_height
from ringsim.report.plots.sizes import draw_sizes
from ringsim.report.plots.style import new_figure, palette, points
from ringsim.schedule import Schedule
from ringsim.simulation import Timeline
from ringsim.units import format_size, format_time, plural

# Inches, here and below, with matplotlib's own font size.
WIDTH, _LEFT, _LEFT_OF_HOSTS, _RIGHT = 14.0, 0.8, 1.6, 0.25
_TITLE_HEIGHT, _LINE_HEIGHT, _SIZES_HEIGHT = 0.75, 0.22, 3.8
_PANEL_GAP = (0.12, 0.42)  # across and down
_SIZES_SHARE, _GRAPH_GAP, _GRAPH_WIDTH = 0.7, 0.03, 4.0  # the first two of the width
_NOTE_LENGTH = 170  # characters


def draw_run_page(view: RunView) -> Figure:
    """Draw lanes, below them the chunk grid, at the bottom time against size and who sends to whom."""
    lanes = Lanes.of_view(view)
    left = _LEFT_OF_HOSTS if lanes.groups else _LEFT
    notes = textwrap.wrap(format_troubles(view.troubles), _NOTE_LENGTH)
    title_height = _TITLE_HEIGHT + _LINE_HEIGHT * len(notes)
    height, above = lanes_height(lanes)
    grid_height = _grid_height(view.states)
    heights = (title_height, height, grid_height, _SIZES_HEIGHT)
    figure = new_figure(WIDTH, sum(heights))
    head, top, middle, bottom = figure.subfigures(4, 1, squeeze=False, height_ratios=heights)[:, 0]
    _write_title(head, view, notes, title_height)
    draw_lanes(top.subplots(gridspec_kw=_margins(height, above, 0.5, left)), lanes)
    stopped = ": of the transfers before the run stopped" if view.stall else ""
    draw_chunk_grid(middle, view.states, margins=_margins(grid_height, 0.5, 0.3) | _panel_gaps(view.states),
                    heading=f"Contributions that each rank holds of each chunk{stopped}")  # fmt: skip
    edges = _margins(_SIZES_HEIGHT, 0.4, 0.6)
    border = edges["left"] + _SIZES_SHARE * (edges["right"] - edges["left"])
    draw_sizes(bottom.subplots(gridspec_kw=edges | {"right": border}), view)
    if len(view.timeline):
        place = edges | {"left": border + _GRAPH_GAP, "bottom": 0.2 / _SIZES_HEIGHT}
        _draw_graph(bottom, view.schedule, view, place)
    return figure


def draw_timeline(timeline: Timeline) -> Figure:
    """Draw the lanes of a run, and what of it never ends. Raises ValueError for more ranks than a picture shows."""
    check_few_ranks(timeline.num_ranks)
    lanes = Lanes.of_timeline(timeline)
    lanes_part, above = lanes_height(lanes)
    title = 0.45
    height = lanes_part + title
    figure = new_figure(WIDTH, height)
    edges = _margins(height, above + title, 0.5)
    until = "never finishes" if lanes.stall else f"done after {format_time(timeline.time_s)}"
    text = f"{timeline.num_ranks} ranks   ·   {len(timeline)} transfers   ·   {until}"
    colours = palette()
    figure.text(edges["left"], 1 - 0.25 / height, text, fontsize=points(10), va="center",
                color=colours.vermillion if lanes.stall else colours.dark_grey)  # fmt: skip
    draw_lanes(figure.subplots(gridspec_kw=edges), lanes)
    return figure


def draw_schedule(schedule: Schedule) -> Figure:
    """Draw the chunk grid, and below it who sends to whom. Raises ValueError for more ranks than a picture shows."""
    check_few_ranks(schedule.num_ranks)
    states = ChunkStates.of(schedule)
    heights = [0.5, _grid_height(states), *([_SIZES_HEIGHT] if schedule.num_transfers else [])]
    figure = new_figure(WIDTH, sum(heights))
    head, middle, *bottom = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    edges = _margins(heights[1], 0.5, 0.3)
    text = f"{schedule}, {plural(schedule.num_steps, 'step')}"
    head.text(edges["left"], 0.4, text, fontsize=points(15), fontweight="bold", va="center")
    draw_chunk_grid(middle, states, margins=edges | _panel_gaps(states))
    for part in bottom:
        right = {"right": edges["left"] + _GRAPH_WIDTH / WIDTH}
        _draw_graph(part, schedule, None, _margins(_SIZES_HEIGHT, 0.4, 0.2) | right)
    return figure


def _draw_graph(figure: SubFigure, schedule: Schedule, view: RunView | None, place: dict[str, float]) -> None:
    """Draw who sends to whom."""
    axes = figure.subplots(gridspec_kw=place)
    axes.set_title("Messages between ranks", loc="left", fontsize=points(11), fontweight="bold")
    draw_graph(axes, *((view.graph, slow_pairs(view.troubles)) if view else (lay_out_graph(schedule), ())))


def _grid_height(states: ChunkStates) -> float:
    """Return the height of the chunk grid with what stands around it."""
    num_rows, _ = grid_shape(states)
    return 1.0 + num_rows * _panel_height(states) + (num_rows - 1) * _PANEL_GAP[1]


def _panel_height(states: ChunkStates) -> float:
    return min(max(0.24 * states.num_ranks, 1.1), 3.0 if is_striped(states.num_ranks, states.num_chunks) else 1.6)


def _margins(height: float, above: float, below: float, left: float = _LEFT) -> dict[str, float]:
    """Return margins as fractions of a figure that is `height` inches high, as matplotlib wants them."""
    return {"left": left / WIDTH, "right": 1 - _RIGHT / WIDTH, "top": 1 - above / height, "bottom": below / height}


def _panel_gaps(states: ChunkStates) -> dict[str, float]:
    """Return the gaps between panels as fractions of a panel."""
    _, num_columns = grid_shape(states)
    panel_width = (WIDTH - _LEFT - _RIGHT - (num_columns - 1) * _PANEL_GAP[0]) / num_columns
    return {"wspace": _PANEL_GAP[0] / panel_width, "hspace": _PANEL_GAP[1] / _panel_height(states)}


def _write_title(figure: SubFigure, view: RunView, notes: list[str], height: float) -> None:
    left, schedule, colours = _LEFT / WIDTH, view.schedule, palette()
    ranks, chunks = plural(schedule.num_ranks, "rank"), plural(schedule.num_chunks, "chunk")
    done = f"done after {format_time(view.timeline.time_s)}, {plural(schedule.num_steps, 'step')}"
    if view.stall:
        done = f"never finishes: {view.stall.num_unfinished} of {view.stall.num_transfers} transfers hang"
    name = f"{schedule.collective.value}, algorithm {schedule.algorithm}"
    title = f"{name}, {ranks}, {format_size(view.size_bytes)} in {chunks}"
    figure.text(left, 1 - 0.28 / height, title, fontsize=points(15), fontweight="bold", va="center")
    costs = "   ·   ".join([*named_network(view.network.as_dict()), done])
    figure.text(left, 1 - 0.61 / height, costs, fontsize=points(10), va="center",
                color=colours.vermillion if view.stall else colours.dark_grey)  # fmt: skip
    for number, line in enumerate(notes, 1):
        figure.text(left, 1 - (0.61 + _LINE_HEIGHT * number) / height, line, fontsize=points(9), va="center",
                    color=colours.vermillion)  # fmt: skip
