"""`ringsim doctor`."""

import json
import sys
from collections.abc import Sequence

import click

from ringsim.cli.options import json_option
from ringsim.console import in_one_line
from ringsim.machine import Level, MachineFinding, examine, read_machine
from ringsim.text_table import align_columns

IMPOSSIBLE = 1  # the exit code when something makes measuring impossible


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Look at this machine, and say what to expect of measurements on it.

    Prints a line for each finding, ok, note or problem, with what it means for measurements and what to do: cores and
    load, clock, the interface that Gloo will use, torch and its backends, shared memory, the testbed, GPUs. Nothing is
    changed. The exit code is 1 if something makes measuring impossible, otherwise 0.

    Example: ringsim doctor && ringsim measure --ranks 2 -o measured.json
    """
    findings = examine(read_machine())
    if as_json:
        click.echo(json.dumps({"findings": [finding.as_dict() for finding in findings]}))
    else:
        click.echo(format_findings(findings))
    if any(finding.level is Level.PROBLEM for finding in findings):
        sys.exit(IMPOSSIBLE)


def format_findings(findings: Sequence[MachineFinding]) -> str:
    """Returns a line for each finding, and a sentence on what follows from all of them."""
    rows = [
        (finding.level.value, finding.subject, in_one_line(" ".join(filter(None, parts))))
        for finding in findings
        for parts in [(f"{finding.fact}.", finding.meaning, finding.advice)]
    ]
    return "\n".join([*align_columns(rows), "", _summary(findings)])


def _summary(findings: Sequence[MachineFinding]) -> str:
    problems = [finding.subject for finding in findings if finding.level is Level.PROBLEM]
    notes = [finding.subject for finding in findings if finding.level is Level.NOTE]
    if problems:
        return f"Measuring is impossible here until this is mended: {', '.join(problems)}."
    if notes:
        return f"Measuring is possible; mind {', '.join(notes)}."
    return "Measuring is possible, and nothing here stands in its way."
