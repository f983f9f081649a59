"""The pages of one run: all its pictures, its lanes alone or next to measured ones, or what its schedule does."""

import textwrap
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from ringsim.analysis import (
    ChunkStates,
    GraphLayout,
    GraphShape,
    RunView,
    check_few_ranks,
    format_slow_parts,
    lay_out_graph,
    slow_pairs,
)
from ringsim.calibration import RECORD_NOTE, ComparedRun
from ringsim.report.network_table import named_network
from ringsim.report.plots.charts import Floats, points_per_unit, set_axis
from ringsim.report.plots.chunk_grid import draw_chunk_grid, grid_shape, is_striped
from ringsim.report.plots.lanes import Lanes, draw_lanes, lanes_height
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
    notes = textwrap.wrap(format_slow_parts(view.slow_parts), _NOTE_LENGTH)
    title_height = _TITLE_HEIGHT + _LINE_HEIGHT * len(notes)
    height, above = lanes_height(lanes)
    grid_height = _grid_height(view.states)
    heights = (title_height, height, grid_height, _SIZES_HEIGHT)
    figure = new_figure(WIDTH, sum(heights))
    head, top, middle, bottom = figure.subfigures(4, 1, squeeze=False, height_ratios=heights)[:, 0]
    _write_title(head, view, notes, title_height)
    draw_lanes(top.subplots(gridspec_kw=_margins(height, above, 0.5, left)), lanes)
    stopped = ": of the transfers before the run stopped" if view.blocked else ""
    draw_chunk_grid(middle, view.states, margins=_margins(grid_height, 0.5, 0.3) | _panel_gaps(view.states),
                    heading=f"Contributions that each rank holds of each chunk{stopped}")  # fmt: skip
    edges = _margins(_SIZES_HEIGHT, 0.4, 0.6)
    border = edges["left"] + _SIZES_SHARE * (edges["right"] - edges["left"])
    draw_sizes(bottom.subplots(gridspec_kw=edges | {"right": border}), view)
    if len(view.timeline):
        place = edges | {"left": border + _GRAPH_GAP, "bottom": 0.2 / _SIZES_HEIGHT}
        _draw_graph(bottom, view.schedule, view, place)
    return figure


def draw_compared_run(compared: ComparedRun) -> Figure:
    """Draw the lanes of a recorded run, predicted above measured, on one axis of time."""
    run, timelines = compared.run, [view.timeline for view in compared.views]
    both = [Lanes.of_view(view) for view in compared.views]
    for lanes in both:
        lanes.share_axis(min(one.begin_s for one in both), max(line.time_s for line in timelines))
    sizes = [lanes_height(lanes) for lanes in both]
    heights = [_TITLE_HEIGHT + 2 * _LINE_HEIGHT, *(height for height, _ in sizes)]
    figure = new_figure(WIDTH, sum(heights))
    head, *parts = figure.subfigures(3, 1, squeeze=False, height_ratios=heights)[:, 0]
    left = _LEFT_OF_HOSTS if both[0].groups else _LEFT
    sides = zip(("predicted", "measured"), timelines, strict=True)
    names = [f"{side} {format_time(line.time_s)}" for side, line in sides]
    for part, lanes, (height, above), name in zip(parts, both, sizes, names, strict=True):
        draw_lanes(part.subplots(gridspec_kw=_margins(height, above, 0.5, left)), lanes, name)
    call = f"{run.collective.value} {run.algorithm}, {format_size(run.size_bytes)} on {run.num_ranks} ranks"
    title = f"{call} over {run.transport}: {', '.join(names)} (error {compared.error:+.1%})"
    low, high = format_time(min(run.runs_s)), format_time(max(run.runs_s))
    runs = f"measured: the median of {len(run.runs_s)} runs, which took {low} to {high}"
    costs = f"network {compared.predicted.network.name}   ·   {runs}"
    _write_head(head, heights[0], title, costs, textwrap.wrap(RECORD_NOTE, _NOTE_LENGTH))
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
    until = "never finishes" if lanes.blocked else f"done after {format_time(timeline.time_s)}"
    text = f"{timeline.num_ranks} ranks   ·   {len(timeline)} transfers   ·   {until}"
    colours = palette()
    figure.text(edges["left"], 1 - 0.25 / height, text, fontsize=points(10), va="center",
                color=colours.vermillion if lanes.blocked else colours.dark_grey)  # fmt: skip
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
    draw_graph(axes, *((view.graph, slow_pairs(view.slow_parts)) if view else (lay_out_graph(schedule), ())))


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
    schedule, vermillion = view.schedule, palette().vermillion
    ranks, chunks = plural(schedule.num_ranks, "rank"), plural(schedule.num_chunks, "chunk")
    done = f"done after {format_time(view.timeline.time_s)}, {plural(schedule.num_steps, 'step')}"
    if view.blocked:
        done = f"never finishes: {view.blocked.num_unfinished} of {view.blocked.num_transfers} transfers hang"
    name = f"{schedule.collective.value}, algorithm {schedule.algorithm}"
    title = f"{name}, {ranks}, {format_size(view.size_bytes)} in {chunks}"
    costs = "   ·   ".join([*named_network(view.network.as_dict()), done])
    _write_head(figure, height, title, costs, notes, (vermillion if view.blocked else "", vermillion))


