"""`ringsim measure`."""

import subprocess
import sys
from pathlib import Path

import click

from ringsim.commands.options import FILE
from ringsim.torchrun import check_writable

# Gloo's own benchmark of our collectives, which brings torch with it; we only start it, so nothing is imported upwards.
BENCHMARK = ("-m", "collectives.benchmark", "--probes", "--in-place")
ALL = ("--collective", "all_reduce,reduce_scatter_tensor,all_gather_into_tensor")
GRACE_S = 30.0


@click.command(context_settings={"ignore_unknown_options": True, "show_default": True})
@click.option("--ranks", type=click.IntRange(1, 1024), default=4, help="Local ranks to start.")
@click.option("-o", "--output", type=FILE, default="measurements.json", help="The file to write.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def measure(ranks: int, output: Path, options: tuple[str, ...]) -> None:
    """Probe messages and additions on local ranks, time the collectives, and write both to a measurements file.

    OPTIONS are those of the benchmark, such as -b 1KiB -e 16MiB --algorithm ring; see python -m collectives.benchmark
    --help. It starts torchrun --nproc-per-node RANKS -m collectives.benchmark --probes; on several hosts, start that
    yourself, on each of them.
    """
    check_writable(f"--output {output}", output.parent)
    chosen = () if any(each.startswith("--collective") for each in options) else ALL
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    code = _run([*start, *BENCHMARK, *chosen, *options, "-o", str(output)])
    if code:
        raise click.ClickException(f"the benchmark ended with exit code {code}; what it said is above")


def _run(command: list[str]) -> int:
    """Run torchrun to its end; if we are ended, end it too, which ends its ranks."""
    # In a session of its own: Ctrl-C reaches us alone, and the ranks do not die each with a traceback of its own.
    with subprocess.Popen(command, start_new_session=True) as job:
        try:
            return job.wait()
        except BaseException:
            job.terminate()
            try:
                job.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                job.kill()
            raise
