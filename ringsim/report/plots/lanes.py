"""The lanes: the activities of every rank over time."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ringsim.report.plots.boxes import Floats, boxes, draw_boxes, points_per_unit
from ringsim.report.plots.labels import Label, draw_labels
from ringsim.report.plots.lane_facts import LaneFacts
from ringsim.report.plots.lane_layout import Row
from ringsim.report.plots.lane_notes import draw_legend, draw_phases, draw_stall, name_ranks, title_pad
from ringsim.report.plots.palette import ink_on, palette
from ringsim.report.plots.style import points
from ringsim.schedule import Bools

FOLLOWED_CHUNK = 0
FEW_RANKS = 16  # up to so many, there is room for outlines, hatches and the ways from lane to lane
_SMALLEST_TEXT = 5.5  # points; nobody reads smaller ones

Handles = list[Patch | Line2D]


def draw_lanes(axes: Axes, facts: LaneFacts) -> None:
    """Draws a lane per rank, rank 0 on top: above what it sends, below what it reduces, dotted where it waits.

    What a rank sends at the same time lies in rows one below the other.
    """
    scale, unit = time_unit(facts.until_s)
    axes.set_ylim(facts.layout.height - 0.5, -0.5)
    axes.set_xlim(0, facts.end_s * scale * 1.002 or 1)
    axes.set_xlabel(f"time ({unit})", fontsize=points(9))
    name_ranks(axes, facts)
    axes.tick_params(axis="x", labelsize=points(8))
    axes.spines[["top", "right"]].set_visible(False)
    title: dict[str, Any] = {"fontsize": points(11), "fontweight": "bold", "pad": title_pad(facts)}
    axes.set_title("What each rank does, and when", loc="left", **title)
    if not len(facts.timeline):
        axes.text(0.5, 0, "nothing is sent", ha="center", va="center", fontsize=points(10))
        return
    handles = [*_draw_sends(axes, facts, scale), *_draw_reductions(axes, facts, scale)]
    handles += _draw_waiting(axes, facts, scale)
    handles += _follow_chunk(axes, facts, scale)
    handles += draw_stall(axes, facts, scale)
    draw_phases(axes, facts, scale)
    draw_legend(axes, handles, facts)


def time_unit(time_s: float) -> tuple[float, str]:
    """Returns the unit in which a time has a digit before the point, and how many of them a second has."""
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if time_s * scale >= 1:
            return scale, unit
    return (1e9, "ns") if time_s > 0 else (1.0, "s")


def _draw_waiting(axes: Axes, facts: LaneFacts, scale: float) -> Handles:
    gaps = np.concatenate(facts.waiting_s) * scale
    if not len(gaps):
        return []
    rank = np.repeat(np.arange(facts.num_ranks), [len(gaps) for gaps in facts.waiting_s])
    shapes = boxes(facts.layout.origin[rank], gaps[:, 0], gaps[:, 1], facts.layout.lane(rank))
    colours, few = palette(), facts.num_ranks <= FEW_RANKS
    style: dict[str, Any] = {"facecolor": colours.pale_grey if few else colours.light_grey, "edgecolor": colours.grey,
                             "linewidth": 0, "hatch": "...." if few else None}  # fmt: skip
    draw_boxes(axes, shapes, "waits", zorder=0.9, **style)
    return [Patch(label="waits", **style)]


def _draw_sends(axes: Axes, facts: LaneFacts, scale: float) -> Handles:
    timeline, colours = facts.timeline, palette()
    edge = 0.5 if facts.num_ranks <= FEW_RANKS else 0.1
    labelled = _label_sends(axes, facts, scale)
    handles: Handles = []
    for reduce, label, colour in ((True, "sends to add", colours.blue), (False, "sends to overwrite", colours.sky)):
        rows = (timeline.reduce == reduce) & facts.begun
        if rows.any():
            shapes = _send_boxes(facts, rows, scale)
            draw_boxes(axes, shapes, label, facecolor=colour, edgecolor=colours.paper, linewidth=edge)
            does = "which adds it" if reduce else "which overwrites"
            text = f"c0 → r1: chunk 0 to rank 1, {does}" if labelled else f"a chunk to a rank, {does}"
            handles.append(Patch(facecolor=colour, label=text))
    return handles + _mark_slow(axes, facts, scale)


def _mark_slow(axes: Axes, facts: LaneFacts, scale: float) -> Handles:
    """A line below what goes over a slow link, or is sent by a slow rank."""
    timeline = facts.timeline
    slow = facts.begun & np.array([bool(name) for name in facts.slow_links], dtype=bool)
    if not slow.any():
        return []
    shapes = _send_boxes(facts, slow, scale)
    lines = list(shapes[:, 2:4])  # the lower edge
    style: dict[str, Any] = {
        "colors": palette().vermillion,
        "linewidths": 2.5 if timeline.num_ranks <= FEW_RANKS else 1,
    }
    axes.add_collection(LineCollection(lines, label="over a slow link", zorder=3, **style), autolim=False)
    return [Line2D([], [], color=palette().vermillion, linewidth=2.5, label="over a slow link")]


def _send_boxes(facts: LaneFacts, rows: Bools, scale: float) -> Floats:
    src = facts.timeline.src[rows]
    begin, end = facts.timeline.start_s[rows] * scale, facts.drawn(facts.timeline.left_s[rows]) * scale
    return boxes(facts.layout.origin[src], begin, end, facts.layout.sends(src, facts.layout.row[rows]))


def _label_sends(axes: Axes, facts: LaneFacts, scale: float) -> bool:
    """Chunk and receiver on each sending, as far as there is room; returns whether on any."""
    timeline, colours = facts.timeline, palette()
    per_unit, lane = points_per_unit(axes)
    size = min(points(8.0), 0.75 * lane * float(facts.layout.row_height.min()))
    if size < _SMALLEST_TEXT:
        return False
    on = {True: ink_on(colours.blue), False: ink_on(colours.sky)}
    few = facts.num_ranks <= FEW_RANKS
    shorter, longer = _widths(f"c{timeline.num_chunks - 1}", f"c{timeline.num_chunks - 1} → r{facts.num_ranks - 1}")
    labels: list[Label] = []
    columns = (_send_y(facts), timeline.dst, timeline.chunk, timeline.reduce, timeline.start_s,
               facts.drawn(timeline.left_s))  # fmt: skip
    for y, dst, chunk, reduce, start, left in zip(*(column[facts.begun].tolist() for column in columns), strict=True):
        room = (left - start) * scale * per_unit / size
        text = f"c{chunk} → r{dst}" if room > longer else f"c{chunk}" if room > shorter else ""
        if text:
            colour = on[reduce] if few or chunk != FOLLOWED_CHUNK else ink_on(colours.ink)
            labels.append(((start + left) / 2 * scale, y, text, colour, False))
    draw_labels(axes, labels, size)
    return bool(labels)


def _send_y(facts: LaneFacts) -> Floats:
    """The middle of each transfer's box, (num_transfers,)."""
    return facts.layout.origin[facts.timeline.src] + _middle(facts.layout.sends(facts.timeline.src, facts.layout.row))


