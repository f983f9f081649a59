"""`ringsim doctor`."""

import sys
from collections.abc import Sequence

import click

from ringsim.console import examples, in_one_line, json_option, print_result
from ringsim.machine import Level, MachineFinding, examine, read_machine
from ringsim.text_table import WIDTH, align_columns

IMPOSSIBLE = 1  # the exit code when something makes measuring impossible


@click.command(epilog=examples("ringsim doctor", "ringsim doctor --json"))
@json_option
def doctor(as_json: bool) -> None:
    """Examine this machine, and report what to expect of measurements on it.

    It prints a line for each finding, ok, note or problem, with what it means for measurements and what to do: cores
    and load, clock, the interface that Gloo will use, torch and its backends, shared memory, the testbed, GPUs. Nothing
    is changed. The exit code is 1 if something makes measuring impossible, otherwise 0.
    """
    findings = examine(read_machine())
    print_result(format_findings(findings), {"findings": [finding.as_dict() for finding in findings]}, as_json)
    if any(finding.level is Level.PROBLEM for finding in findings):
        sys.exit(IMPOSSIBLE)


def format_findings(findings: Sequence[MachineFinding]) -> str:
    """Return a line for each finding, and a sentence on what follows from all of them."""
    rows = [
        (finding.level.value, finding.subject, in_one_line(" ".join(filter(None, parts))))
        for finding in findings
        for parts in [(f"{finding.fact}.", finding.meaning, finding.advice)]
    ]
    return "\n".join([*align_columns(rows, width=WIDTH), "", _summary(findings)])


def _summary(findings: Sequence[MachineFinding]) -> str:
    problems = [finding.subject for finding in findings if finding.level is Level.PROBLEM]
    notes = [finding.subject for finding in findings if finding.level is Level.NOTE]
    if problems:
        return f"You cannot measure here until this is fixed: {', '.join(problems)}."
    if notes:
        return f"You can measure here; note: {', '.join(notes)}."
    return "You can measure here; no problems were found."
