"""`html_of`: results as a notebook shows them: tables, and the lanes of a timeline as SVG."""

import sys
from collections.abc import Iterable, Sequence
from functools import singledispatch
from html import escape
from typing import Any

import numpy as np

from ringsim.analysis import BASELINE, Sweep, Winner
from ringsim.calibration import Comparison
from ringsim.report.comparison_table import comparison_table
from ringsim.report.send_rows import pack_sends
from ringsim.report.sweep_table import format_gain
from ringsim.report.table import DataTable
from ringsim.schedule import Bools, Schedule, Step
from ringsim.simulation import Timeline
from ringsim.units import format_size, format_time

MAX_ROWS, MAX_COLUMNS = 32, 16  # of a table; what is beyond is counted
MAX_RANKS, MAX_TRANSFERS = 64, 5000  # of a timeline whose lanes are drawn
_WIDTH, _LANE, _LEFT, _SENDS, _APPLIES = 900, 26, 60, 13, 8  # pixels; the last two within a lane
_ADDED, _COPIED, _REDUCES = "#0072B2", "#8ACBF2", "#E69F00"


@singledispatch
def html_of(result: Any) -> str | None:  # noqa: ARG001  what has no form of its own has none
    """Return HTML for a result, None if it has no such form: a notebook then shows its `repr`."""
    return None