def _middle(row: Row) -> float | Floats:
    return (row[0] + row[1]) / 2


def _draw_reductions(axes: Axes, facts: LaneFacts, scale: float) -> Handles:
    timeline, colours = facts.timeline, palette()
    few = facts.num_ranks <= FEW_RANKS
    begun = np.isfinite(timeline.apply_s)
    lasting = begun & timeline.reduce & (facts.drawn(timeline.applied_s) > timeline.apply_s)
    dst = timeline.dst[lasting]
    begin, end = timeline.apply_s[lasting] * scale, facts.drawn(timeline.applied_s[lasting]) * scale
    style: dict[str, Any] = {"facecolor": colours.orange, "linewidth": 0}
    if few:
        style |= {"edgecolor": ink_on(colours.orange), "linewidth": 0.4, "hatch": "/////"}
    handles: Handles = []
    if lasting.any():
        draw_boxes(axes, boxes(facts.layout.origin[dst], begin, end, facts.layout.reduces(dst)), "reduces", **style)
        handles.append(Patch(label="reduces", **style))
    # What takes no time has a tick, which says when the chunk is in its place.
    done = np.isfinite(timeline.applied_s)
    for rows, name, colour in (
        (done & timeline.reduce & ~lasting, "reduces at once", colours.orange),
        (done & ~timeline.reduce, "copy in place", colours.dark_grey),
    ):
        if rows.any():
            ticks = LineCollection(
                _ticks(facts, rows, scale), colors=colour, linewidths=2.0 if few else 0.5, label=name
            )
            axes.add_collection(ticks, autolim=False)
            tick: dict[str, Any] = {"marker": "|", "linestyle": "none", "markeredgewidth": 2}
            handles.append(Line2D([], [], color=colour, label=name, **tick))
    return handles


