"""Our collectives beside torch.distributed's and raw sockets, on several numbers of local ranks: `make bench`."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from collectives.benchmark.targets import TARGETS, Target, format_targets
from collectives.probes import provenance
from ringsim.console import OneLineCommand, parse_numbers, run_local_ranks
from ringsim.measurements import Measurements

BENCHMARK = ["-m", "collectives.benchmark"]


def arguments(target: Target, algorithms: Sequence[str], quick: bool, file: Path) -> list[str]:
    """What torchrun is given to measure `target` into `file`."""
    mine = [option for name in target.algorithms(algorithms) for option in ("--algorithm", name)]
    less = [*target.quick_arguments, "-n", "3", "-w", "1"] if quick else []
    return [*BENCHMARK, *target.arguments, *less, *mine, "-o", str(file)]


@click.command("bench_collectives", cls=OneLineCommand, context_settings={"show_default": True})
@click.option("--ranks", default="2,3,4,8", help="Numbers of local ranks.")
@click.option("--algorithm", "algorithms", multiple=True, default=("ring",), help="Repeatable; for all that have it.")
@click.option("--quick", is_flag=True, help="Few sizes and iterations: whether it works, not how fast it is.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Keep what was measured in that folder."
)
def main(ranks: str, algorithms: tuple[str, ...], quick: bool, output: Path | None) -> None:
    """Measure all targets on each number of ranks, one after the other, and print how far we are."""
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
                run_local_ranks(num_ranks, arguments(target, algorithms, quick, file), quiet=True)
                found[target].append(Measurements.load(file))
    click.echo(format_targets(list(found.items())))


if __name__ == "__main__":
    main(prog_name="bench_collectives")  # in messages, as it is where they do not come from click
