"""`ringsim measure`."""

from pathlib import Path

import click

from ringsim import calibration
from ringsim.console import FILE, check_local_rank, check_writable, require_torch, run_local_ranks
from ringsim.measurements import Measurements

# Our benchmark of collectives stands above us; we only start it, so nothing is imported upwards.
BENCHMARK = ("-m", "collectives.benchmark", "--probes", "--in-place")
ALL = ("--collective", "all_reduce,reduce_scatter_tensor,all_gather_into_tensor")


@click.command(context_settings={"ignore_unknown_options": True, "show_default": True})
@click.option("--ranks", type=click.IntRange(1, 1024), default=4, help="Local ranks to start.")
@click.option("-o", "--output", type=FILE, default="measurements.json", help="The file to write.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def measure(ranks: int, output: Path, options: tuple[str, ...]) -> None:
    """Probe messages and additions on local ranks, time the collectives, and write both to a measurements file.

    OPTIONS are those of the benchmark, such as -b 1KiB -e 16MiB --algorithm ring; see python -m collectives.benchmark
    --help. It starts torchrun --nproc-per-node RANKS -m collectives.benchmark --probes; on several hosts, start that
    yourself, on each of them. If the probes lie too far apart for predictions, the last line says so.
    """
    require_torch("measure")
    check_writable(f"--output {output}", output.parent)
    chosen = () if any(option.startswith("--collective") for option in options) else ALL
    arguments = [*chosen, *options, "-o", str(output)]
    if said := check_local_rank(ranks, [*BENCHMARK, "--check", *arguments]):
        click.echo(said, nl=False)
        return
    run_local_ranks(ranks, [*BENCHMARK, *arguments])
    if busy := _busy(Measurements.load(output)):
        click.echo(busy)


def _busy(measurements: Measurements) -> str:
    """Whether the machine was too busy for predictions, in one line; "" too where the probes are too few for any."""
    try:
        fit = calibration.calibrate(measurements)
    except ValueError:
        return ""
    return calibration.busy_line(measurements, fit)
