"""The lanes: the activities of each rank over time."""

from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import Transform

from ringsim import analysis
from ringsim.algorithms import split_into_hosts, torus_of
from ringsim.network import Network
from ringsim.registry import AlgorithmName, base_name
from ringsim.report.colours import ink_on
from ringsim.report.plots import charts
from ringsim.report.plots.charts import Floats, draw_boxes, points_per_unit, shifted, strided
from ringsim.report.plots.style import LEFT, Panel, font_scale, palette, points
from ringsim.schedule import Bools, Ints
from ringsim.simulation import Seconds, Timeline
from ringsim.units import format_time, time_unit

FOLLOWED_CHUNK = 0
FEW_RANKS = 16  # up to so many, there is room for outlines
MAX_PHASES = 4  # with names above the lanes
_TOP, _SENDS, _APPLIES, _ROW_OF_MANY = -0.40, 0.45, (0.09, 0.40), 0.30  # of a lane that reaches from -0.4 to 0.4
_STOPPED, _NOTES = 0.05, 0.5  # of the time: how far hanging activities are drawn beyond its end, and the room for notes
_TEXT, _SMALLEST_TEXT = 8.0, 5.5  # points
_NAME_LENGTH, _NOTE_LENGTH = 12, 74  # characters
_HIGHEST, _LEFT_OF_HOSTS = 6.0, 1.6  # inches, of all lanes together, and of their names
_PHASE_GAP, _PHASE_LEVEL, _LEGEND_LEVEL = 5.0, 15.0, 17.0  # points above the lanes

Handles = list[Patch | Line2D]


class Lanes:
    """The geometry of a run: one lane per rank from top to bottom, time in `unit` along x.

    A lane holds sends above applications; overlapping sends have several rows. origin: y of each lane. extra: height of
    its further rows. middle: y of its name.
    """

    def __init__(self, timeline: Timeline, view: analysis.RunView | None = None) -> None:
        """Place a run; without its view, phases, hosts and slow parts are unknown."""
        alike = Network.uniform(latency_s=0.0, bandwidth_bytes_per_s=1.0).topology(timeline.num_ranks)
        slow_parts, phases = (view.slow_parts, view.phases) if view else (analysis.SlowParts(), ())
        self.timeline, self.groups = timeline, _groups_of(view) if view else ()
        self.blocked = view.blocked if view else analysis.find_blocked(timeline, alike)
        self.num_ranks = timeline.num_ranks
        self.phases = phases if 1 < len(phases) <= MAX_PHASES else ()
        pairs = analysis.slow_pairs(slow_parts)
        self.slow_ranks = {rank.rank for rank in slow_parts.ranks if rank.slowdown > 1}
        ends = zip(timeline.src.tolist(), timeline.dst.tolist(), strict=True)
        self.is_slow: Bools = np.array([pair in pairs for pair in ends], dtype=np.bool_)
        self.row, num_rows = analysis.pack_sends(timeline)
        self.row_height: Floats = np.where(num_rows > 1, _ROW_OF_MANY, _SENDS)
        self.extra: Floats = num_rows * self.row_height - _SENDS
        self.origin: Floats = np.arange(self.num_ranks) + np.cumsum(self.extra) - self.extra
        self.middle: Floats = self.origin + self.extra / 2
        self.height = float(self.num_ranks + self.extra.sum())
        self.until_s = timeline.until_s or (1e-9 if self.blocked else 0.0)
        self.stopped_s = self.until_s * (1 + _STOPPED)
        self.end_s = self.until_s * (1 + _STOPPED + _NOTES) if self.blocked else self.until_s
        self.begin_s = min(0.0, float(timeline.start_s.min(initial=0.0)))
        self.scale, self.unit = time_unit(self.until_s)

    def share_axis(self, begin_s: float, end_s: float) -> None:
        self.begin_s, self.end_s = begin_s, end_s
        self.scale, self.unit = time_unit(end_s)

    @property
    def height_above(self) -> float:
        return _PHASE_GAP + _PHASE_LEVEL * max(len(self.phases), int(self.blocked is not None))

    def drawn(self, times_s: Seconds) -> Seconds:
        """Replace infinite times by `stopped_s`."""
        return np.where(np.isfinite(times_s), times_s, self.stopped_s)

    def y_of_sends(self, rows: Bools | Ints) -> Floats:
        """Return the upper edges of sends, (num_rows,)."""
        src = self.timeline.src[rows]
        return self.origin[src] + _TOP + self.row[rows] * self.row_height[src]

    def sends(self, rows: Bools) -> Floats:
        """Return (num_rows, 4, 2) boxes in the senders' lanes."""
        begin_s, end_s = self.timeline.start_s[rows], self.timeline.sent_s[rows]
        return self._boxes(begin_s, end_s, self.y_of_sends(rows), self.row_height[self.timeline.src[rows]])

    def applies(self, rows: Bools) -> Floats:
        """Return (num_rows, 4, 2) boxes in the receivers' lanes."""
        dst, (top, bottom) = self.timeline.dst[rows], _APPLIES
        begin_s, end_s = self.timeline.apply_s[rows], self.timeline.applied_s[rows]
        return self._boxes(begin_s, end_s, self.origin[dst] + self.extra[dst] + top, bottom - top)

    def whole(self, rank: Ints, begin_s: Seconds, end_s: Seconds) -> Floats:
        return self._boxes(begin_s, end_s, self.origin[rank] + _TOP, _APPLIES[1] - _TOP + self.extra[rank])

    def _boxes(self, begin_s: Seconds, end_s: Seconds, top: Floats, height: Floats | float) -> Floats:
        return charts.boxes(top, self.drawn(begin_s) * self.scale, self.drawn(end_s) * self.scale, (0.0, height))


