"""`ringsim compare`."""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ringsim.calibration import Comparison, compare_logs, compare_measurements, compare_run, picture_names
from ringsim.cli.inputs import Timings, timings_options
from ringsim.cli.options import json_option, load_simulated, refuse_without, style_option
from ringsim.console import Quantity, parse_share
from ringsim.files import atomic_file
from ringsim.measurements import RecordedRun
from ringsim.network import Cluster, load_network
from ringsim.report import comparison_csv, format_comparison, write_run_trace

SHARE = Quantity("share", parse_share)
ABOVE = 1  # the exit code when --fail-above is exceeded


@click.command()
@timings_options
@click.option("--network", "name", required=True, help="See ringsim networks; or FILE.toml, which calibrate writes.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory for the pictures, the table, all cells as CSV and JSON, and recorded runs as a trace.",
)
@click.option("--fail-above", type=SHARE, help="Exit with 1 if the median |error| of held-out cells is more: 10%.")
@style_option
@json_option
def compare(
    timings: Timings, name: str, output: Path | None, fail_above: float | None, style: str | None, as_json: bool
) -> None:
    """Predict what FILES (measurements, or logs as for calibrate) hold, and lay it beside what was measured."""
    refuse_without("style", output, "output")
    cluster = load_simulated(name) if timings.measurements else load_network(name)
    comparing = compare_measurements if timings.measurements else compare_logs
    comparison = comparing(timings.cases, cluster)
    text = format_comparison(comparison)
    click.echo(json.dumps(comparison.as_dict(), allow_nan=False) if as_json else text)
    if output:
        _report(comparison, text, output, style)
        runs = [run for measurements in timings.measurements for run in measurements.runs]
        _report_runs(runs, cluster, output, style)
    if fail_above is not None and _median_error(comparison) > fail_above:
        sys.exit(ABOVE)


def _median_error(comparison: Comparison) -> float:
    """Of the cases held out; of all, if none are."""
    cases = comparison.held_out() or [case for case in comparison.cases if case.error is not None]
    if not cases:
        raise ValueError("--fail-above: nothing was predicted")
    return statistics.median(abs(case.error or 0.0) for case in cases)


def _report(comparison: Comparison, text: str, output: Path, style: str | None) -> None:
    from ringsim.report.plots.comparison_figure import save_errors, save_times  # noqa: PLC0415  takes most of a second

    output.mkdir(parents=True, exist_ok=True)
    data = json.dumps(comparison.as_dict(), indent=1, allow_nan=False) + "\n"
    for name, content in (
        ("compare.txt", text + "\n"),
        ("compare.csv", comparison_csv(comparison)),
        ("compare.json", data),
    ):
        with atomic_file(output / name) as file:
            file.write(content.encode())
    save_times(comparison, output / "times.png", style)
    save_errors(comparison, output / "errors.png", style)


def _report_runs(runs: Sequence[RecordedRun], cluster: Cluster, output: Path, style: str | None) -> None:
    """Each recorded run beside its simulation, all in one trace, and as a picture each; says which cannot be."""
    from ringsim.report.plots.run_figure import save_run  # noqa: PLC0415  as above

    compared = []
    for run in runs:
        try:
            compared.append(compare_run(run, cluster, cluster.name))
        except ValueError as error:
            click.echo(f"no picture of a run: {error}", err=True)
    if compared:
        write_run_trace(output / "runs.json", compared)
    for name, pair in zip(picture_names([pair.run for pair in compared]), compared, strict=True):
        save_run(pair, output / name, style)
