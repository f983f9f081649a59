"""`html_of`: HTML of results for notebooks."""

import sys
from collections.abc import Iterable
from functools import singledispatch
from html import escape
from typing import Any

from ringsim.analysis import Sweep
from ringsim.calibration import Comparison
from ringsim.report.calibration_table import comparison_table
from ringsim.report.sweep_table import fastest_column
from ringsim.report.table import DataTable
from ringsim.schedule import Schedule, received_chunks
from ringsim.simulation import Timeline
from ringsim.units import format_size, plural

MAX_ROWS, MAX_COLUMNS = 32, 16  # of a table; what is beyond is counted
MAX_RANKS, MAX_TRANSFERS = 64, 5000  # of a timeline whose lanes are drawn


@singledispatch
def html_of(result: Any) -> str | None:  # noqa: ARG001  what has no form of its own has none
    """Return HTML for a result; None: a notebook shows its `repr`."""
    return None


def register() -> None:
    """Make notebooks show results as HTML, if there is IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None:
        formatter = shell.display_formatter.formatters["text/html"]
        for kind in html_of.registry.keys() - {object}:
            formatter.for_type(kind, html_of)


@html_of.register
def _schedule(schedule: Schedule) -> str:
    ranks = range(min(schedule.num_ranks, MAX_COLUMNS))
    head = ["step", *(f"rank {rank}" for rank in ranks), *_more(schedule.num_ranks - len(ranks), "rank")]
    rows = []
    for index in range(min(schedule.num_steps, MAX_ROWS)):
        received = received_chunks(schedule.steps[index], " ")
        cells = (", ".join(received.get(rank, [])) for rank in ranks)
        rows.append([str(index), *cells, *[""] * (len(head) - len(ranks) - 1)])
    legend = "c3 + r1: chunk 3 arrives from rank 1 and is added; c3 = r1: it overwrites"
    notes = [legend, *_more(schedule.num_steps - len(rows), "step")]
    return _page(repr(schedule), DataTable(head, rows).html(), notes)


@html_of.register
def _comparison(comparison: Comparison) -> str:
    table = comparison_table(comparison, MAX_ROWS)
    return _page(repr(comparison), table.html(), _more(len(comparison.cases) - MAX_ROWS, "case"))


@html_of.register
def _sweep(sweep: Sweep) -> str:
    ranks, sizes = sweep.ranks[:MAX_COLUMNS], sweep.sizes_bytes[:MAX_ROWS]
    tables = []
    for network in sweep.networks:
        columns = [fastest_column(sweep, network, num_ranks) for num_ranks in ranks]
        head, *rows = zip(["", *map(format_size, sizes)], *columns, strict=False)
        tables.append(f"<p>{escape(network)}</p>{DataTable(head, rows).html()}")
    notes = [*_more(len(sweep.sizes_bytes) - len(sizes), "size"), *_more(len(sweep.ranks) - len(ranks), "column")]
    return _page(repr(sweep), "".join(tables), [*notes, *sweep.skipped()[:MAX_ROWS]])


@html_of.register
def _timeline(timeline: Timeline) -> str:
    if timeline.num_ranks > MAX_RANKS or len(timeline) > MAX_TRANSFERS:
        why = f"no timeline: it is drawn here for at most {MAX_RANKS} ranks and {MAX_TRANSFERS:,} transfers"
        return _page(repr(timeline), "", [why])
    from ringsim.report.plots import page_svg  # noqa: PLC0415  matplotlib takes long to import

    return _page(repr(timeline), page_svg(timeline, transparent=False), [])


def _more(count: int, noun: str) -> list[str]:
    return [f"and {plural(count, f'more {noun}')}"] if count > 0 else []


def _page(title: str, body: str, notes: Iterable[str]) -> str:
    small = "".join(f"<br><small>{escape(note)}</small>" for note in notes)
    return f"<div><b>{escape(title)}</b><br>{body}{small}</div>"
