"""The chunk grid: the contributions that every rank holds of every chunk, state after state."""

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure

from ringsim.analysis import ChunkStates, Overview
from ringsim.report.plots.boxes import boxes, draw_boxes, points_per_unit
from ringsim.report.plots.labels import draw_labels
from ringsim.report.plots.lane_notes import strided
from ringsim.report.plots.palette import palette
from ringsim.report.plots.style import points

Image = npt.NDArray[np.float64]

MAX_STRIPES = 128  # across a panel; with more, nobody tells one stripe from the next
_MAX_STRIPED_RANKS = 16  # with more, a row is too low for its frame
_MAX_PANELS = 9  # side by side; half as many where a panel has many chunks to tell apart
_COUNT_SIZE = 6.5  # points
_FRAME_WIDTH = 1.4  # points
_STRIPED_LEGEND = (
    "stripes, left to right: the",
    "shares of rank 0, 1, 2, ...",
    "number: how many shares;",
    "bold: changed since the",
    "panel before",
    "frame: finished",
)
_SHADED_LEGEND = ("white: holds nothing", "blue: some ranks' shares,", "the darker the more", "black: finished")
_SHADED_ON_DARK = ("black: holds nothing", "blue: some ranks' shares,", "the lighter the more", "white: finished")


def is_striped(overview: Overview | ChunkStates) -> bool:
    """Returns whether there is room for a stripe per contributor; if not, cells are shaded by their number."""
    return overview.num_ranks <= _MAX_STRIPED_RANKS and overview.num_chunks * overview.num_ranks <= MAX_STRIPES


