"""`ringsim doctor`, `ringsim measure` and `ringsim calibrate`: from a machine to its network."""

import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click
from click import argument, option

from ringsim import calibration, console
from ringsim.cli.inputs import NICS, Timings, timings_options
from ringsim.files import naming_place
from ringsim.machine import Level, examine
from ringsim.measurements import Measurements
from ringsim.network import Nics, network_text
from ringsim.report import fit_dict, format_fit, format_probe_fit, probe_fit_dict
from ringsim.text_table import WIDTH, align_columns
from ringsim.units import plural

IMPOSSIBLE = 1  # the exit code of doctor when something makes measuring impossible
# The benchmark belongs to a higher package, `collectives`: it is started, not imported.
BENCHMARK = ("-m", "collectives.benchmark", "--probes")
ALL = ("--collective", "all_reduce,reduce_scatter_tensor,all_gather_into_tensor")
AUTO = "auto"
MODELS = [AUTO, *(model.value for model in calibration.ProbeModel)]


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


@console.command(
    "ringsim measure --ranks 4 -o measurements.json",
    "ringsim measure --ranks 2 -b 1KiB -e 16MiB --algorithm ring --wide",
    "ringsim measure --collective all_reduce -b 8M -e 8M --record",
    context_settings={"ignore_unknown_options": True},
)
@option("--ranks", type=console.IntRange(1, 1024), default=4, help="Number of local ranks to start.")
@option(
    "-o",
    "--output",
    type=console.FILE,
    default="measurements.json",
    help="Write the measurements to this file, as JSON.",
)
@argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[BENCHMARK OPTIONS]")
def measure(ranks: int, output: Path, options: tuple[str, ...]) -> None:
    """Probe messages and additions on local ranks, time the collectives, and write both to a measurements file.

    BENCHMARK OPTIONS are, for example, -b 1KiB -e 1MiB --algorithm ring --json; see python -m collectives.benchmark
    --help. On several hosts, start torchrun -m collectives.benchmark --probes yourself, on each of them. If the probes
    lie too far apart for predictions, the last line is a warning.
    """
    console.require_torch("measure")
    if output != console.STDOUT:
        console.check_writable(f"--output {output}", output.parent)
    chosen = any(option.startswith("--collective") for option in options)
    arguments = [*(() if chosen else ALL), "--in-place", *options, "-o", str(output)]
    with console.Progress() as progress:
        progress.begin(f"starting {plural(ranks, 'rank')}")
        console.run_local_ranks(ranks, [*BENCHMARK, *arguments])
    if output != console.STDOUT and output.exists():  # not after --help
        measurements, busy = Measurements.load(output), ""
        with suppress(ValueError):  # of too few probes for predictions
            busy = calibration.busy_warning(measurements, calibration.calibrate(measurements))
        if busy:
            click.echo(busy, err="--json" in options)  # one object alone may stand on stdout


@console.command(
    "ringsim calibrate measurements.json -o this.toml",
    "ringsim calibrate all_reduce-*.txt --nic 4x200Gbit/s -o cluster.toml",
)
@timings_options
@option(
    "-o",
    "--output",
    type=console.OutputFile((".toml",), stdout=True),
    help="Write the network to FILE.toml, which --network reads.",
)
@option("--nic", "nics", type=NICS, help="NICs of each host, such as 4x200Gbit/s; for logs.")
@option(
    "--model",
    type=console.Choice(MODELS),
    default=AUTO,
    help="Placement of the measured ranks: on one host, on several hosts, or each on its own host "
    "without a limit of cores (network); auto reads it from the measurements.",
)
@console.wide_option
@console.json_option
def calibrate(timings: Timings, output: Path | None, nics: Nics | None, model: str, wide: bool, as_json: bool) -> None:
    """Fit a network to FILES: a measurements file, or logs of nccl-tests, OSU micro-benchmarks or Gloo's benchmark.

    Logs of several collectives, sizes and numbers of hosts determine more than one log does. Use the network with
    --network. The first lines say as which collective each table was read, on which ranks and hosts. The last lines
    warn if the probes scatter too much for predictions, a latency is implausible, logs contradict each other, or a
    setting of NCCL is not modelled. They also warn if the logs do not show how fast all ranks of a host send together.
    Some of these lines name a log that would help.
    """
    console.require_one_stdout(as_json, output)
    name = output.stem if output and output.suffix else "calibrated"
    with console.Progress() as progress:
        progress.begin("fitting")
        fit = (
            _fit(timings, model, name)
            if timings.measurements
            else calibration.calibrate_logs(timings.cases, name, nics)
        )
    if isinstance(fit, calibration.ProbeFit):
        warnings = {"busy": calibration.busy_warning(timings.measurements[0], fit)}
        result, text = probe_fit_dict(fit), format_probe_fit(fit, wide)
    else:
        warnings, result, text = fit.warnings, fit_dict(fit), timings.under_readings(format_fit(fit, wide))
        result |= timings.readings
    result |= {name: line or None for name, line in warnings.items()}
    console.write_output(output, [network_text(fit.cluster)])
    console.print_result(text, {**result, "network": str(output) if output else None}, as_json, output)
    readings = [f"read {line}" for line in timings.read] if output == console.STDOUT else []
    for line in filter(None, (*readings, *warnings.values())):
        click.echo(line, err=as_json or output == console.STDOUT)  # one object or network alone may stand on stdout


def _fit(timings: Timings, model: str, name: str) -> calibration.ProbeFit:
    if len(timings.measurements) > 1:
        raise ValueError(f"{timings.files[1]}: a network is fitted to one measurements file: the one with the probes")
    with naming_place(timings.files[0]):
        chosen = None if model == AUTO else calibration.ProbeModel(model)
        return calibration.calibrate(timings.measurements[0], name, chosen, timings.files[0].name)
