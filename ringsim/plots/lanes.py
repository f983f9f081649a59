"""The lanes: what every rank does, and when."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ringsim.overview import Overview
from ringsim.plots.boxes import boxes, draw_boxes, points_per_unit
from ringsim.plots.labels import Label, draw_labels
from ringsim.plots.palette import BLACK, BLUE, DARK_GREY, GREY, LIGHT_GREY, ORANGE, PALE_GREY, SKY, WHITE

FOLLOWED_CHUNK = 0
MAX_RANKS_FOLLOWED = 16  # with more, the path is a tangle
# Where the rows lie in a lane, whose centre is at the rank's number; down is positive.
_SEND_ROW = (-0.40, 0.05)
_REDUCE_ROW = (0.09, 0.40)
_LANE = (-0.40, 0.40)


def draw_lanes(axes: Axes, overview: Overview) -> None:
    """One lane per rank, rank 0 on top: above what it sends, below what it reduces, dotted where it waits."""
    timeline = overview.timeline
    scale, unit = _time_unit(timeline.time_s)
    end = timeline.time_s * scale
    axes.set_ylim(overview.num_ranks - 0.5, -0.5)
    axes.set_xlim(0, end * 1.002 or 1)
    axes.set_xlabel(f"time ({unit})", fontsize=9)
    axes.set_yticks(*_rank_ticks(overview.num_ranks), fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("What each rank does, and when", loc="left", fontsize=11, fontweight="bold")
    if not len(timeline):
        axes.text(0.5, 0, "nothing is sent", ha="center", va="center", fontsize=10)
        return
    _draw_waiting(axes, overview, scale)
    _draw_sends(axes, overview, scale)
    _draw_reductions(axes, overview, scale)
    followed = overview.num_ranks <= MAX_RANKS_FOLLOWED
    if followed:
        _follow_chunk(axes, overview, scale)
    _draw_legend(axes, followed)


def _time_unit(time_s: float) -> tuple[float, str]:
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if time_s * scale >= 1:
            return scale, unit
    return (1e9, "ns") if time_s > 0 else (1.0, "s")


def _rank_ticks(num_ranks: int) -> tuple[list[int], list[str]]:
    ranks = list(range(0, num_ranks, 1 if num_ranks <= 32 else 4))
    return ranks, [f"rank {rank}" for rank in ranks]


def _draw_waiting(axes: Axes, overview: Overview, scale: float) -> None:
    gaps = np.concatenate(overview.waiting_s) * scale
    rank = np.repeat(np.arange(overview.num_ranks), [len(gaps) for gaps in overview.waiting_s])
    shapes = boxes(rank, gaps[:, 0], gaps[:, 1], _LANE)
    hatch = "...." if overview.num_ranks <= MAX_RANKS_FOLLOWED else None
    draw_boxes(
        axes, shapes, "waits", facecolor=PALE_GREY if hatch else LIGHT_GREY, edgecolor=GREY, linewidth=0, hatch=hatch
    )


def _draw_sends(axes: Axes, overview: Overview, scale: float) -> None:
    timeline = overview.timeline
    edge = 0.5 if overview.num_ranks <= MAX_RANKS_FOLLOWED else 0.1
    for reduce, colour in ((True, BLUE), (False, SKY)):
        rows = timeline.reduce == reduce
        shapes = boxes(timeline.src[rows], timeline.start_s[rows] * scale, timeline.left_s[rows] * scale, _SEND_ROW)
        label = "sends to add" if reduce else "sends to overwrite"
        draw_boxes(axes, shapes, label, facecolor=colour, edgecolor=WHITE, linewidth=edge)
    _label_sends(axes, overview, scale)


def _label_sends(axes: Axes, overview: Overview, scale: float) -> None:
    """Chunk and receiver on each sending, as far as there is room."""
    timeline = overview.timeline
    per_unit, lane = points_per_unit(axes)
    size = min(8.0, 0.75 * lane * (_SEND_ROW[1] - _SEND_ROW[0]))
    if size < 4:
        return
    labels: list[Label] = []
    columns = (timeline.src, timeline.dst, timeline.chunk, timeline.reduce, timeline.start_s, timeline.left_s)
    for src, dst, chunk, reduce, start, left in zip(*(column.tolist() for column in columns), strict=True):
        text = _first_that_fits((f"{chunk} → {dst}", f"{chunk}"), size, (left - start) * scale * per_unit)
        if text:
            colour = WHITE if reduce else BLACK
            labels.append(((start + left) / 2 * scale, src + sum(_SEND_ROW) / 2, text, colour, False))
    draw_labels(axes, labels, size)


def _draw_reductions(axes: Axes, overview: Overview, scale: float) -> None:
    timeline = overview.timeline
    few = overview.num_ranks <= MAX_RANKS_FOLLOWED
    rows = timeline.reduce
    shapes = boxes(timeline.dst[rows], timeline.apply_s[rows] * scale, timeline.applied_s[rows] * scale, _REDUCE_ROW)
    style: dict[str, Any] = {"edgecolor": BLACK, "linewidth": 0.4, "hatch": "/////"} if few else {"linewidth": 0}
    draw_boxes(axes, shapes, "reduces", facecolor=ORANGE, **style)
    # A copy takes no time: a tick says when the chunk is in its place.
    rank, time = timeline.dst[~rows], timeline.applied_s[~rows] * scale
    ticks = np.stack([np.stack([time, rank + row], axis=-1) for row in _REDUCE_ROW], axis=1)
    axes.add_collection(
        LineCollection(list(ticks), colors=DARK_GREY, linewidths=2.0 if few else 0.5, label="copy"), autolim=False
    )


def _follow_chunk(axes: Axes, overview: Overview, scale: float) -> None:
    timeline = overview.timeline
    rows = timeline.chunk == FOLLOWED_CHUNK
    src, dst = timeline.src[rows], timeline.dst[rows]
    start, left, arrived = (column[rows] * scale for column in (timeline.start_s, timeline.left_s, timeline.arrived_s))
    outline = boxes(src, start, left, _SEND_ROW)
    draw_boxes(axes, outline, "followed", facecolor="none", edgecolor=BLACK, linewidth=1.8)
    departs = np.column_stack([left, src + sum(_SEND_ROW) / 2])
    arrives = np.column_stack([arrived, dst + sum(_REDUCE_ROW) / 2])
    path = list(np.stack([departs, arrives], axis=1))
    axes.add_collection(LineCollection(path, colors=BLACK, linewidths=1.0), autolim=False)
    axes.plot(arrives[:, 0], arrives[:, 1], "o", color=BLACK, markersize=3)


def _draw_legend(axes: Axes, followed: bool) -> None:
    dots, strokes = ("....", "/////") if followed else (None, None)
    handles: list[Patch | Line2D] = [
        Patch(facecolor=BLUE, label="sends chunk → rank, which adds it"),
        Patch(facecolor=SKY, label="sends chunk → rank, which overwrites"),
        Patch(facecolor=ORANGE, edgecolor=BLACK, linewidth=0.4, hatch=strokes, label="reduces"),
        Line2D([], [], color=DARK_GREY, marker="|", linestyle="none", markeredgewidth=2, label="copy in place"),
        Patch(facecolor=PALE_GREY if followed else LIGHT_GREY, edgecolor=GREY, linewidth=0, hatch=dots, label="waits"),
    ]
    if followed:
        handles.append(Line2D([], [], color=BLACK, marker="o", markersize=3, label=f"chunk {FOLLOWED_CHUNK}, followed"))
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(handles), fontsize=8, frameon=False,
        borderaxespad=0.2, columnspacing=1.4, handlelength=1.8,
    )  # fmt: skip


def _first_that_fits(labels: tuple[str, ...], fontsize: float, room: float) -> str | None:
    return next((label for label in labels if len(label) * 0.62 * fontsize < room), None)
