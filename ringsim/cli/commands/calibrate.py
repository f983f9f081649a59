"""`ringsim calibrate`."""

from pathlib import Path

import click
from click import option

from ringsim import calibration, console
from ringsim.cli.inputs import NICS, Timings, timings_options
from ringsim.files import naming_place
from ringsim.network import Nics, network_text
from ringsim.report import fit_dict, format_fit, format_probe_fit, probe_fit_dict

AUTO = "auto"
MODELS = [AUTO, *(model.value for model in calibration.ProbeModel)]


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
        told, text = probe_fit_dict(fit), format_probe_fit(fit, wide)
    else:
        warnings, told, text = fit.warnings, fit_dict(fit), timings.under_readings(format_fit(fit, wide))
        told |= timings.readings
    told |= {name: line or None for name, line in warnings.items()}
    if output:
        with console.output_file(output) as file:
            file.write(network_text(fit.cluster).encode())
    console.print_result(text, {**told, "network": str(output) if output else None}, as_json, output)
    readings = [f"read {line}" for line in timings.read] if output == console.STDOUT else []
    for line in filter(None, (*readings, *warnings.values())):
        click.echo(line, err=as_json or output == console.STDOUT)  # one object or network alone may stand on stdout


def _fit(timings: Timings, model: str, name: str) -> calibration.ProbeFit:
    if len(timings.measurements) > 1:
        raise ValueError(f"{timings.files[1]}: a network is fitted to one measurements file: the one with the probes")
    with naming_place(timings.files[0]):
        chosen = None if model == AUTO else calibration.ProbeModel(model)
        return calibration.calibrate(timings.measurements[0], name, chosen, timings.files[0].name)