def register() -> None:
    """Make a notebook show results as HTML; without IPython nothing happens."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None:
        formatter = shell.display_formatter.formatters["text/html"]
        for kind in html_of.registry.keys() - {object}:
            formatter.for_type(kind, html_of)


@html_of.register
def _schedule(schedule: Schedule) -> str:
    """Return the step x rank grid: what each rank receives in each step."""
    ranks = range(min(schedule.num_ranks, MAX_COLUMNS))
    head = ["step", *(f"rank {rank}" for rank in ranks), *_more(schedule.num_ranks - len(ranks), "rank")]
    rows = []
    for index in range(min(schedule.num_steps, MAX_ROWS)):
        received = _received(schedule.steps[index], len(ranks))
        rows.append([str(index), *(received.get(rank, "") for rank in ranks), *[""] * (len(head) - len(ranks) - 1)])
    legend = "c3 + r1: chunk 3 arrives from rank 1 and is added; c3 = r1: it overwrites"
    notes = [legend, *_more(schedule.num_steps - len(rows), "step")]
    return _page(repr(schedule), DataTable(head, rows).html(), notes)


def _received(step: Step, num_ranks: int) -> dict[int, str]:
    cells: dict[int, list[str]] = {}
    for src, dst, chunk, reduce, _ in step:
        if dst < num_ranks:
            cells.setdefault(dst, []).append(f"c{chunk} {'+' if reduce else '='} r{src}")
    return {rank: ", ".join(some) for rank, some in cells.items()}


@html_of.register
def _comparison(comparison: Comparison) -> str:
    table = comparison_table(comparison, MAX_ROWS)
    return _page(repr(comparison), table.html(), _more(len(comparison.cases) - MAX_ROWS, "case"))


@html_of.register
def _sweep(sweep: Sweep) -> str:
    """Return the fastest algorithm of each cell, its time, and how many times as fast as the ring it is."""
    winners, ranks, sizes = sweep.winners(), sweep.ranks[:MAX_COLUMNS], sweep.sizes_bytes[:MAX_ROWS]
    tables = []
    for network in sweep.networks:
        rows = [
            [format_size(size), *(_fastest(winners.get((network, num_ranks, size)), sweep) for num_ranks in ranks)]
            for size in sizes
        ]
        table = DataTable(["", *(f"{count} ranks" for count in ranks)], rows)
        tables.append(f"<p>{escape(network)}</p>{table.html()}")
    notes = [*_more(len(sweep.sizes_bytes) - len(sizes), "size"), *_more(len(sweep.ranks) - len(ranks), "column")]
    return _page(repr(sweep), "".join(tables), [*notes, *sweep.skipped()[:MAX_ROWS]])


def _fastest(winner: Winner | None, sweep: Sweep) -> str:
    if winner is None:
        return "skipped"
    gain = format_gain(winner, has_baseline=BASELINE in sweep.algorithms)
    return f"{winner.cell.algorithm} {format_time(winner.cell.time_s or 0.0)} {gain}".strip()


@html_of.register
def _timeline(timeline: Timeline) -> str:
    if why := _without_lanes(timeline):
        return _page(repr(timeline), "", [why])
    legend = [f'<span style="color:{colour}">&#9632;</span> {name}' for colour, name in (
        (_ADDED, "sends to add"), (_COPIED, "sends to overwrite"), (_REDUCES, "reduces"))]  # fmt: skip
    return _page(repr(timeline), f"{' '.join(legend)}<br>{_lanes(timeline)}", [])


def _without_lanes(timeline: Timeline) -> str:
    """Why no lanes are drawn; "" if they are."""
    if timeline.num_ranks > MAX_RANKS or len(timeline) > MAX_TRANSFERS:
        return f"no lanes: they are drawn here for at most {MAX_RANKS} ranks and {MAX_TRANSFERS:,} transfers"
    if not len(timeline):
        return "no lanes: nothing is sent"
    return "" if timeline.until_s > 0 else "no lanes: no time passes in which something is sent"


def _lanes(timeline: Timeline) -> str:
    """A lane a rank: what it sends on top, in rows where it sends several at once; what it reduces below."""
    height = timeline.num_ranks * _LANE + 18
    row = pack_sends(timeline)
    num_rows = np.ones(timeline.num_ranks, dtype=np.int64)
    np.maximum.at(num_rows, timeline.src, row + 1)
    row_height = _SENDS / num_rows[timeline.src]
    happens = np.isfinite(timeline.left_s)
    sends = _bars(timeline, happens, timeline.start_s, timeline.left_s, timeline.src * _LANE + 2 + row * row_height,
                  row_height, [_ADDED if reduce else _COPIED for reduce in timeline.reduce.tolist()])  # fmt: skip
    lasts = timeline.reduce & np.isfinite(timeline.applied_s) & (timeline.applied_s > timeline.apply_s)
    top = timeline.dst * _LANE + 3.0 + _SENDS
    adds = _bars(timeline, lasts, timeline.apply_s, timeline.applied_s, top, np.full(len(timeline), float(_APPLIES)),
                 [_REDUCES] * len(timeline))  # fmt: skip
    names = [f'<text x="0" y="{rank * _LANE + 15}">rank {rank}</text>' for rank in range(timeline.num_ranks)]
    bottom, until = height - 4, format_time(timeline.until_s)
    names += [f'<text x="{_LEFT}" y="{bottom}">0</text>',
              f'<text x="{_WIDTH}" y="{bottom}" text-anchor="end">{until}</text>']  # fmt: skip
    box = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" style="max-width:100%"'
    font = 'font-family="sans-serif" font-size="11" fill="currentColor"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} {font}>{"".join([*names, *sends, *adds])}</svg>'


def _bars(timeline: Timeline, rows: Bools, begin: np.ndarray, end: np.ndarray, top: np.ndarray, height: np.ndarray,
          colours: Sequence[str]) -> Iterable[str]:  # fmt: skip
    """A rectangle for each of these transfers, which tells about it where the mouse is."""
    per_second = (_WIDTH - _LEFT) / timeline.until_s
    for index in np.flatnonzero(rows).tolist():
        x, width = _LEFT + begin[index] * per_second, (end[index] - begin[index]) * per_second
        title = (f"c{timeline.chunk[index]}: rank {timeline.src[index]} to rank {timeline.dst[index]}, "
                 f"step {timeline.step[index]}, {format_time(begin[index])} to {format_time(end[index])}")  # fmt: skip
        yield (f'<rect x="{x:.2f}" y="{top[index]:.2f}" width="{max(width - 0.5, 0.3):.2f}" '
               f'height="{height[index] - 0.5:.2f}" fill="{colours[index]}"><title>{title}</title></rect>')  # fmt: skip


def _more(count: int, noun: str) -> list[str]:
    return [f"and {count} more {noun}{'s' * (count > 1)}"] if count > 0 else []


def _page(title: str, body: str, notes: Iterable[str]) -> str:
    small = "".join(f"<br><small>{escape(note)}</small>" for note in notes)
    return f"<div><b>{escape(title)}</b><br>{body}{small}</div>"
