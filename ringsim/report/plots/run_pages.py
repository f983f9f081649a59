"""The pages of one run: an overview, its lanes, its schedule, and the use of its links."""

import textwrap
from collections.abc import Collection
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from ringsim import analysis
from ringsim.calibration import RECORD_NOTE, ComparedRun
from ringsim.network import NONE, Ints, Network
from ringsim.report.network_table import named_network
from ringsim.report.plots import charts
from ringsim.report.plots.chunk_grid import grid_panel
from ringsim.report.plots.lanes import Lanes, lanes_panel
from ringsim.report.plots.style import LEFT, WIDTH, Panel, head, new_figure, page_of, palette, points
from ringsim.schedule import Schedule
from ringsim.simulation import Timeline
from ringsim.units import format_size, format_time, plural, time_unit

_SIZES_HEIGHT, _GRAPH_WIDTH = 3.8, 4.0  # inches
_SIZES_SHARE, _GRAPH_GAP = 0.7, 0.03  # of the width
_NOTE_LENGTH = 170  # characters

Pairs = Collection[tuple[int, int]]


def draw_run_page(view: analysis.RunView) -> Figure:
    """Draw lanes, chunk grid, time against size, and the communication graph."""
    schedule, colours = view.schedule, palette()
    ranks, chunks = plural(schedule.num_ranks, "rank"), plural(schedule.num_chunks, "chunk")
    name = f"{schedule.collective.value}, algorithm {schedule.algorithm}"
    done = f"done after {format_time(view.timeline.time_s)}, {plural(schedule.num_steps, 'step')}"
    if view.blocked:
        done = f"never finishes: {view.blocked.num_unfinished} of {view.blocked.num_transfers} transfers hang"
    costs = "   ·   ".join([*named_network(view.network.as_dict()), done])
    notes = textwrap.wrap(analysis.format_slow_parts(view.slow_parts), _NOTE_LENGTH)
    title = head(
        f"{name}, {ranks}, {format_size(view.size_bytes)} in {chunks}",
        (costs, 10, colours.vermillion if view.blocked else colours.dark_grey),
        *((line, 9, colours.vermillion) for line in notes),
    )
    grid = grid_panel(view.states, ": of the transfers before the run stopped" if view.blocked else "")
    return page_of([title, lanes_panel(Lanes(view.timeline, view)), grid, _sizes_panel(view)])


def draw_compared_run(compared: ComparedRun) -> Figure:
    """Draw the lanes, predicted above measured, on one time axis."""
    run, timelines, grey = compared.run, [view.timeline for view in compared.views], palette().dark_grey
    both = [Lanes(view.timeline, view) for view in compared.views]
    for lanes in both:
        lanes.share_axis(min(one.begin_s for one in both), max(line.time_s for line in timelines))
    sides = zip(("predicted", "measured"), timelines, strict=True)
    names = [f"{side} {format_time(line.time_s)}" for side, line in sides]
    call = f"{run.collective.value} {run.algorithm}, {format_size(run.size_bytes)} on {run.num_ranks} ranks"
    low, high = format_time(min(run.runs_s)), format_time(max(run.runs_s))
    runs = f"measured: the median of {len(run.runs_s)} runs, which took {low} to {high}"
    title = head(
        f"{call} over {run.transport}: {', '.join(names)} (error {compared.error:+.1%})",
        (f"network {compared.predicted.network.name}   ·   {runs}", 10, grey),
        *((line, 9, grey) for line in textwrap.wrap(RECORD_NOTE, _NOTE_LENGTH)),
    )
    return page_of([title, *(lanes_panel(lanes, name) for lanes, name in zip(both, names, strict=True))])


def draw_timeline(timeline: Timeline) -> Figure:
    """Draw the lanes. Raises ValueError for too many ranks."""
    analysis.check_few_ranks(timeline.num_ranks)
    lanes = Lanes(timeline)
    until, colour = f"done after {format_time(timeline.time_s)}", palette().dark_grey
    if lanes.blocked:
        until, colour = "never finishes", palette().vermillion
    title = f"{plural(timeline.num_ranks, 'rank')}, {plural(len(timeline), 'transfer')}"
    return page_of([head(title, (until, 10, colour)), lanes_panel(lanes)])


def draw_schedule(schedule: Schedule) -> Figure:
    """Draw chunk grid and messages. Raises ValueError for too many ranks."""
    analysis.check_few_ranks(schedule.num_ranks)

    def draw(figure: SubFigure, margins: dict[str, float]) -> None:
        _draw_messages(figure, margins, analysis.lay_out_graph(schedule))

    right = WIDTH - LEFT - _GRAPH_WIDTH
    graph = [Panel(_SIZES_HEIGHT, draw, 0.4, 0.2, right=right)] if schedule.num_transfers else []
    title = head(f"{schedule}, {plural(schedule.num_steps, 'step')}")
    return page_of([title, grid_panel(analysis.ChunkStates.of(schedule)), *graph])


