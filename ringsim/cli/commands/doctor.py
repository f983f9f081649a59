"""`ringsim doctor`."""

import sys
from dataclasses import asdict

from ringsim import console
from ringsim.machine import Level, examine
from ringsim.text_table import WIDTH, align_columns

IMPOSSIBLE = 1  # the exit code when something makes measuring impossible


@console.command("ringsim doctor", "ringsim doctor --json")
@console.json_option
def doctor(as_json: bool) -> None:
    """Examine this machine, and report what to expect of measurements on it.

    It prints a line for each finding, ok, note or problem, with what it means for measurements and what to do: cores,
    load, the share of a hypervisor, the interface that Gloo will use, torch and its backends, shared memory. Nothing is
    changed. The exit code is 1 if something makes measuring impossible, otherwise 0.
    """
    findings = examine()
    texts = [console.in_one_line(f"{finding.fact}. {finding.advice}") for finding in findings]
    rows = [(finding.level.value, finding.subject, text) for finding, text in zip(findings, texts, strict=True)]
    problems, notes = (
        ", ".join(finding.subject for finding in findings if finding.level is level)
        for level in (Level.PROBLEM, Level.NOTE)
    )
    summary = f"You can measure here; note: {notes}." if notes else "You can measure here; no problems were found."
    if problems:
        summary = f"You cannot measure here until this is fixed: {problems}."
    text = "\n".join([*align_columns(rows, width=WIDTH), "", summary])
    console.print_result(text, {"findings": [asdict(finding) for finding in findings]}, as_json)
    if problems:
        sys.exit(IMPOSSIBLE)