def _ticks(facts: LaneFacts, rows: Bools, scale: float) -> list[Floats]:
    rank, time = facts.timeline.dst[rows], facts.timeline.applied_s[rows] * scale
    ends = [np.stack([time, facts.layout.origin[rank] + row], axis=-1) for row in facts.layout.reduces(rank)]
    return list(np.stack(ends, axis=1))


def _follow_chunk(axes: Axes, facts: LaneFacts, scale: float) -> Handles:
    """One chunk from lane to lane: outlined where there is room, else filled."""
    # Where all that is sent is one chunk, and to many at once, following it would frame everything.
    if facts.timeline.num_chunks == 1 and facts.layout.row.any():
        return []
    rows = (facts.timeline.chunk == FOLLOWED_CHUNK) & facts.begun
    if not rows.any():
        return []
    colours, few = palette(), facts.num_ranks <= FEW_RANKS
    outline: dict[str, Any] = {"facecolor": "none" if few else colours.ink, "edgecolor": colours.ink}
    draw_boxes(axes, _send_boxes(facts, rows, scale), "followed", linewidth=1.8 if few else 0.3, zorder=2, **outline)
    rows &= np.isfinite(facts.timeline.arrived_s)
    departs, arrives = _ways(facts, rows, scale)
    path = list(np.stack([departs, arrives], axis=1))
    width = 1.0 if few else 0.6
    axes.add_collection(LineCollection(path, colors=colours.ink, linewidths=width, label="way"), autolim=False)
    size = points(3 if few else 1.5)
    axes.plot(arrives[:, 0], arrives[:, 1], "o", color=colours.ink, markersize=size)
    marker: dict[str, Any] = {"marker": "o", "markersize": 3, "linewidth": width if few else 4}
    return [Line2D([], [], color=colours.ink, label=f"chunk {FOLLOWED_CHUNK}, followed", **marker)]


def _ways(facts: LaneFacts, rows: Bools, scale: float) -> tuple[Floats, Floats]:
    """Where each transfer leaves its sender's lane and where it arrives in its receiver's; each (num_rows, 2)."""
    timeline, dst = facts.timeline, facts.timeline.dst[rows]
    departs = np.column_stack([timeline.left_s[rows] * scale, _send_y(facts)[rows]])
    height = facts.layout.origin[dst] + _middle(facts.layout.reduces(dst))
    return departs, np.column_stack([timeline.arrived_s[rows] * scale, height])


def _widths(*labels: str) -> tuple[float, ...]:
    """Of the longest label of each form, so that boxes of one length are labelled alike; times the size of the text."""
    return tuple(len(label) * 0.62 + 0.4 for label in labels)