def _sizes_panel(view: analysis.RunView) -> Panel:

    def draw(figure: SubFigure, margins: dict[str, float]) -> None:
        border = margins["left"] + _SIZES_SHARE * (margins["right"] - margins["left"])
        draw_sizes(figure.subplots(gridspec_kw=margins | {"right": border}), view)
        if len(view.timeline):
            place = margins | {"left": border + _GRAPH_GAP, "bottom": 0.2 / _SIZES_HEIGHT}
            _draw_messages(figure, place, view.graph, analysis.slow_pairs(view.slow_parts))

    return Panel(_SIZES_HEIGHT, draw, 0.4, 0.6)


def _draw_messages(figure: SubFigure, place: dict[str, float], layout: analysis.GraphLayout, slow: Pairs = ()) -> None:
    axes = figure.subplots(gridspec_kw=place)
    charts.describe_axes(axes, "Messages between ranks")
    draw_graph(axes, layout, slow)


_NARROW = 0.15  # of the axis: a narrower regime has no room for its name


def draw_sizes(axes: Axes, view: analysis.RunView) -> None:
    """Draw simulated time against size, the closed form, the two regimes, and this run."""
    charts.describe_axes(axes, "Time against size")
    sizes = view.by_size.sizes_bytes
    if not len(sizes):
        _say(axes, "the run never finishes at any size")
        return
    charts.set_axis(axes.xaxis, *charts.SIZES)
    axes.set_xlim(sizes[0], sizes[-1])
    if not view.by_size.times_s.min() > 0:
        _say(axes, "no time passes")
        return
    charts.set_axis(axes.yaxis, *charts.TIMES)
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


def _draw_times(axes: Axes, view: analysis.RunView) -> list[Line2D]:
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


def _draw_regimes(axes: Axes, view: analysis.RunView) -> list[Line2D]:
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


def draw_graph(axes: Axes, layout: analysis.GraphLayout, slow: Pairs = ()) -> None:
    """Draw ranks and links, with an arrow if only one of two ranks sends; slow: pairs in another colour."""
    width = np.ptp(layout.places[:, 0])
    sideways = (0.03, 0.97) if width else (0.03 - 0.5, 0.97 - 0.5)
    axes.set(xlim=sideways, ylim=(0.97, 0.03), aspect="auto" if layout.shape is analysis.GraphShape.TREE else "equal")
    axes.set_axis_off()
    axes.apply_aspect()
    _draw_hosts(axes, layout)
    _draw_links(axes, layout, slow)
    _draw_ranks(axes, layout)


def _draw_hosts(axes: Axes, layout: analysis.GraphLayout) -> None:
    colours = palette()
    for name, left, top, right, bottom in layout.hosts:
        style: dict[str, Any] = {"facecolor": colours.pale_grey, "edgecolor": colours.light_grey, "zorder": 0.5}
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, **style))
        axes.text(left + 0.01, top + 0.01, name, fontsize=points(7), va="top", color=colours.dark_grey)


def _links(layout: analysis.GraphLayout, *shares: float) -> charts.Floats:
    """Return (num_pairs, num_shares, 2) places at shares of each link's length."""
    way = np.array(shares)[:, None]
    begin, end = (layout.places[layout.pairs[:, [column]]] for column in (0, 1))
    return np.asarray((1 - way) ** 2 * begin + 2 * way * (1 - way) * layout.bends[:, None] + way**2 * end)