def _groups_of(view: analysis.RunView) -> tuple[str, ...]:
    """Return the name of each rank's host or row, if any."""
    num_ranks, name = view.schedule.num_ranks, view.schedule.algorithm
    base = base_name(name)
    if view.host_of_rank or base not in ("torus", "hierarchical"):
        return view.host_of_rank
    per_host = AlgorithmName.parse(name).ranks_per_host
    count, size = torus_of(num_ranks) if base == "torus" else split_into_hosts(num_ranks, per_host)
    noun = "row" if base == "torus" else "host"
    return tuple(f"{noun} {rank // size}" for rank in range(num_ranks)) if min(count, size) > 1 else ()


def lanes_panel(lanes: Lanes, heading: str = "Timeline of each rank") -> Panel:
    """Return the panel of the lanes."""

    def draw(figure: SubFigure, margins: dict[str, float]) -> None:
        draw_lanes(figure.subplots(gridspec_kw=margins), lanes, heading)

    above = 0.28 + points(lanes.height_above + _LEGEND_LEVEL) / font_scale() / 72
    height = above + 0.55 + min(max(0.52 * lanes.height, 0.8), _HIGHEST)
    return Panel(height, draw, above, 0.5, left=_LEFT_OF_HOSTS if lanes.groups else LEFT)


def draw_lanes(axes: Axes, lanes: Lanes, heading: str) -> None:
    """Draw the lanes with ranks, hosts, phases, and a legend."""
    set_time_axis(axes, lanes)
    axes.set_xlabel(f"time ({lanes.unit})", fontsize=points(9))
    title: dict[str, Any] = {"fontsize": points(11), "fontweight": "bold"}
    axes.set_title(heading, loc="left", pad=points(lanes.height_above + _LEGEND_LEVEL), **title)
    if not len(lanes.timeline):
        axes.set_xticks([])
        axes.set_xlabel("")
        axes.text(0.5, 0, "nothing is sent", ha="center", va="center", fontsize=points(10))
        return
    handles = draw_bars(axes, lanes)
    handles += _follow_chunk(axes, lanes)
    handles += _draw_blocked(axes, lanes)
    _draw_phases(axes, lanes)
    above = shifted(axes, axes.transAxes, y=points(lanes.height_above))
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1), bbox_transform=above, ncols=len(handles),
        fontsize=points(8), frameon=False, borderaxespad=0, borderpad=0, columnspacing=1.4, handlelength=1.6,
        handletextpad=0.5,
    )  # fmt: skip


