"""`ringsim measure`."""

from contextlib import suppress
from pathlib import Path

import click
from click import argument, option

from ringsim import calibration
from ringsim.console import FILE, STDOUT, IntRange, Progress, check_writable, command, require_torch, run_local_ranks
from ringsim.measurements import Measurements
from ringsim.units import plural

# Our benchmark of collectives stands above us; we only start it, so nothing is imported upwards.
BENCHMARK = ("-m", "collectives.benchmark", "--probes")
ALL = ("--collective", "all_reduce,reduce_scatter_tensor,all_gather_into_tensor")


@command(
    "ringsim measure --ranks 4 -o measurements.json",
    "ringsim measure --ranks 2 -b 1KiB -e 16MiB --algorithm ring --wide",
    "ringsim measure --collective all_reduce -b 8M -e 8M --record",
    context_settings={"ignore_unknown_options": True},
)
@option("--ranks", type=IntRange(1, 1024), default=4, help="Number of local ranks to start.")
@option("-o", "--output", type=FILE, default="measurements.json", help="Write the measurements to this file, as JSON.")
@argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[BENCHMARK OPTIONS]")
def measure(ranks: int, output: Path, options: tuple[str, ...]) -> None:
    """Probe messages and additions on local ranks, time the collectives, and write both to a measurements file.

    BENCHMARK OPTIONS are, for example, -b 1KiB -e 1MiB --algorithm ring --json; see python -m collectives.benchmark
    --help. On several hosts, start torchrun -m collectives.benchmark --probes yourself, on each of them. If the probes
    lie too far apart for predictions, the last line is a warning.
    """
    require_torch("measure")
    if output != STDOUT:
        check_writable(f"--output {output}", output.parent)
    chosen = any(option.startswith("--collective") for option in options)
    arguments = [*(() if chosen else ALL), "--in-place", *options, "-o", str(output)]
    with Progress() as progress:
        progress.begin(f"starting {plural(ranks, 'rank')}")
        run_local_ranks(ranks, [*BENCHMARK, *arguments])
    if output != STDOUT and output.exists():  # not after --help
        measurements, busy = Measurements.load(output), ""
        with suppress(ValueError):  # of too few probes for predictions
            busy = calibration.busy_warning(measurements, calibration.calibrate(measurements))
        if busy:
            click.echo(busy, err="--json" in options)  # one object alone may stand on stdout
