"""The chunk grid: the contributions in each rank's chunks, state by state."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import SubFigure

from ringsim.analysis import ChunkStates
from ringsim.report.colours import contributor_colours
from ringsim.report.plots import charts
from ringsim.report.plots.charts import Floats, boxes, draw_boxes, draw_labels, points_per_unit, strided
from ringsim.report.plots.style import LEFT, RIGHT, WIDTH, Panel, palette, points
from ringsim.schedule import Bools

MAX_STRIPES = 128  # across a panel; more stripes are indistinguishable
_MAX_STRIPED_RANKS = 16  # with more, a row is too low for its frame
_MAX_PANELS = 9  # per row; half as many if panels have many chunks
_GAP = (0.12, 0.42)  # inches between panels, across and down
_COUNT_SIZE = 6.5  # points
_FRAME_WIDTH = 1.4  # points
_STRIPED_LEGEND = (
    "stripes, left to right: the",
    "contributions of rank 0, 1, ...",
    "number: how many of them;",
    "bold: changed since the",
    "panel before",
    "frame: finished",
)
_SHADED_LEGEND = ("white: holds nothing", "blue: contributions,", "the darker the more", "black: finished")
_SHADED_ON_DARK = ("black: holds nothing", "blue: contributions,", "the lighter the more", "white: finished")


def is_striped(num_ranks: int, num_chunks: int) -> bool:
    """Return whether a cell has room for a stripe per contributor."""
    return num_ranks <= _MAX_STRIPED_RANKS and num_chunks * num_ranks <= MAX_STRIPES


def grid_panel(states: ChunkStates, stopped: str = "") -> Panel:
    """Return the panel with a part for each state, and one for the legend; stopped: added to the heading."""
    slots, striped = len(states.states) + 1, is_striped(states.num_ranks, states.num_chunks)
    num_rows = -(-slots // (_MAX_PANELS // 2 if striped and states.num_chunks > 8 else _MAX_PANELS))
    num_columns = -(-slots // num_rows)
    height = min(max(0.24 * states.num_ranks, 1.1), 3.0 if striped else 1.6)
    width = (WIDTH - LEFT - RIGHT - (num_columns - 1) * _GAP[0]) / num_columns

    def draw(figure: SubFigure, margins: dict[str, float]) -> None:
        heading = f"Contributions that each rank holds of each chunk{stopped}"
        figure.text(margins["left"], 0.995, heading, fontsize=points(11), fontweight="bold", va="top")
        places = margins | {"wspace": _GAP[0] / width, "hspace": _GAP[1] / height}
        panels = figure.subplots(num_rows, num_columns, squeeze=False, gridspec_kw=places).ravel().tolist()
        held = states.contributions > 0
        for number, (axes, done) in enumerate(zip(panels, states.states.tolist(), strict=False)):
            axes.set_title(f"after step {done}" if done else "before", fontsize=points(8), pad=3)
            name_cells(axes, states.num_ranks, states.num_chunks, with_ranks=number % num_columns == 0)
            draw_cells(axes, held[number], states.finished[number], held[max(number - 1, 0)])
        for axes in panels[slots - 1 :]:
            axes.set_axis_off()
        _draw_legend(panels[slots - 1], states)

    return Panel(1.0 + num_rows * height + (num_rows - 1) * _GAP[1], draw, 0.5, 0.3)


def name_cells(axes: Axes, num_ranks: int, num_chunks: int, *, with_ranks: bool) -> None:
    """Label chunks below and ranks to the left."""
    axes.set(xlim=(-0.5, num_chunks - 0.5), ylim=(num_ranks - 0.5, -0.5), xticks=[], yticks=[])
    axes.tick_params(length=0, labelsize=points(7), pad=2)
    per_chunk, per_rank = points_per_unit(axes)
    # Chunks are labels, not ticks: hundreds of ticks take longer to draw than everything else.
    y, chunks = num_ranks - 0.5 + points(_COUNT_SIZE) / per_rank, strided(num_chunks, points(12.0), per_chunk)
    draw_labels(axes, [(chunk, y, str(chunk), palette().ink, False) for chunk in chunks], points(_COUNT_SIZE))
    if with_ranks:
        ranks = strided(num_ranks, points(8.0), per_rank)
        axes.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
        beside = min(-0.5, -points(_COUNT_SIZE) / 3 / per_chunk)  # the number of chunk 0 may be wider than its column
        axes.text(beside - 2 / per_chunk, y, "chunk", fontsize=points(7), ha="right", va="center")


def draw_cells(axes: Axes, held: Bools, finished: Bools, before: Bools) -> None:
    """Draw the contributions of each cell: stripes and their number if they fit, else shades.

    held, before: (num_ranks, num_chunks, num_ranks), by contributor, now and one panel earlier. finished:
    (num_ranks, num_chunks).
    """
    num_ranks, num_chunks = finished.shape
    extent = (-0.5, num_chunks - 0.5, num_ranks - 0.5, -0.5)
    if not is_striped(num_ranks, num_chunks):
        axes.imshow(shaded_image(held, finished), extent=extent, aspect="auto", interpolation="nearest")
        return
    per_chunk, per_rank = points_per_unit(axes)
    with_counts = per_chunk >= 1.2 * points(_COUNT_SIZE) and per_rank >= 2.2 * points(_COUNT_SIZE)
    image = striped_image(held, with_counts=with_counts)
    axes.imshow(image, extent=extent, aspect="auto", interpolation="nearest")
    across = [[(-0.5, rank - 0.5), (num_chunks - 0.5, rank - 0.5)] for rank in range(1, num_ranks)]
    down = [[(chunk - 0.5, -0.5), (chunk - 0.5, num_ranks - 0.5)] for chunk in range(1, num_chunks)]
    charts.draw_lines(axes, across + down, colors=palette().grey, linewidths=0.5)
    if with_counts:
        counts, changed, inks = held.sum(axis=-1), (held != before).any(axis=-1), (palette().dark_grey, palette().ink)
        labels = [
            (chunk, rank - 0.24, str(counts[rank, chunk]), inks[int(changed[rank, chunk])], bool(changed[rank, chunk]))
            for rank, chunk in np.argwhere(counts > 0).tolist()
        ]
        draw_labels(axes, labels, points(_COUNT_SIZE))
    rank, chunk = np.nonzero(finished)
    inside, below = (0.5 - _FRAME_WIDTH / 2 / per_unit for per_unit in (per_chunk, per_rank))
    draw_boxes(axes, boxes(rank, chunk - inside, chunk + inside, (-below, below)), "finished", **_frame())


def striped_image(held: Bools, *, with_counts: bool) -> Floats:
    """Return (num_ranks * rows_per_cell, num_chunks * num_ranks, 3): stripes, below an empty strip for counts."""
    num_ranks, num_chunks, _ = held.shape
    colours = np.array([to_rgb(colour) for colour in contributor_colours(num_ranks)])
    stripes = np.where(held[..., None], colours, to_rgb(palette().paper))
    stripes = stripes.reshape(num_ranks, 1, num_chunks * num_ranks, 3)
    strip = np.full_like(stripes, to_rgb(palette().paper))
    return np.concatenate([strip, stripes] if with_counts else [stripes], axis=1).reshape(-1, *stripes.shape[2:])


def shaded_image(held: Bools, finished: Bools) -> Floats:
    """Return (num_ranks, num_chunks, 3): darker for more contributions, ink if finished."""
    share = held.sum(axis=-1) / len(held)
    blues = colormaps["Blues_r" if palette().is_dark else "Blues"]
    shades = np.asarray(blues(0.15 + 0.6 * share))[..., :3]
    shades[share == 0] = to_rgb(palette().paper)
    shades[finished] = to_rgb(palette().ink)
    return shades


def _frame() -> dict[str, Any]:
    return {"facecolor": "none", "edgecolor": palette().ink, "linewidth": _FRAME_WIDTH}


def _draw_legend(axes: Axes, states: ChunkStates) -> None:
    lines: Sequence[str] = _SHADED_ON_DARK if palette().is_dark else _SHADED_LEGEND
    if is_striped(states.num_ranks, states.num_chunks):
        lines = _STRIPED_LEGEND
        colours = [[to_rgb(colour) for colour in contributor_colours(states.num_ranks)]]
        axes.imshow(colours, extent=(0.06, 0.94, 0.34, 0.20), aspect="auto", interpolation="nearest")
        draw_boxes(axes, boxes(np.zeros(1), np.array([0.04]), np.array([0.96]), (0.04, 0.36)), "cell", **_frame())
        count: dict[str, Any] = {"fontsize": points(_COUNT_SIZE + 1), "ha": "center", "va": "center_baseline"}
        axes.text(0.5, 0.12, str(states.num_ranks), **count)
    axes.set(xlim=(0, 1), ylim=(1, 0))
    axes.text(0.04, 0.42, "\n".join(lines), fontsize=points(7), va="top", linespacing=1.4)
