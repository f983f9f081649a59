"""The lanes: the activities of every rank over time."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ringsim.analysis import Overview
from ringsim.report.plots.boxes import Floats, boxes, draw_boxes, points_per_unit
from ringsim.report.plots.labels import Label, draw_labels
from ringsim.report.plots.lane_layout import LaneLayout, Row
from ringsim.report.plots.palette import BLACK, BLUE, DARK_GREY, GREY, LIGHT_GREY, ORANGE, PALE_GREY, SKY, WHITE
from ringsim.schedule import Bools
from ringsim.simulation import Timeline

FOLLOWED_CHUNK = 0
MAX_RANKS_FOLLOWED = 16  # with more, the path is a tangle


def draw_lanes(axes: Axes, overview: Overview, layout: LaneLayout) -> None:
    """Draws a lane per rank, rank 0 on top: above what it sends, below what it reduces, dotted where it waits.

    What a rank sends at the same time lies in rows one below the other.
    """
    timeline = overview.timeline
    scale, unit = _time_unit(timeline.time_s)
    end = timeline.time_s * scale
    axes.set_ylim(layout.height - 0.5, -0.5)
    axes.set_xlim(0, end * 1.002 or 1)
    axes.set_xlabel(f"time ({unit})", fontsize=9)
    _name_ranks(axes, layout)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("What each rank does, and when", loc="left", fontsize=11, fontweight="bold")
    if not len(timeline):
        axes.text(0.5, 0, "nothing is sent", ha="center", va="center", fontsize=10)
        return
    _draw_waiting(axes, overview, layout, scale)
    _draw_sends(axes, overview, layout, scale)
    _draw_reductions(axes, overview, layout, scale)
    followed = _is_followed(overview, layout)
    if followed:
        _follow_chunk(axes, overview, layout, scale)
    _draw_legend(axes, few=overview.num_ranks <= MAX_RANKS_FOLLOWED, followed=followed)


def _is_followed(overview: Overview, layout: LaneLayout) -> bool:
    # Where all that is sent is one chunk, and to many at once, following it would frame everything.
    one_path = overview.num_chunks > 1 or not layout.row.any()
    return overview.num_ranks <= MAX_RANKS_FOLLOWED and one_path


def _time_unit(time_s: float) -> tuple[float, str]:
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if time_s * scale >= 1:
            return scale, unit
    return (1e9, "ns") if time_s > 0 else (1.0, "s")


def _name_ranks(axes: Axes, layout: LaneLayout) -> None:
    ranks = range(0, len(layout.middle), 1 if len(layout.middle) <= 32 else 4)
    axes.set_yticks(layout.middle[ranks].tolist(), [f"rank {rank}" for rank in ranks], fontsize=8)


def _draw_waiting(axes: Axes, overview: Overview, layout: LaneLayout, scale: float) -> None:
    gaps = np.concatenate(overview.waiting_s) * scale
    rank = np.repeat(np.arange(overview.num_ranks), [len(gaps) for gaps in overview.waiting_s])
    shapes = boxes(layout.origin[rank], gaps[:, 0], gaps[:, 1], layout.lane(rank))
    hatch = "...." if overview.num_ranks <= MAX_RANKS_FOLLOWED else None
    draw_boxes(
        axes, shapes, "waits", facecolor=PALE_GREY if hatch else LIGHT_GREY, edgecolor=GREY, linewidth=0, hatch=hatch
    )


def _draw_sends(axes: Axes, overview: Overview, layout: LaneLayout, scale: float) -> None:
    timeline = overview.timeline
    edge = 0.5 if overview.num_ranks <= MAX_RANKS_FOLLOWED else 0.1
    for reduce, colour in ((True, BLUE), (False, SKY)):
        rows = timeline.reduce == reduce
        shapes = _send_boxes(timeline, layout, rows, scale)
        label = "sends to add" if reduce else "sends to overwrite"
        draw_boxes(axes, shapes, label, facecolor=colour, edgecolor=WHITE, linewidth=edge)
    _label_sends(axes, overview, layout, scale)


def _send_boxes(timeline: Timeline, layout: LaneLayout, rows: Bools, scale: float) -> Floats:
    src = timeline.src[rows]
    begin, end = timeline.start_s[rows] * scale, timeline.left_s[rows] * scale
    return boxes(layout.origin[src], begin, end, layout.sends(src, layout.row[rows]))


def _label_sends(axes: Axes, overview: Overview, layout: LaneLayout, scale: float) -> None:
    """Chunk and receiver on each sending, as far as there is room."""
    timeline = overview.timeline
    per_unit, lane = points_per_unit(axes)
    size = min(8.0, 0.75 * lane * float(layout.row_height.min()))
    if size < 4:
        return
    labels: list[Label] = []
    columns = (
        _send_y(timeline, layout),
        timeline.dst,
        timeline.chunk,
        timeline.reduce,
        timeline.start_s,
        timeline.left_s,
    )
    for y, dst, chunk, reduce, start, left in zip(*(column.tolist() for column in columns), strict=True):
        text = _first_that_fits((f"{chunk} → {dst}", f"{chunk}"), size, (left - start) * scale * per_unit)
        if text:
            colour = WHITE if reduce else BLACK
            labels.append(((start + left) / 2 * scale, y, text, colour, False))
    draw_labels(axes, labels, size)


def _send_y(timeline: Timeline, layout: LaneLayout) -> Floats:
    """The middle of each transfer's box, (num_transfers,)."""
    return layout.origin[timeline.src] + _middle(layout.sends(timeline.src, layout.row))


