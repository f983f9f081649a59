"""`report_page`: a verdict as one page: the answers first, then pictures, tables, and where everything comes from."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ringsim.analysis import BASELINE
from ringsim.report import step_tables
from ringsim.report import table as cells
from ringsim.report.colours import svg_colours
from ringsim.report.network_table import named_network
from ringsim.report.pages import asset, page
from ringsim.training_step import TracePrediction, TraceScaling
from ringsim.verdict import RunDirectory, Verdict

if TYPE_CHECKING:
    from markupsafe import Markup

Row = tuple[str, Any]  # the file that it is from, and a record or a dict
_CELLS: dict[str, Callable[[Any], cells.TableCell]] = {
    "bytes_per_s": cells.rate_cell, "tokens_per_s": cells.count_cell, "samples_per_s": cells.count_cell,
    "_s": cells.time_cell, "_bytes": cells.size_cell, "error": cells.error_cell, "share": cells.share_cell,
    "efficiency": cells.share_cell, "spread": cells.share_cell, "loss": lambda value: cells.count_cell(value, 4),
    "loss_difference": lambda value: cells.TableCell(f"{value:.1e}", value),
    "": lambda value: cells.count_cell(value, 0 if isinstance(value, int) else 2),
}  # fmt: skip
_UNITS = re.compile(r"^.*\.|^num_|_bytes_per_s$|_bytes$|_s$")


def report_page(verdict: Verdict, title: str) -> str:
    """Return the HTML of the page."""
    from ringsim.report.plots.report_pictures import pictures  # noqa: PLC0415  matplotlib takes long

    contents = verdict.contents
    return page(
        "report.j2", title,
        style=asset("report.css") + svg_colours(),
        script=asset("report.js"),
        code=_with_code, records=_records, html_table=_html_table,
        verdict=verdict, contents=contents, findings=verdict.findings, pictures=pictures(verdict),
        collectives=list(verdict.compared()), algorithms=list(_algorithms(verdict)),
        winners=[(file, winner) for file, sweep in contents.sweeps.items() for winner in sweep.winners().values()],
        sources=list(_sources(contents)),
        refused=[(file, {"reason": reason}) for file, reason in sorted(contents.refused.items())],
    )  # fmt: skip


def _records(records: Mapping[str, Any], attribute: str = "") -> list[Row]:
    """Return the records of files with the names of these; attribute: the one of each that holds a row, or several."""
    values = [(file, getattr(record, attribute) if attribute else record) for file, record in records.items()]
    return [(file, row) for file, rows in values for row in (rows if isinstance(rows, tuple) else (rows,))]


def _with_code(sentence: str) -> "Markup":
    """Return a sentence as HTML, with what stands between backticks as code."""
    from markupsafe import Markup, escape  # noqa: PLC0415  as jinja2

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(sentence))))


def _algorithms(verdict: Verdict) -> Iterator[Row]:
    for choice in verdict.forecast.algorithms if verdict.forecast else ():
        for name, time_s in choice.times_s.items():
            yield "", {
                "size_bytes": choice.size_bytes, "algorithm": name, "predicted_s": time_s,
                "times_as_fast_as_the_ring": choice.times_s[BASELINE] / time_s if time_s > 0 else None,
                "chosen": name == choice.chosen,
            }  # fmt: skip


def _sources(contents: RunDirectory) -> Iterator[Row]:
    """Yield each file with its kind and what it notes of where it comes from."""
    for kind, file, record in contents.records():
        noted = getattr(record, "provenance", None) or {"machine": getattr(record, "source", "-")}
        versions = [f"{program} {noted[program]}" for program in ("ringsim", "torch", "python") if noted.get(program)]
        yield file, {**{key: str(value) for key, value in noted.items()}, "kind": kind, "versions": ", ".join(versions)}


def _html_table(rows: Sequence[Row], name: str, columns: str) -> "Markup":
    """Return a table element. columns: names of attributes, which say the unit, such as time_s; "file" is the file."""
    from markupsafe import Markup  # noqa: PLC0415  as jinja2

    names = columns.split()
    headings = [_UNITS.sub("", name).replace("_", " ") for name in names]
    shown = [[cells.TableCell(file) if name == "file" else _cell(name, _value(row, name)) for name in names]
             for file, row in rows]  # fmt: skip
    return Markup(cells.DataTable(headings, shown).html(name))


def _value(row: Any, name: str) -> Any:
    return row.get(name) if isinstance(row, dict) else attrgetter(name)(row)


def _cell(name: str, value: Any) -> cells.TableCell:
    """Return a value as its name says that it is to be shown."""
    if value is None:
        return cells.NEVER if name in ("time_s", "step_s") else cells.NOTHING
    if isinstance(value, bool):
        return cells.TableCell("yes" if value else "no")
    if isinstance(value, str | Enum):
        return cells.TableCell(str(value.value if isinstance(value, Enum) else value) or "-")
    if isinstance(value, dict):
        form = "{} {:.0%}" if name.endswith("shares") else "{} {:.4g}"
        return cells.TableCell(", ".join(form.format(*item) for item in value.items() if item[1] is not None) or "-")
    if isinstance(value, tuple):
        return cells.ends_cell(*value)
    return next(cell for ending, cell in _CELLS.items() if name.endswith(ending))(value)


_STYLE = "figure { margin: 1.25rem 0; }\n"


def step_page(
    step: TracePrediction,
    facts: Sequence[tuple[str, str]] = (),
    scaling: TraceScaling | None = None,
    caps: cells.DataTable | None = None,
) -> str:
    """Return the HTML of the page.

    facts: more rows, below those of the step. scaling: on several numbers of ranks, which then comes first.
    caps: the step with other bucket sizes of DDP.

    Raises ValueError for a step that never ends.
    """
    style, network = asset("report.css") + _STYLE + svg_colours(), " · ".join(named_network(step.network))
    rows = [*step_tables.step_facts(step), *facts, *(("note", note) for note in step_tables.notes_on_step(step))]
    return page(
        "step.j2", step_tables.step_title(step), style,
        svg=_svg, network=network, step=step, rows=rows, scaling=scaling, caps=caps, texts=step_tables,
    )  # fmt: skip


def _svg(result: TracePrediction | TraceScaling) -> str:
    from ringsim.report.plots import draw  # noqa: PLC0415  matplotlib takes long
    from ringsim.report.plots.style import drawing, inline_svg  # noqa: PLC0415

    with drawing("page"):
        return inline_svg(draw(result))
