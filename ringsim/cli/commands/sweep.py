"""`ringsim sweep`."""

import json
import shutil
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ringsim.analysis import MAX_TRANSFERS, Sweep, run_sweep
from ringsim.cli.options import COLLECTIVES, MAX_RANKS, json_option, networks_options, refuse_without, style_option
from ringsim.console import FILE, OUTPUT, PICTURE, Quantity, parse_numbers, progress_bar
from ringsim.network import AnyNetwork
from ringsim.registry import ALGORITHMS
from ringsim.report import format_sweep
from ringsim.schedule import Collective
from ringsim.units import parse_size


def _parse_num_ranks(text: str) -> int:
    """A number of ranks that can be simulated in reasonable time; raises ValueError for anything else."""
    if not text.strip().isdecimal() or not 2 <= int(text) <= MAX_RANKS:
        raise ValueError(f"{text!r} is not a number of ranks: write a whole number from 2 to {MAX_RANKS}")
    return int(text)


SIZES = Quantity("sizes", lambda text: parse_numbers(text, parse_size, factor=4))
NUMBERS_OF_RANKS = Quantity("ranks", lambda text: parse_numbers(text, _parse_num_ranks, factor=2))


@click.command()
@click.option("--collective", type=click.Choice(COLLECTIVES), default="all_reduce", show_default=True)
@click.option("--algorithm", multiple=True, help="One, or several with commas; repeatable.  [default: all]")
@click.option("--ranks", type=NUMBERS_OF_RANKS, default="2,4,8,16", show_default=True, help="2,4,8 or 2:64 or 3:81:x3.")
@click.option("--sizes", type=SIZES, default="1KiB:1GiB", show_default=True, help="1KB,4KB or 1KiB:1GiB or 1:64KiB:x2.")
@networks_options
@click.option(
    "--max-transfers", type=click.FloatRange(1), default=MAX_TRANSFERS, help="Skip larger schedules.  [default: 1e7]"
)
@click.option("--from", "source", type=FILE, help="A CSV file; simulate nothing.")
@click.option("--csv", "table", type=OUTPUT, help="Where to save all cells.")
@click.option("-o", "--output", type=PICTURE, help="Picture: PNG, PDF or SVG.")
@style_option
@json_option
def sweep(
    source: Path | None, table: Path | None, output: Path | None, style: str | None, as_json: bool, **run: Any
) -> None:
    """Who is fastest, by size and number of ranks: as a table, CSV and a picture."""
    refuse_without("style", output, "output")
    if source:
        _refuse_given_beside({"source", "table", "output", "style", "as_json"})
    result = Sweep.from_csv(source) if source else _sweep_with_bar(**run)
    if table:
        result.to_csv(table)
    width = shutil.get_terminal_size((100, 24)).columns
    click.echo(json.dumps(result.as_dict()) if as_json else format_sweep(result, width))
    if output:
        from ringsim.report.plots.sweep_figure import save_sweep  # noqa: PLC0415  takes most of a second to import

        save_sweep(result, output, style)


def _sweep_with_bar(
    collective: str,
    algorithm: tuple[str, ...],
    ranks: list[int],
    sizes: list[int],
    networks: dict[str, AnyNetwork],
    max_transfers: float,
) -> Sweep:
    """`run_sweep` with a progress bar on stderr, where that is a terminal."""
    chosen = Collective(collective)
    algorithms = [name.strip() for names in algorithm for name in names.split(",")] or [
        n for c, n in ALGORITHMS if c is chosen
    ]
    num_cells = len(set(algorithms)) * len(ranks) * len(sizes) * len(networks)
    with progress_bar(num_cells, "simulating") as bar:
        return run_sweep(chosen, algorithms, ranks, sizes, networks, bar.update, max_transfers=max_transfers)


def _refuse_given_beside(allowed: set[str]) -> None:
    """An option that would be without effect is the user's mistake."""
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        if name not in allowed and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} has no effect together with --from", context)
