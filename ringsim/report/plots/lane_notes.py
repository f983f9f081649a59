"""What is written around the lanes: ranks and hosts on the left, phases above, what hangs on the right, the legend."""

from itertools import groupby, pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation, Transform

from ringsim.analysis import StalledRank, hanging_text
from ringsim.report.plots.boxes import boxes, draw_boxes, points_per_unit
from ringsim.report.plots.lane_facts import LaneFacts
from ringsim.report.plots.palette import palette
from ringsim.report.plots.style import points
from ringsim.units import format_time

_TEXT = 8.0  # points, of the ranks' names
_HOST_LEFT = 52.0  # points from the axis to the end of a host's name
_NAME_LENGTH = 12  # characters of a host's name
_PHASE_GAP, _PHASE_LEVEL, _LEGEND_LEVEL = 5.0, 15.0, 17.0  # points above the lanes
_NOTE_LENGTH, _NOTE_GAP = 74, 5.0  # characters; points


def strided(count: int, needed: float, room: float) -> range:
    """Returns every which of `count` things has its name, if each has `room` points and a name needs so many."""
    stride = next(stride for stride in (1, 2, 4, 8, 16, 32, 64, 128) if stride * room >= needed or stride == 128)
    return range(0, count, stride)


def shifted(axes: Axes, transform: Transform, x: float = 0.0, y: float = 0.0) -> Transform:
    """Returns a transform to places that lie so many points to the right, and above."""
    return transform + ScaledTranslation(x / 72, y / 72, axes.figure.dpi_scale_trans)


def name_ranks(axes: Axes, facts: LaneFacts) -> None:
    """Names the lanes, those of slow ranks in a colour, and the hosts or rows beside them."""
    lane = _least_points(axes, facts)
    slow = facts.landmarks.slow_ranks
    ranks = sorted({*strided(facts.num_ranks, points(_TEXT + 1), lane), *(rank for rank in slow if lane > _TEXT)})
    hosts = facts.group_of_rank
    contiguous = len(list(groupby(hosts))) == len(set(hosts))
    names = [f"rank {rank}" + (f" ({_short(hosts[rank])})" if hosts and not contiguous else "") for rank in ranks]
    labels = [f"{name}, slow" if rank in slow else name for rank, name in zip(ranks, names, strict=True)]
    axes.set_yticks(facts.layout.middle[ranks].tolist(), labels, fontsize=points(_TEXT))
    for rank, text in zip(ranks, axes.get_yticklabels(), strict=True):
        if rank in slow:
            text.set_color(palette().vermillion)
    if hosts and contiguous:
        _name_hosts(axes, facts)


def _least_points(axes: Axes, facts: LaneFacts) -> float:
    """From the middle of a lane to that of the next, where that is least."""
    _, per_unit = points_per_unit(axes)
    return per_unit * float(np.diff(facts.layout.middle).min(initial=facts.layout.height))


def _short(name: str) -> str:
    return name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 1]}…"


def _name_hosts(axes: Axes, facts: LaneFacts) -> None:
    """A bracket beside the lanes of each host or row, its name, and a line between them."""
    colours, layout = palette(), facts.layout
    beside = shifted(axes, axes.get_yaxis_transform(), x=-points(_HOST_LEFT - 4))
    top, bottom = (layout.origin + edge for edge in layout.lane(np.arange(facts.num_ranks)))
    gap = 1.5 / points_per_unit(axes)[1]
    first = 0
    for name, ranks in groupby(facts.group_of_rank):
        last = first + len(list(ranks)) - 1
        line: dict[str, Any] = {"color": colours.dark_grey, "clip_on": False, "linewidth": 1.2}
        axes.plot([0, 0], [top[first] + gap, bottom[last] - gap], transform=beside, **line)
        axes.text(0, (top[first] + bottom[last]) / 2, f"{_short(name)} ", transform=beside, ha="right", va="center",
                  fontsize=points(_TEXT), color=colours.dark_grey, label=name)  # fmt: skip
        if last + 1 < facts.num_ranks:
            middle = (bottom[last] + top[last + 1]) / 2
            axes.axhline(middle, color=colours.grey, linewidth=0.6, zorder=0.5)
        first = last + 1


def title_pad(facts: LaneFacts) -> float:
    """Returns how many points above the lanes their title stands: above the phases and the legend."""
    return points(_PHASE_GAP + _PHASE_LEVEL * _num_levels(facts) + _LEGEND_LEVEL)


def _overlap(facts: LaneFacts) -> bool:
    times = facts.phase_times()
    return any(later[1] < earlier[2] - 1e-9 * facts.until_s for earlier, later in pairwise(times))


def _num_levels(facts: LaneFacts) -> int:
    """How many lines stand between the lanes and their legend: one for each phase where phases overlap in time."""
    times = facts.phase_times()
    return len(times) if _overlap(facts) else int(bool(times or facts.stall))