def _write_head(
    figure: SubFigure, height: float, title: str, costs: str, notes: Sequence[str], colours: tuple[str, str] = ("", "")
) -> None:
    """Write the title of a page, below it a line on network and time, `costs`, and notes, one per line.

    height: of the figure, in inches. colours: of `costs` and of the notes; "" for grey.
    """
    left, grey = _LEFT / WIDTH, palette().dark_grey
    figure.text(left, 1 - 0.28 / height, title, fontsize=points(15), fontweight="bold", va="center")
    figure.text(left, 1 - 0.61 / height, costs, fontsize=points(10), va="center", color=colours[0] or grey)
    for number, line in enumerate(notes, 1):
        place = left, 1 - (0.61 + _LINE_HEIGHT * number) / height
        figure.text(*place, line, fontsize=points(9), va="center", color=colours[1] or grey)


_NARROW = 0.15  # of the axis: a regime that is narrower has no room for its name


def draw_sizes(axes: Axes, view: RunView) -> None:
    """Draw simulated time against size, the closed form over it, the two regimes and the size of this run."""
    axes.set_title("Time against size", loc="left", fontsize=points(11), fontweight="bold")
    sizes = view.by_size.sizes_bytes
    if not len(sizes):
        _say(axes, "the run never finishes at any size")
        return
    set_axis(axes.xaxis, "size of the whole data", format_size, log_base=2)
    axes.set_xlim(sizes[0], sizes[-1])
    if not view.by_size.times_s.min() > 0:
        _say(axes, "no time passes")
        return
    set_axis(axes.yaxis, "time", format_time, log_base=10)
    axes.grid(visible=False)
    shortest, longest = view.by_size.times_s.min(), view.by_size.times_s.max() * 1.5
    axes.set_ylim(shortest / (longest / shortest) ** 0.25, longest)  # a fifth of the height is for the regimes' names
    regimes = _draw_regimes(axes, view)
    handles = [*_draw_times(axes, view), *regimes]
    if view.blocked:
        text = f"with {format_size(float(2 * sizes[-1]))} it never finishes"
        axes.annotate(text, (sizes[-1], view.by_size.times_s[-1]), (-6, 6), textcoords="offset points", ha="right",
                      fontsize=points(9), color=palette().vermillion,
                      bbox={"facecolor": palette().paper, "edgecolor": "none", "pad": 1.5})  # fmt: skip
    axes.legend(handles=handles, loc="upper left", fontsize=points(8), framealpha=1, edgecolor=palette().paper)


