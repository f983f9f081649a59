"""Our collectives beside torch.distributed's and raw sockets, on several numbers of local ranks: `make bench`."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from collectives.benchmark.targets import TARGETS, Target, format_targets
from collectives.provenance import provenance
from ringsim.measurements import Measurements
from ringsim.number_list import parse_numbers
from ringsim.one_line import OneLineCommand

GRACE_S = 30.0  # torchrun's time to end its ranks, before it is ended itself
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
BENCHMARK = ["-m", "collectives.benchmark"]


def command(target: Target, num_ranks: int, algorithms: Sequence[str], quick: bool, file: Path) -> list[str]:
    """The command line that measures `target` into `file`."""
    mine = [option for name in target.algorithms(algorithms) for option in ("--algorithm", name)]
    less = [*target.quick_arguments, "-n", "3", "-w", "1"] if quick else []
    return [*TORCHRUN, str(num_ranks), *BENCHMARK, *target.arguments, *less, *mine, "-o", str(file)]


def run(arguments: Sequence[str]) -> None:
    """Run torchrun to its end; if this program is interrupted, end it too, which ends its ranks."""
    # In a session of its own: Ctrl-C reaches us alone, and the ranks do not die each with a traceback of its own.
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        try:
            _, errors = job.communicate()
        except BaseException:
            job.terminate()
            try:
                job.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                job.kill()
            raise
    if job.returncode:
        raise click.ClickException(f"{' '.join(arguments)}: failed\n{errors.strip()}")


@click.command(cls=OneLineCommand, context_settings={"show_default": True})
@click.option("--ranks", default="2,3,4,8", help="Numbers of local ranks.")
@click.option("--algorithm", "algorithms", multiple=True, default=("ring",), help="Repeatable; for all that have it.")
@click.option("--quick", is_flag=True, help="Few sizes and iterations: whether it works, not how fast it is.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Keep what was measured in that folder."
)
def main(ranks: str, algorithms: tuple[str, ...], quick: bool, output: Path | None) -> None:
    """Measure all targets on each number of ranks, one after the other, and print how far we are."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)  # as Ctrl-C does: nobody else would end our children
    counts = parse_numbers(ranks, int, 2)
    where = provenance()
    click.echo(f"# {where['machine']}, {where['cores']} cores, torch {where['torch']}, {where['date']}")
    if quick:
        click.echo("# --quick: few sizes, few iterations, so no figures to go by")
    with tempfile.TemporaryDirectory() as folder:
        found: dict[Target, list[Measurements]] = {target: [] for target in TARGETS}
        for num_ranks in counts:
            for index, target in enumerate(TARGETS):
                click.echo(f"{num_ranks} ranks: {target.title}", err=True)
                file = (output or Path(folder)) / f"target{index}-ranks{num_ranks}.json"
                run(command(target, num_ranks, algorithms, quick, file))
                found[target].append(Measurements.load(file))
    click.echo(format_targets(list(found.items())))


if __name__ == "__main__":
    main()
