"""`ringsim compare` and `ringsim report`."""

import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from click import argument, option

from ringsim import calibration, console
from ringsim.cli import options
from ringsim.cli.inputs import Timings, timings_options
from ringsim.files import atomic_file, json_text
from ringsim.libraries import senders_per_host
from ringsim.measurements import RecordedRun
from ringsim.network import Network, load_network
from ringsim.report import format_comparison, report_page, write_trace
from ringsim.text_table import records_csv, wrap_text
from ringsim.verdict import KINDS, MEASURE, Finding, judge, read_directory

SHARE = console.Quantity("share", console.parse_share)
ABOVE = 1  # the exit code when --fail-above is exceeded


@console.command(
    "ringsim compare measurements.json --network this.toml -o compared",
    "ringsim compare all_reduce-N4.txt --network cluster.toml --fail-above 20%",
)
@timings_options
@options.network_name_option
@option(
    "--fail-above",
    type=SHARE,
    help="Exit with code 1 if the median |error| of the held-out cells, or of all cells if none is held out, exceeds "
    "this fraction, such as 10%.",
)
@options.trust_option
@options.picture_options(
    "Write pictures, the table, all cells as CSV and JSON, and a trace of recorded runs to this directory.",
    file=click.Path(path_type=Path, file_okay=False),
)
@console.wide_option
@console.json_option
def compare(
    timings: Timings,
    name: str,
    fail_above: float | None,
    trusted: tuple[str, ...],
    picture: options.PictureFile,
    wide: bool,
    as_json: bool,
) -> None:
    """Predict the times in FILES (measurements, or logs as for calibrate), and compare both.

    The first lines say as which collective each table of a log was read, on which ranks and hosts.
    """
    cluster = load_network(name)
    if timings.measurements:
        options.say_left_out(cluster)
    with console.progress_bar(len(timings.cases), "simulating", delay_s=1.0) as progress:
        if timings.measurements:
            comparison = calibration.compare_measurements(timings.cases, cluster, trusted, progress.update)
        else:
            comparison = calibration.compare_logs(timings.cases, cluster)
    _say_guesses(comparison, cluster)
    if contradiction := calibration.contradiction_warning(timings.cases) if timings.read else "":
        click.echo(contradiction, err=True)
    text = timings.under_readings(format_comparison(comparison, wide))
    result = {**comparison.as_dict(), **timings.readings}
    console.print_result(text, result, as_json)
    if picture.path:
        with console.Progress() as progress:
            progress.begin("drawing")
            paths = _report(comparison, text, json_text(result), picture.path, picture.style)
            runs = [run for measurements in timings.measurements for run in measurements.runs]
            paths += _report_runs(runs, cluster, picture.path, trusted, picture.style)
        for path in paths:
            console.say_wrote(path)
    if fail_above is not None and _median_error(comparison) > fail_above:
        sys.exit(ABOVE)


def _say_guesses(comparison: calibration.Comparison, cluster: Network) -> None:
    options.say_contradiction(cluster)
    predicted = [compared.case.call for compared in comparison.cases if compared.predicted_s is not None]
    lines = [calibration.nic_warning(cluster, senders) for senders in sorted(senders_per_host(predicted))]
    most = list(filter(None, lines))[-1:]  # only the line with the most senders
    most.append(calibration.fabric_warning(cluster, [call.num_nodes for call in predicted]))
    for line in filter(None, [*most, calibration.settings_warning(cluster, predicted)]):
        click.echo(line, err=True)


def _median_error(comparison: calibration.Comparison) -> float:
    cases = comparison.held_out() or [case for case in comparison.cases if case.error is not None]
    if not cases:
        raise ValueError("--fail-above: nothing was predicted")
    return statistics.median(abs(case.error or 0.0) for case in cases)


def _report(comparison: calibration.Comparison, text: str, result: str, output: Path, style: str | None) -> list[Path]:
    from ringsim.report.plots import save_plot  # noqa: PLC0415
    from ringsim.report.plots.comparison_figure import draw_errors  # noqa: PLC0415  takes most of a second
    from ringsim.report.plots.style import save_figure  # noqa: PLC0415

    output.mkdir(parents=True, exist_ok=True)
    texts = {
        output / "compare.txt": text + "\n",
        output / "compare.csv": records_csv(comparison.as_dict()["cells"]),
        output / "compare.json": result,
    }
    for path, content in texts.items():
        with atomic_file(path) as file:
            file.write(content.encode())
    pictures = [output / "times.png", output / "errors.png"]
    save_plot(comparison, pictures[0], style)
    save_figure(lambda: draw_errors(comparison), pictures[1], style)
    return [*texts, *pictures]


def _report_runs(
    runs: Sequence[RecordedRun], cluster: Network, output: Path, trusted: Sequence[str], style: str | None
) -> list[Path]:
    from ringsim.report.plots import save_plot  # noqa: PLC0415  as above

    compared = []
    for run in runs:
        try:
            compared.append(calibration.compare_run(run, cluster, trusted))
        except ValueError as error:
            console.clear_line()
            click.echo(f"no picture of a run: {error}", err=True)
    if not compared:
        return []
    paths = [output / "runs.json"]
    sides = [(f"{pair.run.collective.value} {view.name}", view.timeline) for pair in compared for view in pair.views]
    write_trace(paths[0], sides)
    for pair in compared:
        stem = re.sub(r"[^\w.-]+", "-", f"run-{pair.run.collective.value}-{pair.run.algorithm}")
        suffixes = ("", *(f"-{number}" for number in range(2, len(compared) + 2)))
        paths.append(next(path for end in suffixes if (path := output / f"{stem}{end}.png") not in paths))
        save_plot(pair, paths[-1], style)
    return paths


@console.command("ringsim measure --ranks 2 -o run/measured.json", "ringsim report run -o report.html")
@argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True))
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
    console.write_output(output, [report_page(verdict, f"Report on {folder.absolute().name or folder}")])
    answers = [_answer(finding) for finding in verdict.findings]
    lines = [wrap_text(answer, indent="  ") for answer in answers]
    findings = [{"question": finding.topic.value, "answer": finding.answer} for finding in verdict.findings]
    console.print_result("\n".join(lines), {"findings": findings}, as_json, output)


def _answer(finding: Finding) -> str:
    command = f" To find out: {finding.command}" if finding.command else ""
    return f"{finding.topic.value} {finding.answer.replace('`', '')}{command}"