def _draw_links(axes: Axes, layout: analysis.GraphLayout, slow: Pairs) -> None:
    colours, pairs = palette(), list(map(tuple, layout.pairs.tolist()))
    is_slow = np.array([pair in slow for pair in pairs], dtype=np.bool_)
    lines = _links(layout, *np.linspace(0, 1, _LINK_POINTS).tolist())
    faint = min(max(60 / max(len(pairs), 1), 0.12), 1.0)
    alike: dict[str, Any] = {"colors": colours.grey, "linewidths": 1.1, "zorder": 1, "alpha": faint}
    marked: dict[str, Any] = {"colors": colours.vermillion, "linewidths": 2.0, "zorder": 2, "linestyles": "--"}
    for name, rows, style in (("pairs", ~is_slow, alike), ("slow pairs", is_slow, marked)):
        charts.draw_lines(axes, lines[rows], name, clip_on=False, **style)
    for pair, (tail, tip) in zip(pairs, _links(layout, 0.54, 0.6).tolist(), strict=True):
        if len(pairs) <= _FEW_PAIRS and pair[::-1] not in pairs:
            colour = colours.vermillion if pair in slow else colours.dark_grey
            head = {"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0, "linewidth": 0.8}
            axes.annotate("", tip, tail, arrowprops=head)


def _draw_ranks(axes: Axes, layout: analysis.GraphLayout) -> None:
    places, hues = layout.places, palette()
    ways = (places[:, None] - places) * charts.points_per_unit(axes)
    gaps = np.linalg.norm(ways, axis=-1) + 1e9 * np.eye(len(places))
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


MAX_LINKS = 48  # rows of the picture: those that are used most
_LINKS_WIDTH, _LINK_ROW, _LINKS_REST = 11.0, 0.2, 1.6  # inches
_BAR = 0.8  # of a row
_SHARES = (5, 1)  # of the width: over time, and in all
_COLOURS = colormaps["turbo"]


def draw_links(schedule: Schedule, network: Network, size_bytes: int, explanation: analysis.Explanation) -> Figure:
    """Draw a row for each of the most used links; simultaneous messages divide its height."""
    usage = explanation.links
    order = np.argsort(-usage.utilisation, kind="stable")[:MAX_LINKS]
    links = np.sort(order[usage.utilisation[order] > 0])
    figure = new_figure(_LINKS_WIDTH, _LINK_ROW * max(len(links), 4) + _LINKS_REST, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=_SHARES)
    more = int((usage.utilisation > 0).sum()) - len(links)
    title = f"{schedule}, {format_size(size_bytes)}: {format_time(explanation.timeline.time_s)}"
    title += f" (the {len(links)} busiest links; {more} more)" if more else ""
    figure.suptitle(title, x=0.01, ha="left", fontsize=points(12), fontweight="bold")
    _draw_link_times(left, schedule, network, explanation, links)
    right.barh(range(len(links)), usage.utilisation[links], height=_BAR, color=palette().blue)
    charts.set_axis(right.xaxis, "used", lambda value: f"{value:.0%}")
    right.set_xlim(0, 1)
    right.grid(visible=False, axis="y")
    left.set_yticks(range(len(links)), [usage.name(link) for link in links.tolist()], fontsize=points(7))
    left.set_ylim(len(links) - 0.5, -0.5)
    scale = ScalarMappable(Normalize(0, max(schedule.num_chunks - 1, 1)), _COLOURS)
    figure.colorbar(scale, ax=left, location="bottom", aspect=60, pad=0.02).set_label("chunk", fontsize=points(9))
    return figure


def _draw_link_times(
    axes: Axes, schedule: Schedule, network: Network, explanation: analysis.Explanation, links: Ints
) -> None:
    timeline, usage = explanation.timeline, explanation.links
    scale, unit = time_unit(timeline.until_s)
    row_of_link = np.full(len(usage.utilisation) + 1, NONE)
    row_of_link[links] = np.arange(len(links))
    transfer, row = _rows_of_transfers(network, explanation, row_of_link)
    ended = np.isfinite(timeline.sent_s[transfer])
    transfer, row = transfer[ended], row[ended]
    first, last = timeline.start_s[transfer] * scale, timeline.sent_s[transfer] * scale
    place, num_rows = analysis.pack_rows(row, np.zeros_like(row), first, last, len(links))
    of = num_rows[row]
    shapes = charts.boxes(row - _BAR / 2 + _BAR * place / of, first, last, (0.0, _BAR / of))
    colours = _COLOURS(timeline.chunk[transfer] / max(schedule.num_chunks - 1, 1))
    charts.draw_boxes(axes, shapes, "", facecolors=colours, edgecolors=palette().paper, linewidths=0.2)
    charts.set_axis(axes.xaxis, f"time ({unit})", lambda value: f"{value:g}")
    axes.set_xlim(0, max(timeline.until_s * scale, 1e-9))
    axes.grid(visible=False, axis="y")


def _rows_of_transfers(network: Network, explanation: analysis.Explanation, row_of_link: Ints) -> tuple[Ints, Ints]:
    timeline, usage = explanation.timeline, explanation.links
    paths = network.topology(timeline.num_ranks).paths(timeline.src.astype(np.int64), timeline.dst.astype(np.int64))
    pairs = zip(usage.src.tolist(), usage.dst.tolist(), strict=True)
    link_of_pair = {pair: number for number, pair in enumerate(pairs, len(usage.resource_names))}
    ends = zip(timeline.src.tolist(), timeline.dst.tolist(), strict=True)
    own = np.array([link_of_pair.get(pair, NONE) for pair in ends], dtype=np.int64)
    rows = row_of_link[np.column_stack([paths.resource, own])]
    transfer, column = np.nonzero(rows != NONE)
    return transfer, rows[transfer, column]