def _middle(row: Row) -> float | Floats:
    return (row[0] + row[1]) / 2


def _draw_reductions(axes: Axes, overview: Overview, layout: LaneLayout, scale: float) -> None:
    timeline = overview.timeline
    few = overview.num_ranks <= MAX_RANKS_FOLLOWED
    rows = timeline.reduce
    dst = timeline.dst[rows]
    begin, end = timeline.apply_s[rows] * scale, timeline.applied_s[rows] * scale
    shapes = boxes(layout.origin[dst], begin, end, layout.reduces(dst))
    style: dict[str, Any] = {"edgecolor": BLACK, "linewidth": 0.4, "hatch": "/////"} if few else {"linewidth": 0}
    draw_boxes(axes, shapes, "reduces", facecolor=ORANGE, **style)
    # A copy takes no time: a tick says when the chunk is in its place.
    rank, time = timeline.dst[~rows], timeline.applied_s[~rows] * scale
    ticks = np.stack([np.stack([time, layout.origin[rank] + row], axis=-1) for row in layout.reduces(rank)], axis=1)
    axes.add_collection(
        LineCollection(list(ticks), colors=DARK_GREY, linewidths=2.0 if few else 0.5, label="copy"), autolim=False
    )


def _follow_chunk(axes: Axes, overview: Overview, layout: LaneLayout, scale: float) -> None:
    timeline = overview.timeline
    rows = timeline.chunk == FOLLOWED_CHUNK
    dst = timeline.dst[rows]
    left, arrived = timeline.left_s[rows] * scale, timeline.arrived_s[rows] * scale
    outline = _send_boxes(timeline, layout, rows, scale)
    draw_boxes(axes, outline, "followed", facecolor="none", edgecolor=BLACK, linewidth=1.8)
    departs = np.column_stack([left, _send_y(timeline, layout)[rows]])
    arrives = np.column_stack([arrived, layout.origin[dst] + _middle(layout.reduces(dst))])
    path = list(np.stack([departs, arrives], axis=1))
    axes.add_collection(LineCollection(path, colors=BLACK, linewidths=1.0), autolim=False)
    axes.plot(arrives[:, 0], arrives[:, 1], "o", color=BLACK, markersize=3)


def _draw_legend(axes: Axes, *, few: bool, followed: bool) -> None:
    dots, strokes = ("....", "/////") if few else (None, None)
    handles: list[Patch | Line2D] = [
        Patch(facecolor=BLUE, label="sends chunk → rank, which adds it"),
        Patch(facecolor=SKY, label="sends chunk → rank, which overwrites"),
        Patch(facecolor=ORANGE, edgecolor=BLACK, linewidth=0.4, hatch=strokes, label="reduces"),
        Line2D([], [], color=DARK_GREY, marker="|", linestyle="none", markeredgewidth=2, label="copy in place"),
        Patch(facecolor=PALE_GREY if few else LIGHT_GREY, edgecolor=GREY, linewidth=0, hatch=dots, label="waits"),
    ]
    if followed:
        handles.append(Line2D([], [], color=BLACK, marker="o", markersize=3, label=f"chunk {FOLLOWED_CHUNK}, followed"))
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(handles), fontsize=8, frameon=False,
        borderaxespad=0.2, columnspacing=1.4, handlelength=1.8,
    )  # fmt: skip


def _first_that_fits(labels: tuple[str, ...], fontsize: float, room: float) -> str | None:
    return next((label for label in labels if len(label) * 0.62 * fontsize < room), None)
