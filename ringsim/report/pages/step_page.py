"""`step_page`: a predicted step as one page, with the curve of more ranks and the table of bucket sizes, if any."""

from collections.abc import Sequence
from html import escape

from ringsim.report import step_tables
from ringsim.report.network_table import named_network
from ringsim.report.pages.page import asset, page
from ringsim.report.table import DataTable
from ringsim.training_step import TracePrediction, TraceScaling

_STYLE = "figure { margin: 1.25rem 0; }\n"


def step_page(
    step: TracePrediction,
    facts: Sequence[tuple[str, str]] = (),
    scaling: TraceScaling | None = None,
    caps: DataTable | None = None,
) -> str:
    """Return the HTML of the page.

    facts: more rows, below those of the step. scaling: on several numbers of ranks, which then comes first.
    caps: the step with other bucket sizes of DDP.

    Raises ValueError for a step that never ends.
    """
    from ringsim.report.pages.report_pictures import svg_colours  # noqa: PLC0415  matplotlib takes long

    title = step_tables.step_title(step)
    parts = [f"<h1>{escape(title[0].upper() + title[1:])}</h1>", *_origin(step)]
    if scaling:
        ranks = [prediction.trace.num_ranks for prediction in scaling.predictions]
        parts += [
            f"<h2>From {ranks[0]} to {ranks[-1]} ranks</h2>",
            *map(_paragraph, step_tables.scaling_facts(scaling)),
        ]
        parts += [_table(step_tables.scaling_table(scaling)), _picture(scaling)]
        parts.append(f"<h2>The step on {step.trace.num_ranks} ranks</h2>")
    rows = [*step_tables.step_facts(step), *facts, *(("note", note) for note in step_tables.notes_on_step(step))]
    findings = (
        f'<div class="finding"><h2>{escape(name)}</h2><p class="answer">{escape(text)}</p></div>' for name, text in rows
    )
    better = "".join(f"<li>{escape(line)}</li>" for line in step_tables.better_steps(step))
    parts += [f'<section class="verdict">{"".join(findings)}</section>', _picture(step)]
    parts += [f"<h2>{step_tables.BETTER}</h2><ul>{better}</ul>" if better else ""]
    parts += [f"<h2>Bucket sizes</h2>{_table(caps)}" if caps else ""]
    parts += [f"<h2>Calls</h2>{_table(step_tables.calls_table(step))}" if step.timeline.calls else ""]
    return page(title, "\n".join(filter(None, parts)), style=asset("report.css") + _STYLE + svg_colours())


def _origin(step: TracePrediction) -> list[str]:
    """Return how the program was recorded, and the network."""
    request = step.trace.request
    command = [f"<p>Recorded by <code>{escape(request.command)}</code></p>"] if request else []
    return [*command, _paragraph(" · ".join(named_network(step.network)))]


def _table(table: DataTable) -> str:
    return f'<div class="wide">{table.html()}</div>'


def _picture(result: TracePrediction | TraceScaling) -> str:
    from ringsim.report.plots.plot import draw  # noqa: PLC0415  matplotlib takes long
    from ringsim.report.plots.style import drawing, inline_svg  # noqa: PLC0415

    with drawing("page"):
        return f"<figure>{inline_svg(draw(result))}</figure>"


def _paragraph(text: str) -> str:
    return f'<p class="faint">{escape(text)}</p>' if text else ""
