"""`report_page`: a verdict as one page; `step_page`: a predicted step as one page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringsim.analysis import BASELINE
from ringsim.report import step_tables
from ringsim.report.colours import svg_colours
from ringsim.report.network_table import named_network
from ringsim.report.pages import asset, page
from ringsim.report.table import DataTable
from ringsim.training_step import TracePrediction, TraceScaling
from ringsim.verdict import RunDirectory, Verdict


@dataclass(frozen=True, slots=True)
class _Row:
    file: str
    record: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.record, name)


def report_page(verdict: Verdict, title: str) -> str:
    """Return the HTML of the page."""
    from ringsim.report.plots.report_pictures import pictures  # noqa: PLC0415  matplotlib takes long

    contents = verdict.contents
    return page(
        "report.j2", title,
        style=asset("report.css") + svg_colours(),
        script=asset("report.js"),
        records=_records, data_table=DataTable.of,
        verdict=verdict, contents=contents, findings=verdict.findings, pictures=pictures(verdict),
        collectives=[_Row(*pair) for pair in verdict.compared()], algorithms=list(_algorithms(verdict)),
        winners=[_Row(file, winner) for file, sweep in contents.sweeps.items() for winner in sweep.winners().values()],
        sources=list(_sources(contents)),
        refused=[{"file": file, "reason": reason} for file, reason in sorted(contents.refused.items())],
    )  # fmt: skip


def _records(records: Mapping[str, Any], attribute: str = "") -> list[_Row]:
    values = [(file, getattr(record, attribute) if attribute else record) for file, record in records.items()]
    return [_Row(file, row) for file, rows in values for row in (rows if isinstance(rows, tuple) else (rows,))]


def _algorithms(verdict: Verdict) -> Iterator[dict[str, Any]]:
    for choice in verdict.forecast.algorithms if verdict.forecast else ():
        for name, time_s in choice.times_s.items():
            yield {
                "size_bytes": choice.size_bytes, "algorithm": name, "predicted_s": time_s,
                "times_as_fast_as_the_ring": choice.times_s[BASELINE] / time_s if time_s > 0 else None,
                "chosen": name == choice.chosen,
            }  # fmt: skip


def _sources(contents: RunDirectory) -> Iterator[dict[str, Any]]:
    for kind, file, record in contents.records():
        noted = getattr(record, "provenance", None) or {"machine": getattr(record, "source", "-")}
        versions = [f"{program} {noted[program]}" for program in ("ringsim", "torch", "python") if noted.get(program)]
        texts = {key: str(value) for key, value in noted.items()}
        yield {**texts, "file": file, "kind": kind, "versions": ", ".join(versions)}


_STYLE = "figure { margin: 1.25rem 0; }\n"


def step_page(
    step: TracePrediction,
    facts: Sequence[tuple[str, str]] = (),
    scaling: TraceScaling | None = None,
    caps: DataTable | None = None,
) -> str:
    """Return the HTML of the page of a step. Raises ValueError for a step that never ends.

    facts: further rows. caps: steps with other bucket sizes.
    """
    from ringsim.report.plots import page_svg  # noqa: PLC0415  matplotlib takes long

    style, network = asset("report.css") + _STYLE + svg_colours(), " · ".join(named_network(step.network))
    rows = [*step_tables.step_facts(step), *facts, *(("note", note) for note in step_tables.notes_on_step(step))]
    return page(
        "step.j2", step_tables.step_title(step), style,
        svg=page_svg, network=network, step=step, rows=rows, scaling=scaling, caps=caps, texts=step_tables,
    )  # fmt: skip