def _say(axes: Axes, why: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_yticks([])
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", fontsize=points(10))


def _draw_times(axes: Axes, view: RunView) -> list[Line2D]:
    sizes, run_s, colours = view.by_size.sizes_bytes, view.timeline.time_s, palette()
    dots: dict[str, Any] = {"marker": "o", "markersize": 5, "markerfacecolor": colours.blue,
                            "markeredgecolor": colours.blue}  # fmt: skip
    lines = axes.plot(sizes, view.by_size.times_s, color=colours.sky, linewidth=4, **dots, label="simulated")
    if (formula_s := view.by_size.closed_form_s) is not None:
        lines += axes.plot(sizes, formula_s, "--", color=colours.vermillion, linewidth=1.6, label="closed form")
    if sizes[0] <= view.size_bytes <= sizes[-1]:
        name = f"this run: {format_size(view.size_bytes)} in {format_time(run_s)}"
        diamond: dict[str, Any] = {"markersize": 9, "markeredgecolor": colours.ink, "markeredgewidth": 1.8, "zorder": 5}
        lines += axes.plot([view.size_bytes], [run_s], "D", color=colours.paper, **diamond, clip_on=False, label=name)
    return lines


def _draw_regimes(axes: Axes, view: RunView) -> list[Line2D]:
    """Draw the time of 0 bytes and the crossover; name the regimes, latency-bound below it and bandwidth-bound above.

    Without a crossover there is one regime alone.
    """
    (first, last), colours, lines = axes.get_xlim(), palette(), []
    floor_s, crossover = view.by_size.floor_s, view.by_size.crossover_bytes
    if floor_s > 0:
        text = f"0 bytes take {format_time(floor_s)}"
        lines.append(axes.axhline(floor_s, color=colours.dark_grey, linestyle=":", linewidth=1.2, label=text))
    border = last if floor_s > 0 else first
    if crossover is not None:
        border = float(np.clip(crossover, first, last))
        axes.axvspan(first, border, color=colours.pale_grey, linewidth=0)
        text = f"crossover: {format_size(crossover)} take twice as long"
        lines.append(axes.axvline(crossover, color=colours.dark_grey, linewidth=1, label=text))
    for name, low, high in (("latency-bound", first, border), ("bandwidth-bound", border, last)):
        if np.log(high / low) > _NARROW * np.log(last / first):
            axes.text(float(np.sqrt(low * high)), 0.03, name, transform=axes.get_xaxis_transform(),
                      fontsize=points(9), color=colours.dark_grey, ha="center", va="bottom")  # fmt: skip
    return lines


_LINK_POINTS = 16
_FEW_PAIRS = 40  # up to so many have arrows
_SMALLEST_TEXT = 5.0  # points


def draw_graph(axes: Axes, layout: GraphLayout, slow: Collection[tuple[int, int]] = ()) -> None:
    """Draw the ranks, and a link between those that send to each other, with an arrow where only one does.

    slow: pairs in another colour.
    """
    width = np.ptp(layout.places[:, 0])
    sideways = (0.03, 0.97) if width else (0.03 - 0.5, 0.97 - 0.5)
    axes.set(xlim=sideways, ylim=(0.97, 0.03), aspect="auto" if layout.shape is GraphShape.TREE else "equal")
    axes.set_axis_off()
    axes.apply_aspect()
    _draw_hosts(axes, layout)
    _draw_links(axes, layout, slow)
    _draw_ranks(axes, layout)


def _draw_hosts(axes: Axes, layout: GraphLayout) -> None:
    colours = palette()
    for box in layout.hosts:
        corner, size = (box.left, box.top), (box.right - box.left, box.bottom - box.top)
        style: dict[str, Any] = {"facecolor": colours.pale_grey, "edgecolor": colours.light_grey, "zorder": 0.5}
        axes.add_patch(Rectangle(corner, *size, **style))
        axes.text(box.left + 0.01, box.top + 0.01, box.name, fontsize=points(7), va="top", color=colours.dark_grey)


def _links(layout: GraphLayout, *shares: float) -> Floats:
    """Return the places on each link that are these shares of the way from its sender, (num_pairs, num_shares, 2)."""
    way = np.array(shares)[:, None]
    begin, end = (layout.places[layout.pairs[:, [column]]] for column in (0, 1))
    return np.asarray((1 - way) ** 2 * begin + 2 * way * (1 - way) * layout.bends[:, None] + way**2 * end)


def _draw_links(axes: Axes, layout: GraphLayout, slow: Collection[tuple[int, int]]) -> None:
    colours, pairs = palette(), list(map(tuple, layout.pairs.tolist()))
    is_slow = np.array([pair in slow for pair in pairs], dtype=np.bool_)
    lines = _links(layout, *np.linspace(0, 1, _LINK_POINTS).tolist())
    faint = min(max(60 / max(len(pairs), 1), 0.12), 1.0)
    alike: dict[str, Any] = {"colors": colours.grey, "linewidths": 1.1, "zorder": 1, "alpha": faint}
    marked: dict[str, Any] = {"colors": colours.vermillion, "linewidths": 2.0, "zorder": 2, "linestyles": "--"}
    for name, rows, style in (("pairs", ~is_slow, alike), ("slow pairs", is_slow, marked)):
        axes.add_collection(LineCollection(list(lines[rows]), label=name, clip_on=False, **style), autolim=False)
    for pair, (tail, tip) in zip(pairs, _links(layout, 0.54, 0.6).tolist(), strict=True):
        if len(pairs) <= _FEW_PAIRS and pair[::-1] not in pairs:
            colour = colours.vermillion if pair in slow else colours.dark_grey
            head = {"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0, "linewidth": 0.8}
            axes.annotate("", tip, tail, arrowprops=head)


def _draw_ranks(axes: Axes, layout: GraphLayout) -> None:
    """Draw a circle for each rank, with its number where there is room, else beside some of them."""
    places, hues = layout.places, palette()
    gaps = np.linalg.norm((places[:, None] - places) * points_per_unit(axes), axis=-1) + 1e9 * np.eye(len(places))
    radius = float(np.clip(0.3 * gaps.min(initial=80.0), 1.5, 11.0))  # points
    x, y = places.T
    axes.scatter(x, y, s=(2 * radius) ** 2, facecolor=hues.paper, edgecolors=hues.ink,
                 linewidths=max(0.8, radius / 5), zorder=3, label="ranks", clip_on=False)  # fmt: skip
    size = min(points(9), 1.1 * radius)
    centre: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 4}
    for rank, place in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        if size >= _SMALLEST_TEXT:
            axes.text(*place, str(rank), fontsize=size, **centre)
        elif rank % 8 == 0:
            out = np.array([place[0] - 0.5, 0.5 - place[1]])
            away = tuple((9 * out / (np.linalg.norm(out) or 1.0)).tolist())
            beside: dict[str, Any] = {"textcoords": "offset points", "color": hues.dark_grey, **centre}
            axes.annotate(str(rank), place, away, fontsize=points(7.5), **beside)
