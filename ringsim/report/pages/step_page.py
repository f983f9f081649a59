"""`step_page`: a predicted step as one page, with the curve of more ranks and the table of bucket sizes, if any."""

from collections.abc import Sequence

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

    style, network = asset("report.css") + _STYLE + svg_colours(), " · ".join(named_network(step.network))
    rows = [*step_tables.step_facts(step), *facts, *(("note", note) for note in step_tables.notes_on_step(step))]
    return page(
        "step.j2", step_tables.step_title(step), style,
        svg=_svg, network=network, step=step, rows=rows, scaling=scaling, caps=caps, texts=step_tables,
    )  # fmt: skip


def _svg(result: TracePrediction | TraceScaling) -> str:
    from ringsim.report.plots.plot import draw  # noqa: PLC0415  matplotlib takes long
    from ringsim.report.plots.style import drawing, inline_svg  # noqa: PLC0415

    with drawing("page"):
        return inline_svg(draw(result))