def set_time_axis(axes: Axes, lanes: Lanes) -> None:
    """Set the limits, name the lanes, separate hosts, and mark slow ranks."""
    axes.set_ylim(lanes.height - 0.5, -0.5)
    axes.set_xlim(lanes.begin_s * lanes.scale, lanes.end_s * lanes.scale * 1.002 or 1)
    axes.tick_params(axis="x", labelsize=points(8))
    axes.spines[["top", "right"]].set_visible(False)
    lane, groups = _least_points(axes, lanes), lanes.groups
    ranks = sorted({*strided(lanes.num_ranks, points(_TEXT + 1), lane), *(lanes.slow_ranks if lane > _TEXT else ())})
    names = [f"rank {rank}" + (f" ({_short(groups[rank])})" if groups else "") for rank in ranks]
    labels = [f"{name}, slow" if rank in lanes.slow_ranks else name for rank, name in zip(ranks, names, strict=True)]
    axes.set_yticks(lanes.middle[ranks].tolist(), labels, fontsize=points(_TEXT))
    for rank, text in zip(ranks, axes.get_yticklabels(), strict=True):
        if rank in lanes.slow_ranks:
            text.set_color(palette().vermillion)
    for rank, (before, after) in enumerate(pairwise(groups), 1):
        if before != after:
            axes.axhline(lanes.origin[rank] - 0.5, color=palette().grey, linewidth=0.6, zorder=0.5)


def _least_points(axes: Axes, lanes: Lanes) -> float:
    return points_per_unit(axes)[1] * float(np.diff(lanes.middle).min(initial=lanes.height))


def _short(name: str, length: int = _NAME_LENGTH) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def draw_bars(axes: Axes, lanes: Lanes) -> Handles:
    """Draw sends, applications and waits; return their legend entries."""
    timeline, colours, few = lanes.timeline, palette(), lanes.num_ranks <= FEW_RANKS
    begun, applied = np.isfinite(timeline.start_s), np.isfinite(timeline.applied_s)
    lasting = np.isfinite(timeline.apply_s) & timeline.reduce & (lanes.drawn(timeline.applied_s) > timeline.apply_s)
    handles: Handles = []

    def add_boxes(shapes: Floats, label: str, text: str = "", **style: Any) -> None:
        if len(shapes):
            draw_boxes(axes, shapes, label, **style)
            handles.append(Patch(label=text or label, facecolor=style["facecolor"]))

    def add_lines(lines: Floats, label: str, colour: str, width: float, **marker: Any) -> None:
        if len(lines):
            charts.draw_lines(axes, lines, label, colors=colour, linewidths=width)
            handles.append(Line2D([], [], color=colour, label=label, **marker))

    to = "c0 → r1: chunk 0 to rank 1" if _label_sends(axes, lanes, begun) else "a chunk to a rank"
    edge: dict[str, Any] = {"edgecolor": colours.paper, "linewidth": 0.5 if few else 0.1}
    adds, overwrites = lanes.sends(begun & timeline.reduce), lanes.sends(begun & ~timeline.reduce)
    add_boxes(adds, "sends to add", f"{to}, which adds it", facecolor=colours.blue, **edge)
    add_boxes(overwrites, "sends to overwrite", f"{to}, which overwrites", facecolor=colours.sky, **edge)
    slow = lanes.sends(begun & lanes.is_slow)[:, 2:4]
    add_lines(slow, "over a slow link", colours.vermillion, 2.5 if few else 1, linewidth=2.5)
    add_boxes(lanes.applies(lasting), "reduces", facecolor=colours.orange, linewidth=0)
    # Activities without duration have a tick at the time at which the chunk is in its place.
    tick: dict[str, Any] = {"marker": "|", "linestyle": "none", "markeredgewidth": 2}
    at_once, copies = applied & timeline.reduce & ~lasting, applied & ~timeline.reduce
    add_lines(lanes.applies(at_once)[:, 1:3], "reduces (takes no time)", colours.orange, 2.0 if few else 0.5, **tick)
    add_lines(lanes.applies(copies)[:, 1:3], "overwrites", colours.dark_grey, 2.0 if few else 0.5, **tick)
    waiting = analysis.waiting_times(timeline)
    rank, gaps = np.repeat(np.arange(lanes.num_ranks), list(map(len, waiting))), np.concatenate(waiting)
    add_boxes(lanes.whole(rank, *gaps.T), "waits", facecolor=colours.light_grey, linewidth=0, zorder=0.9)
    if lanes.blocked:
        adding = np.isfinite(timeline.apply_s) & ~applied
        unended = np.concatenate([lanes.sends(begun & ~np.isfinite(timeline.sent_s)), lanes.applies(adding)])
        crossed: dict[str, Any] = {"facecolor": "none", "edgecolor": colours.vermillion, "hatch": "xxx"}
        draw_boxes(axes, unended, "never ends", zorder=3, linewidth=1.0, **crossed)
        handles.append(Patch(label="never ends", **crossed))
    return handles


