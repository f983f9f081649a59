"""`ringsim calibrate`."""

import json
from pathlib import Path
from typing import Any

import click

from ringsim import calibration
from ringsim.calibration import ProbeFit, ProbeModel, busy_line, calibrate_logs
from ringsim.cli.inputs import NICS, Timings, timings_options
from ringsim.cli.options import json_option
from ringsim.console import OutputFile
from ringsim.files import atomic_file, naming_place
from ringsim.measurements import Measurements
from ringsim.network import Cluster, Nics, network_text
from ringsim.report import fit_dict, format_fit, format_probe_fit, probe_fit_dict

AUTO = "auto"
MODELS = [AUTO, *(model.value for model in ProbeModel)]


@click.command()
@timings_options
@click.option("-o", "--output", type=OutputFile((".toml",)), help="Where to write the network: FILE.toml.")
@click.option("--nic", "nics", type=NICS, help="NICs of each host, if known: 4x200Gbit/s. For logs.")
@click.option(
    "--model",
    type=click.Choice(MODELS),
    default=AUTO,
    show_default=True,
    help="Of measurements: ranks share one host, several, or each is one, cores left out. auto: as they were.",
)
@json_option
def calibrate(timings: Timings, output: Path | None, nics: Nics | None, model: str, as_json: bool) -> None:
    """Fit a network to FILES: a measurements file, or logs of nccl-tests, OSU micro-benchmarks or Gloo's benchmark.

    Logs of several collectives, sizes and numbers of hosts tell more than one. The network is for `--network`. If the
    probes lie too far apart for predictions, the last line says so.
    """
    name = output.stem if output else "calibrated"
    if not timings.measurements:
        log_fit = calibrate_logs(timings.cases, name, nics)
        cluster, told, text = log_fit.cluster, fit_dict(log_fit), format_fit(log_fit)
        busy = ""
    else:
        if len(timings.measurements) > 1:
            raise ValueError(
                f"{timings.files[1]}: a network is fitted to one measurements file: the one with the probes"
            )
        (measurements,) = timings.measurements
        fit = _fit(measurements, model, name, timings.files[0])
        busy = busy_line(measurements, fit)
        cluster, told, text = fit.cluster, probe_fit_dict(fit) | {"busy": busy or None}, format_probe_fit(fit)
    _write(cluster, told, text, output, as_json)
    if busy:
        click.echo(busy, err=as_json)  # one object alone may stand on stdout


def _fit(measurements: Measurements, model: str, name: str, file: Path) -> ProbeFit:
    with naming_place(file):
        chosen = None if model == AUTO else ProbeModel(model)
        return calibration.calibrate(measurements, name, chosen, file.name)


def _write(cluster: Cluster, told: dict[str, Any], text: str, output: Path | None, as_json: bool) -> None:
    if output:
        with atomic_file(output) as file:
            file.write(network_text(cluster).encode())
    if as_json:
        click.echo(json.dumps({**told, "network": str(output) if output else None}, allow_nan=False))
        return
    click.echo(text)
    if output:
        click.echo(f"network: {output}")