def draw_phases(axes: Axes, facts: LaneFacts, scale: float) -> None:
    """Draws a bracket above the lanes from the begin of each phase to its end, with its name."""
    per_unit, _ = points_per_unit(axes)
    two_lines, colours = _overlap(facts), palette()
    for number, (name, begin_s, end_s) in enumerate(facts.phase_times()):
        level = _above(axes, points(_PHASE_GAP + (_PHASE_LEVEL * number if two_lines else 0)))
        begin, end = begin_s * scale, end_s * scale
        gap = min(2.0 / per_unit, (end - begin) / 4)
        line: dict[str, Any] = {"color": colours.dark_grey, "linewidth": 1.2, "clip_on": False, "marker": "|"}
        axes.plot([begin + gap, end - gap], [1, 1], transform=level, label=name, **line)
        box = {"facecolor": palette().paper, "edgecolor": "none", "pad": 1.5}
        # Beside its bracket where that is shorter than the name.
        narrow = (end - begin) * per_unit < points(9) * 0.6 * len(name)
        x, side = (begin, "right") if narrow else ((begin + end) / 2, "center")
        if narrow and two_lines and begin < facts.until_s * scale / 2:
            x, side = end, "left"  # nothing else is in its line, and what is left of the lanes may be cut
        axes.text(x, 1, f" {name} " if narrow else name, transform=level, ha=side, va="center", fontsize=points(9),
                  color=colours.dark_grey, bbox=box)  # fmt: skip


def _above(axes: Axes, height: float) -> Transform:
    return shifted(axes, axes.get_xaxis_transform(), y=height)


def draw_stall(axes: Axes, facts: LaneFacts, scale: float) -> list[Patch | Line2D]:
    """Draws what never ends, when what failed, and beside each lane what its rank waits for."""
    stall, colours = facts.stall, palette()
    if stall is None:
        return []
    style: dict[str, Any] = {"facecolor": "none", "edgecolor": colours.vermillion, "linewidth": 1.0, "hatch": "xxx"}
    draw_boxes(axes, _unended(facts, scale), "never ends", zorder=3, **style)
    _draw_stalled_lanes(axes, facts, scale)
    for name, at_s in stall.failed:
        axes.axvline(at_s * scale, color=colours.vermillion, linestyle="--", linewidth=1.2, label=f"{name} failed")
    ticks = [tick for tick in axes.get_xticks() if 0 <= tick <= facts.until_s * scale]
    axes.set_xticks(ticks)
    title = f"nothing ends after {format_time(stall.until_s)}"
    place = shifted(axes, _above(axes, points(_PHASE_GAP)), x=points(_NOTE_GAP))
    axes.text(facts.stopped_s * scale, 1, title, transform=place, va="center",
              fontsize=points(9), color=colours.vermillion, fontweight="bold")  # fmt: skip
    line = Line2D([], [], color=colours.vermillion, linestyle="--", linewidth=1.2, label="a failure")
    return [Patch(label="never ends", **style), *([line] if stall.failed else [])]


def _unended(facts: LaneFacts, scale: float) -> Any:
    """The boxes of what was begun and never ends: sendings, and reductions."""
    timeline, layout = facts.timeline, facts.layout
    sending = facts.begun & ~np.isfinite(timeline.left_s)
    adding = np.isfinite(timeline.apply_s) & ~np.isfinite(timeline.applied_s)
    end = facts.stopped_s * scale
    src, dst = timeline.src[sending], timeline.dst[adding]
    sends = boxes(layout.origin[src], timeline.start_s[sending] * scale, np.full(len(src), end),
                  layout.sends(src, layout.row[sending]))  # fmt: skip
    adds = boxes(layout.origin[dst], timeline.apply_s[adding] * scale, np.full(len(dst), end), layout.reduces(dst))
    return np.concatenate([sends, adds])


def _draw_stalled_lanes(axes: Axes, facts: LaneFacts, scale: float) -> None:
    """Grey from a stalled rank's last activity on, and what it does or waits for on the right."""
    stall, layout, colours = facts.stall, facts.layout, palette()
    assert stall is not None
    ranks = np.array([stalled.rank for stalled in stall.ranks])
    since = np.array([stalled.last_active_s for stalled in stall.ranks]) * scale
    end = np.full(len(ranks), facts.stopped_s * scale)
    lanes = boxes(layout.origin[ranks], since, end, layout.lane(ranks))
    draw_boxes(axes, lanes, "hangs", facecolor=colours.light_grey, edgecolor="none", zorder=0.8)
    lane = _least_points(axes, facts)
    size = min(points(8.0), max(0.8 * lane, points(5.0)))
    shown = {stall.ranks[index].rank for index in strided(len(stall.ranks), size + 1, lane)}
    for stalled in stall.ranks:
        if stalled.rank in shown or stalled.doing != "waits":
            colour = colours.ink if stalled.doing == "waits" else colours.vermillion
            beside = shifted(axes, axes.transData, x=points(_NOTE_GAP))
            place = facts.stopped_s * scale, float(layout.middle[stalled.rank])
            axes.text(*place, stalled_note(stalled), transform=beside, va="center", fontsize=size, color=colour)


def stalled_note(stalled: StalledRank) -> str:
    """Returns what a rank that never finishes does or waits for, in few words."""
    note = hanging_text(stalled) + (f" ({', '.join(stalled.failed)} failed)" if stalled.failed else "")
    return note if len(note) <= _NOTE_LENGTH else f"{note[: _NOTE_LENGTH - 1]}…"


def draw_legend(axes: Axes, handles: list[Patch | Line2D], facts: LaneFacts) -> None:
    """Draws the legend below the title, with what occurs alone."""
    height = _PHASE_GAP + _PHASE_LEVEL * _num_levels(facts)
    place = shifted(axes, axes.transAxes, y=points(height))
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1), bbox_transform=place, ncols=len(handles),
        fontsize=points(8), frameon=False, borderaxespad=0, borderpad=0, columnspacing=1.4, handlelength=1.6,
        handletextpad=0.5,
    )  # fmt: skip
