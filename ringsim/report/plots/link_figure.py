"""`draw_links`: the use of each link over time, coloured by chunk, and how much of it is used in all."""

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ringsim.analysis import Explanation, pack_rows
from ringsim.network import NONE, AnyNetwork, Ints
from ringsim.report.plots.charts import boxes, draw_boxes, set_axis
from ringsim.report.plots.style import new_figure, palette, points
from ringsim.schedule import Schedule
from ringsim.units import format_size, format_time, time_unit

MAX_LINKS = 48  # rows of the picture: those that are used most
_WIDTH, _ROW, _REST = 11.0, 0.2, 1.6  # inches
_BAR = 0.8  # of a row
_SHARES = (5, 1)  # of the width: over time, and in all


def draw_links(schedule: Schedule, network: AnyNetwork, size_bytes: int, explanation: Explanation) -> Figure:
    """Draw a row for each link, those that are used most; where several messages share one, each has its part of it."""
    usage = explanation.links
    order = np.argsort(-usage.utilisation, kind="stable")[:MAX_LINKS]
    links = np.sort(order[usage.utilisation[order] > 0])
    figure = new_figure(_WIDTH, _ROW * max(len(links), 4) + _REST, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=_SHARES)
    more = int((usage.utilisation > 0).sum()) - len(links)
    title = f"{schedule}, {format_size(size_bytes)}: {format_time(explanation.timeline.time_s)}"
    title += f" (the {len(links)} busiest links; {more} more)" if more else ""
    figure.suptitle(title, x=0.01, ha="left", fontsize=points(12), fontweight="bold")
    _draw_times(left, schedule, network, explanation, links)
    _draw_use(right, explanation, links)
    left.set_yticks(range(len(links)), [usage.name(link) for link in links.tolist()], fontsize=points(7))
    left.set_ylim(len(links) - 0.5, -0.5)
    scale = ScalarMappable(Normalize(0, max(schedule.num_chunks - 1, 1)), _COLOURS)
    figure.colorbar(scale, ax=left, location="bottom", aspect=60, pad=0.02).set_label("chunk", fontsize=points(9))
    return figure


_COLOURS = colormaps["turbo"]


def _draw_times(axes: Axes, schedule: Schedule, network: AnyNetwork, explanation: Explanation, links: Ints) -> None:
    timeline, usage = explanation.timeline, explanation.links
    scale, unit = time_unit(timeline.until_s)
    row_of_link = np.full(len(usage.utilisation) + 1, NONE)
    row_of_link[links] = np.arange(len(links))
    transfer, row = _rows_of_transfers(network, explanation, row_of_link)
    ended = np.isfinite(timeline.sent_s[transfer])
    transfer, row = transfer[ended], row[ended]
    first, last = timeline.start_s[transfer] * scale, timeline.sent_s[transfer] * scale
    place, num_rows = pack_rows(row, np.zeros_like(row), first, last, len(links))
    of = num_rows[row]
    shapes = boxes(row - _BAR / 2 + _BAR * place / of, first, last, (0.0, _BAR / of))
    colours = _COLOURS(timeline.chunk[transfer] / max(schedule.num_chunks - 1, 1))
    draw_boxes(axes, shapes, "", facecolors=colours, edgecolors=palette().paper, linewidths=0.2)
    set_axis(axes.xaxis, f"time ({unit})", lambda value: f"{value:g}")
    axes.set_xlim(0, max(timeline.until_s * scale, 1e-9))
    axes.grid(visible=False, axis="y")


def _rows_of_transfers(network: AnyNetwork, explanation: Explanation, row_of_link: Ints) -> tuple[Ints, Ints]:
    """Return the transfers and the rows of the picture that they are in, once for each of their links."""
    timeline, usage = explanation.timeline, explanation.links
    paths = network.topology(timeline.num_ranks).paths(timeline.src.astype(np.int64), timeline.dst.astype(np.int64))
    rows = row_of_link[paths.resource]
    links = enumerate(zip(usage.src.tolist(), usage.dst.tolist(), strict=True), len(usage.resource_names))
    pairs = {pair: number for number, pair in links}
    own = [pairs.get(pair, NONE) for pair in zip(timeline.src.tolist(), timeline.dst.tolist(), strict=True)]
    rows = np.column_stack([rows, row_of_link[np.array(own, dtype=np.int64)]])
    transfer, column = np.nonzero(rows != NONE)
    return transfer, rows[transfer, column]


def _draw_use(axes: Axes, explanation: Explanation, links: Ints) -> None:
    axes.barh(range(len(links)), explanation.links.utilisation[links], height=_BAR, color=palette().blue)
    set_axis(axes.xaxis, "used", lambda value: f"{value:.0%}")
    axes.set_xlim(0, 1)
    axes.grid(visible=False, axis="y")
