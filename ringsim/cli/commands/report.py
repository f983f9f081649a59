"""`ringsim report`."""

from pathlib import Path

import click
from click import argument, option

from ringsim import console
from ringsim.report import report_page
from ringsim.text_table import wrap_text
from ringsim.verdict import KINDS, MEASURE, Finding, judge, read_directory

FOLDER = click.Path(path_type=Path, exists=True)


@console.command("ringsim measure --ranks 2 -o run/measured.json", "ringsim report run -o report.html")
@argument("folder", metavar="DIR", type=FOLDER)
@option(
    "-o",
    "--output",
    type=console.OutputFile((".html",), stdout=True),
    default="report.html",
    help="Write the page to this file.",
)
@console.json_option
def report(folder: Path, output: Path, as_json: bool) -> None:
    """Write one page with a verdict on all measurements, predictions and training runs in DIR, or in one file.

    The page answers what limits performance, which algorithm and bucket size to use, what happens with twice as many
    ranks, and how reliable the answers are. Below are pictures, tables that a click on a heading sorts, and the sources
    of all data. The command reads the files of ringsim measure, compare, sweep --csv and calibrate, the --json output
    of ringsim simulate, explain, ddp and sweep, and the profiles and output directories of trainers, also in
    directories below DIR. It lists damaged files and files of other kinds.
    """
    console.require_one_stdout(as_json, output)
    contents = read_directory(folder)
    verdict = judge(contents)
    if folder.is_file() and contents.is_empty:
        raise ValueError(f"{folder}: {contents.refused[folder.name]}")
    for name, reason in sorted(contents.refused.items()):
        click.echo(console.in_one_line(f"{folder if folder.is_file() else folder / name}: {reason}"), err=True)
    if contents.is_empty:
        raise ValueError(f"{folder}: holds none of {KINDS}: {MEASURE} makes a file of measurements")
    text = report_page(verdict, f"Report on {folder.absolute().name or folder}")
    with console.output_file(output) as file:
        file.write(text.encode())
    answers = [_answer(finding) for finding in verdict.findings]
    lines = [wrap_text(answer, indent="  ") for answer in answers]
    findings = [{"question": finding.topic.value, "answer": finding.answer} for finding in verdict.findings]
    console.print_result("\n".join(lines), {"findings": findings}, as_json, output)


def _answer(finding: Finding) -> str:
    command = f" To find out: {finding.command}" if finding.command else ""
    return f"{finding.topic.value} {finding.answer.replace('`', '')}{command}"