def _label_sends(axes: Axes, lanes: Lanes, begun: Bools) -> bool:
    timeline, colours = lanes.timeline, palette()
    per_unit, lane = points_per_unit(axes)
    size = min(points(_TEXT), 0.75 * lane * float(lanes.row_height.min()))
    if size < _SMALLEST_TEXT:
        return False
    # The longest label of each form decides, so that boxes of one length are labelled alike.
    longest = (f"c{timeline.num_chunks - 1}", f"c{timeline.num_chunks - 1} → r{lanes.num_ranks - 1}")
    shorter, longer = (len(label) * 0.62 + 0.4 for label in longest)
    labels: list[charts.Label] = []
    for row, box in zip(np.flatnonzero(begun).tolist(), lanes.sends(begun), strict=True):
        room = float(box[1, 0] - box[0, 0]) * per_unit / size
        if room > shorter:
            chunk = int(timeline.chunk[row])
            is_filled = lanes.num_ranks > FEW_RANKS and chunk == FOLLOWED_CHUNK
            colour = ink_on(colours.ink if is_filled else colours.blue if timeline.reduce[row] else colours.sky)
            text = f"c{chunk} → r{timeline.dst[row]}" if room > longer else f"c{chunk}"
            labels.append((*box.mean(axis=0).tolist(), text, colour, False))
    charts.draw_labels(axes, labels, size)
    return bool(labels)


def _follow_chunk(axes: Axes, lanes: Lanes) -> Handles:
    timeline, colours, few = lanes.timeline, palette(), lanes.num_ranks <= FEW_RANKS
    rows = (timeline.chunk == FOLLOWED_CHUNK) & np.isfinite(timeline.start_s)
    # If there is only one chunk, sent to many ranks at once, following it would frame everything.
    if not rows.any() or (timeline.num_chunks == 1 and lanes.row.any()):
        return []
    outline: dict[str, Any] = {"facecolor": "none" if few else colours.ink, "edgecolor": colours.ink}
    draw_boxes(axes, lanes.sends(rows), "followed", linewidth=1.8 if few else 0.3, zorder=2, **outline)
    rows &= np.isfinite(timeline.arrived_s)
    src, dst = timeline.src[rows], timeline.dst[rows]
    departs = timeline.sent_s[rows] * lanes.scale, lanes.y_of_sends(rows) + lanes.row_height[src] / 2
    arrives = timeline.arrived_s[rows] * lanes.scale, lanes.origin[dst] + lanes.extra[dst] + sum(_APPLIES) / 2
    ways = np.stack([np.column_stack(departs), np.column_stack(arrives)], axis=1)
    charts.draw_lines(axes, ways, colors=colours.ink, linewidths=1.0 if few else 0.6)
    axes.plot(*arrives, "o", color=colours.ink, markersize=points(3 if few else 1.5))
    marker: dict[str, Any] = {"marker": "o", "markersize": 3, "linewidth": 1.0 if few else 4}
    return [Line2D([], [], color=colours.ink, label=f"chunk {FOLLOWED_CHUNK}, followed", **marker)]


