"""`report_page`: a verdict as one page: the answers first, then pictures, tables, and where everything comes from."""

import re
from html import escape

from ringsim.report.pages.page import asset, page
from ringsim.report.pages.report_tables import tables
from ringsim.verdict import Finding, Verdict

_CODE = re.compile(r"`([^`]+)`")


def report_page(verdict: Verdict, title: str) -> str:
    """Return the HTML of the page."""
    from ringsim.report.pages.report_pictures import pictures, svg_colours  # noqa: PLC0415  matplotlib takes long

    drawn = "".join(pictures(verdict))
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="faint">{escape(_subtitle(verdict))}</p>',
        f'<section class="verdict">{"".join(map(_finding, verdict.findings))}</section>',
        f'<h2>Pictures</h2><div class="pictures">{drawn}</div>' if drawn else "",
        *tables(verdict),
    ]
    return page(
        title, "\n".join(filter(None, parts)), style=asset("report.css") + svg_colours(), script=asset("report.js")
    )


def _subtitle(verdict: Verdict) -> str:
    """Return what the answers go by, in one line."""
    subject = verdict.subject
    if subject is None:
        return "These files contain no probes of a machine. The answers follow from the predictions and runs alone."
    where = subject.measurements.provenance
    cores, machine = where.get("cores", "?"), where.get("machine", "unknown machine")
    return (
        f"Based on {subject.file}: {subject.num_ranks} ranks, {machine}, {cores} cores, "
        f"{where.get('date', 'unknown date')}"
    )


def _finding(finding: Finding) -> str:
    reasons = "".join(f"<li>{_words(reason)}</li>" for reason in finding.reasons)
    why = f"<details><summary>Why?</summary><ul>{reasons}</ul></details>" if reasons else ""
    todo = f'<p class="todo">To find out: <code>{escape(finding.command)}</code></p>' if finding.command else ""
    return (
        f'<div class="finding" data-topic="{finding.topic.name.lower()}"><h2>{escape(finding.topic.value)}</h2>'
        f'<p class="answer">{_words(finding.answer)}</p>{why}{todo}</div>'
    )


def _words(sentence: str) -> str:
    """Return a sentence as HTML, what stands between backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(sentence))
