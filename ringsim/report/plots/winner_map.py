"""The winner map: which algorithm is fastest, by size and number of ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from ringsim.analysis import BASELINE, Sweep
from ringsim.report.plots.algorithm_styles import Style
from ringsim.report.plots.bulk import Floats, Label, boxes, draw_boxes, draw_labels
from ringsim.report.plots.palette import palette
from ringsim.report.plots.style import points
from ringsim.report.sweep_table import format_gain
from ringsim.units import format_size

Names = npt.NDArray[np.object_]

NOBODY = ""
_GAIN_SIZE = 8.0  # points
_ROW = (-0.5, 0.5)


def draw_winner_map(axes: Axes, sweep: Sweep, network: str, styles: dict[str, Style]) -> list[Patch]:
    """Draws a cell for each size and number of ranks in the colour of the fastest, with its gain over the ring.

    Returns what the colours mean, for a legend.
    """
    ranks = sweep.ranks
    set_size_axis(axes, sweep.sizes_bytes)
    axes.set_ylim(-0.5, len(ranks) - 0.5)
    axes.set_yticks(range(len(ranks)), [f"{num_ranks} ranks" for num_ranks in ranks], fontsize=points(8))
    axes.tick_params(axis="y", length=0)
    names, edges = winning_names(sweep, network), size_edges(sweep.sizes_bytes)
    areas = {name: _area(name, styles) for name in [*styles, NOBODY] if (names == name).any()}
    for name, area in areas.items():
        row, column = np.nonzero(names == name)
        draw_boxes(axes, boxes(row, edges[column], edges[column + 1], _ROW), linewidth=0, **area)
    _draw_borders(axes, names, edges)
    _draw_gains(axes, sweep, network, styles)
    return [Patch(linewidth=0, **area) for area in areas.values()]


def _area(name: str, styles: dict[str, Style]) -> dict[str, Any]:
    if name == NOBODY:
        return {"label": "all skipped", "facecolor": palette().paper, "edgecolor": palette().grey, "hatch": "xx"}
    return {"label": name, **styles[name].area}


def winning_names(sweep: Sweep, network: str) -> Names:
    """Return the fastest algorithm's name, NOBODY where all were skipped: shape (num_ranks, size)."""
    names = np.full((len(sweep.ranks), len(sweep.sizes_bytes)), NOBODY, dtype=object)
    for (winner_network, num_ranks, size), winner in sweep.winners().items():
        if winner_network == network:
            names[sweep.ranks.index(num_ranks), sweep.sizes_bytes.index(size)] = winner.cell.algorithm
    return names


def size_edges(sizes_bytes: Sequence[int]) -> Floats:
    """Return the edges of cells, half-way between the sizes on a logarithmic axis: shape (num_sizes + 1,)."""
    log = np.log2(np.asarray(sizes_bytes, dtype=np.float64))
    if len(log) == 1:
        return np.asarray(2 ** np.array([log[0] - 1, log[0] + 1]))
    middle = (log[1:] + log[:-1]) / 2
    return np.asarray(2 ** np.concatenate([[2 * log[0] - middle[0]], middle, [2 * log[-1] - middle[-1]]]))


def set_size_axis(axes: Axes, sizes_bytes: Sequence[int], max_ticks: int = 16) -> None:
    """Sets a logarithmic axis over the cells, with a tick at the middle of every cell for which there is room."""
    edges = size_edges(sizes_bytes)
    axes.set_xscale("log", base=2)
    axes.set_xlim(edges[0], edges[-1])
    ticks = sizes_bytes[:: -(-len(sizes_bytes) // max_ticks)]
    axes.set_xticks(ticks, [format_size(size) for size in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=points(8))


def _draw_borders(axes: Axes, names: Names, edges: Floats) -> None:
    """A line wherever neighbours have different winners; thin white ones between the rest."""
    num_rows, num_columns = names.shape
    x = edges.tolist()
    lines: dict[bool, list[list[tuple[float, float]]]] = {False: [], True: []}  # whether winners differ
    for row, column in np.ndindex(num_rows, num_columns):
        if column:
            upright = [(x[column], row - 0.5), (x[column], row + 0.5)]
            lines[names[row, column] != names[row, column - 1]].append(upright)
        if row:
            level = [(x[column], row - 0.5), (x[column + 1], row - 0.5)]
            lines[names[row, column] != names[row - 1, column]].append(level)
    for differ, colour, width in ((False, palette().paper, 0.6), (True, palette().ink, 1.4)):
        axes.add_collection(LineCollection(lines[differ], colors=colour, linewidths=width), autolim=False)


def _draw_gains(axes: Axes, sweep: Sweep, network: str, styles: dict[str, Style]) -> None:
    """How many times as fast as the ring (or the second) in each cell; in none if there is no room for all."""
    box = axes.get_position()
    width = axes.figure.bbox.width * box.width * 72 / axes.figure.dpi
    height = axes.figure.bbox.height * box.height * 72 / axes.figure.dpi
    edges = np.log2(size_edges(sweep.sizes_bytes))
    rooms = np.diff(edges) / (edges[-1] - edges[0]) * width
    labels: list[Label] = []
    size = points(_GAIN_SIZE)
    for (winner_network, num_ranks, size_bytes), winner in sweep.winners().items():
        text = format_gain(winner, has_baseline=BASELINE in sweep.algorithms)
        column = sweep.sizes_bytes.index(size_bytes)
        if winner_network == network and len(text) * 0.65 * size < rooms[column]:
            ink = styles[winner.cell.algorithm].ink
            labels.append((float(size_bytes), float(sweep.ranks.index(num_ranks)), text, ink, False))
    if height / len(sweep.ranks) > 1.2 * size:
        draw_labels(axes, [label for label in labels if label[2]], size)