def _level(axes: Axes, number: int) -> Transform:
    return shifted(axes, axes.get_xaxis_transform(), y=points(_PHASE_GAP + _PHASE_LEVEL * number))


def _draw_phases(axes: Axes, lanes: Lanes) -> None:
    colours = palette()
    box = {"facecolor": colours.paper, "edgecolor": "none", "pad": 1.0}
    step, is_begun, number = lanes.timeline.step, np.isfinite(lanes.timeline.start_s), 0
    for name, first, last in lanes.phases:
        rows = is_begun & (first <= step) & (step <= last)
        if not rows.any():
            continue
        begin_s, end_s = lanes.timeline.start_s[rows].min(), lanes.drawn(lanes.timeline.applied_s[rows]).max()
        begin, end = begin_s * lanes.scale, end_s * lanes.scale
        style: dict[str, Any] = {"transform": _level(axes, number), "color": colours.dark_grey}
        axes.plot([begin, end], [1, 1], linewidth=1.2, clip_on=False, marker="|", label=name, **style)
        is_late = begin_s + end_s > lanes.until_s
        x, side = (end, "right") if is_late else (begin, "left")
        axes.text(x, 1, f" {name} ", ha=side, va="center", fontsize=points(9), bbox=box, **style)
        number += 1


def _draw_blocked(axes: Axes, lanes: Lanes) -> Handles:
    blocked, colours = lanes.blocked, palette()
    if blocked is None:
        return []
    ranks = np.array([stalled.rank for stalled in blocked.ranks])
    since_s = np.array([stalled.last_active_s for stalled in blocked.ranks])
    hanging = lanes.whole(ranks, since_s, np.full(len(ranks), lanes.stopped_s))
    draw_boxes(axes, hanging, "hangs", facecolor=colours.light_grey, edgecolor="none", zorder=0.8)
    failure: dict[str, Any] = {"color": colours.vermillion, "linestyle": "--", "linewidth": 1.2}
    for name, at_s in blocked.failed:
        axes.axvline(at_s * lanes.scale, label=f"{name} failed", **failure)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= lanes.until_s * lanes.scale])
    end, beside, lane = lanes.stopped_s * lanes.scale, points(_PHASE_GAP), _least_points(axes, lanes)
    axes.text(end, 1, f" nothing finishes after {format_time(blocked.until_s)}", va="center", fontsize=points(9),
              transform=_level(axes, 0), color=colours.vermillion, fontweight="bold")  # fmt: skip
    size = min(points(_TEXT), max(0.8 * lane, points(5.0)))
    shown = {blocked.ranks[index].rank for index in strided(len(blocked.ranks), size + 1, lane)}
    for stalled in blocked.ranks:
        if stalled.rank in shown or stalled.doing != "waits":
            note = analysis.hanging_text(stalled) + (f" ({', '.join(stalled.failed)} failed)" if stalled.failed else "")
            axes.text(end, float(lanes.middle[stalled.rank]), _short(note, _NOTE_LENGTH), va="center", fontsize=size,
                      transform=shifted(axes, axes.transData, x=beside),
                      color=colours.ink if stalled.doing == "waits" else colours.vermillion)  # fmt: skip
    return [Line2D([], [], label="a failure", **failure)] if blocked.failed else []