def grid_shape(overview: Overview | ChunkStates) -> tuple[int, int]:
    """Returns the rows and columns of panels, of which each state has one and the legend another."""
    slots = len(overview.states) + 1
    large = is_striped(overview) and overview.num_chunks > 8
    num_rows = -(-slots // (_MAX_PANELS // 2 if large else _MAX_PANELS))
    return num_rows, -(-slots // num_rows)


def draw_chunk_grid(
    figure: Figure | SubFigure,
    overview: Overview | ChunkStates,
    *,
    margins: dict[str, float],
    heading: str = "What each rank holds of each chunk",
) -> None:
    """Draws a panel for each state; a cell is a chunk on a rank, with a stripe for each rank whose share is in it.

    margins: of the panels in the figure, as matplotlib's gridspec takes them.
    """
    num_rows, num_columns = grid_shape(overview)
    figure.text(margins["left"], 0.995, heading, fontsize=points(11), fontweight="bold", va="top")
    panels = figure.subplots(num_rows, num_columns, squeeze=False, gridspec_kw=margins).ravel().tolist()
    for number in range(len(overview.states)):
        _draw_state(panels[number], overview, number, is_left=number % num_columns == 0)
    for axes in panels[len(overview.states) :]:
        axes.set_axis_off()
    _draw_legend(panels[len(overview.states)], overview)


def contributor_colours(num_ranks: int) -> Image:
    """Returns a colour per rank, darkest first, shape (num_ranks, 3): lightness alone tells them apart."""
    # Stops short of the colours that a grey print would not tell from an empty stripe.
    first, last = (0.25, 1.0) if palette().is_dark else (0, 0.88)
    return np.asarray(colormaps["viridis"](np.linspace(first, last, num_ranks)))[:, :3]


def striped_image(overview: Overview | ChunkStates, state: int, *, with_counts: bool) -> Image:
    """Returns stripes side by side in each cell, below an empty strip if a count is to stand there.

    Shape (num_ranks * rows_per_cell, num_chunks * num_ranks, 3); an empty stripe has the colour of the paper.
    """
    num_ranks = overview.num_ranks
    held = overview.holdings[state] > 0  # (rank, chunk, contributor)
    stripes = np.where(held[..., None], contributor_colours(num_ranks), to_rgb(palette().paper))
    stripes = stripes.reshape(num_ranks, 1, overview.num_chunks * num_ranks, 3)
    strip = np.full_like(stripes, to_rgb(palette().paper))
    return np.concatenate([strip, stripes] if with_counts else [stripes], axis=1).reshape(-1, *stripes.shape[2:])


def shaded_image(overview: Overview | ChunkStates, state: int) -> Image:
    """Returns a pixel per cell, the darker the more shares it has, in ink where it is finished: (rank, chunk, 3)."""
    share = overview.holdings[state].sum(axis=-1) / overview.num_ranks
    blues = colormaps["Blues_r" if palette().is_dark else "Blues"]
    shades = np.asarray(blues(0.15 + 0.6 * np.clip(share, 0, 1)))[..., :3]
    shades[share == 0] = to_rgb(palette().paper)
    shades[overview.finished[state]] = to_rgb(palette().ink)
    return shades


def _draw_state(axes: Axes, overview: Overview | ChunkStates, state: int, *, is_left: bool) -> None:
    num_ranks, num_chunks = overview.num_ranks, overview.num_chunks
    done = int(overview.states[state])
    axes.set_title(f"after step {done - 1}" if done else "before", fontsize=points(8), pad=3)
    extent = (-0.5, num_chunks - 0.5, num_ranks - 0.5, -0.5)
    axes.set(xlim=extent[:2], ylim=extent[2:])
    _set_ticks(axes, overview, is_left=is_left)
    per_chunk, per_rank = points_per_unit(axes)
    if not is_striped(overview):
        axes.imshow(shaded_image(overview, state), extent=extent, aspect="auto", interpolation="nearest")
        return
    with_counts = per_chunk >= 1.2 * points(_COUNT_SIZE) and per_rank >= 2.2 * points(_COUNT_SIZE)
    image = striped_image(overview, state, with_counts=with_counts)
    axes.imshow(image, extent=extent, aspect="auto", interpolation="nearest")
    _draw_cell_borders(axes, num_ranks, num_chunks)
    if with_counts:
        _draw_counts(axes, overview, state)
    _frame_finished(axes, overview, state)


def _set_ticks(axes: Axes, overview: Overview | ChunkStates, *, is_left: bool) -> None:
    per_chunk, per_rank = points_per_unit(axes)
    ranks = strided(overview.num_ranks, points(8.0), per_rank)
    chunks = strided(overview.num_chunks, points(10.0), per_chunk)
    axes.tick_params(length=0, labelsize=points(7), pad=2)
    axes.set_xticks([])
    axes.set_yticks([])
    # The chunks as labels, not ticks: hundreds of those would take longer to make than all the rest.
    y = overview.num_ranks - 0.5 + points(_COUNT_SIZE) / per_rank
    draw_labels(axes, [(chunk, y, str(chunk), palette().ink, False) for chunk in chunks], points(_COUNT_SIZE))
    if is_left:
        axes.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
        axes.text(-0.5 - 2 / per_chunk, y, "chunk", fontsize=points(7), ha="right", va="center")


def _draw_cell_borders(axes: Axes, num_ranks: int, num_chunks: int) -> None:
    across = [[(-0.5, rank - 0.5), (num_chunks - 0.5, rank - 0.5)] for rank in range(1, num_ranks)]
    down = [[(chunk - 0.5, -0.5), (chunk - 0.5, num_ranks - 0.5)] for chunk in range(1, num_chunks)]
    axes.add_collection(LineCollection(across + down, colors=palette().grey, linewidths=0.5), autolim=False)


def _draw_counts(axes: Axes, overview: Overview | ChunkStates, state: int) -> None:
    """The number of shares in each cell, bold where it is not what it was one panel before."""
    counts = overview.holdings[state].sum(axis=-1)
    changed = (overview.holdings[state] != overview.holdings[max(state - 1, 0)]).any(axis=-1)
    labels = [
        (
            chunk,
            rank - 0.24,
            str(counts[rank, chunk]),
            palette().ink if changed[rank, chunk] else palette().dark_grey,
            changed[rank, chunk],
        )
        for rank, chunk in np.argwhere(counts > 0).tolist()
    ]
    draw_labels(axes, labels, points(_COUNT_SIZE))


def _frame() -> dict[str, Any]:
    return {"facecolor": "none", "edgecolor": palette().ink, "linewidth": _FRAME_WIDTH}


def _frame_finished(axes: Axes, overview: Overview | ChunkStates, state: int) -> None:
    rank, chunk = np.nonzero(overview.finished[state])
    across, down = (0.5 - _FRAME_WIDTH / 2 / points for points in points_per_unit(axes))
    frames = boxes(rank, chunk - across, chunk + across, (-down, down))
    draw_boxes(axes, frames, "finished", **_frame())


def _draw_legend(axes: Axes, overview: Overview | ChunkStates) -> None:
    """How to read a cell, with one cell enlarged."""
    axes.set(xlim=(0, 1), ylim=(1, 0))
    if is_striped(overview):
        colours = contributor_colours(overview.num_ranks)[None]
        axes.imshow(colours, extent=(0.06, 0.94, 0.34, 0.20), aspect="auto", interpolation="nearest")
        draw_boxes(
            axes,
            boxes(np.zeros(1, dtype=np.int64), np.array([0.04]), np.array([0.96]), (0.04, 0.36)),
            "cell",
            **_frame(),
        )
        axes.text(
            0.5, 0.12, str(overview.num_ranks), fontsize=points(_COUNT_SIZE + 1), ha="center", va="center_baseline"
        )
        axes.set(xlim=(0, 1), ylim=(1, 0))
    shaded = _SHADED_ON_DARK if palette().is_dark else _SHADED_LEGEND
    lines = _STRIPED_LEGEND if is_striped(overview) else shaded
    axes.text(0.04, 0.42, "\n".join(lines), fontsize=points(7), va="top", linespacing=1.4)
