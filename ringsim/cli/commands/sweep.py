"""`ringsim sweep`."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ringsim.analysis import MAX_TRANSFERS, Sweep
from ringsim.cli.options import (
    MAX_RANKS,
    collective_option,
    known_algorithms,
    networks_options,
    refuse_without,
    style_option,
    trust_option,
    workers_options,
)
from ringsim.cli.sweep_session import finish_sweep, planned_sweep, resumed_sweep
from ringsim.console import (
    FILE,
    OUTPUT,
    PICTURE,
    FloatRange,
    Name,
    Quantity,
    examples,
    json_option,
    output_file,
    parse_numbers,
    print_result,
    require_one_stdout,
    say_wrote,
    wide_option,
)
from ringsim.network import load_network
from ringsim.report import format_sweep
from ringsim.text_table import WIDTH
from ringsim.units import parse_size, whole_number
from ringsim.workers import Workers


def _parse_num_ranks(text: str) -> int:
    """A number of ranks that can be simulated in reasonable time; raises ValueError for anything else."""
    num_ranks = whole_number(text.strip())
    if num_ranks is None or not 2 <= num_ranks <= MAX_RANKS:
        raise ValueError(f"{text!r} is not a number of ranks: write a whole number from 2 to {MAX_RANKS}")
    return num_ranks


SIZES = Quantity("sizes", lambda text: parse_numbers(text, parse_size, factor=4))
NUMBERS_OF_RANKS = Quantity("ranks", lambda text: parse_numbers(text, _parse_num_ranks, factor=2))


@click.command(
    epilog=examples(
        "ringsim sweep --network gbe --ranks 2:32 --sizes 4KiB:1GiB -o sweep.png",
        "ringsim sweep --algorithm ring,two_shot --ranks 2:256 --jobs 4 --csv s.csv",
    )
)
@collective_option
@click.option(
    "--algorithm",
    type=Name("names", known_algorithms, several=True),
    multiple=True,
    help="This algorithm is simulated; several have commas between, or the option is repeated; without it all are, and "
    "where a network describes NCCL its own (nccl_ring, nccl_tree, nvls) and its choice among them (nccl).",
)
@click.option(
    "--ranks",
    type=NUMBERS_OF_RANKS,
    default="2,4,8,16",
    help="So many ranks take part: 2,4,8, or a range: 8:100 doubles from 8 and ends with 100, 3:81:x3 triples.",
)
@click.option(
    "--sizes",
    type=SIZES,
    default="1KiB:1GiB",
    help="The whole tensor has so many bytes: 1KB,4KB, or a range: 1KiB:1GiB grows fourfold and ends with 1GiB, "
    "1:64KiB:x2 doubles.",
)
@partial(networks_options, load=load_network)
@click.option(
    "--max-transfers",
    type=FloatRange(1),
    default=MAX_TRANSFERS,
    show_default="1e7",
    help="Schedules with more transfers are skipped.",
)
@workers_options
@click.option(
    "--from",
    "source",
    type=FILE,
    help="The cells are read from this CSV file; only what is missing of a sweep that was interrupted is simulated.",
)
@trust_option
@click.option("--csv", "table", type=OUTPUT, help="All cells are written to this CSV file, also if you press Ctrl-C.")
@click.option("-o", "--output", type=PICTURE, help="The picture is written to this file: PNG, PDF or SVG.")
@style_option
@wide_option
@json_option
def sweep(
    source: Path | None,
    table: Path | None,
    output: Path | None,
    style: str | None,
    wide: bool,
    as_json: bool,
    workers: Workers,
    trusted: tuple[str, ...],
    **run: Any,
) -> None:
    """Shows which algorithm is fastest, by size and number of ranks: as a table, CSV and a picture."""
    require_one_stdout(as_json, table)
    refuse_without("style", output, "output")
    if source:
        _refuse_given_beside({"source", "table", "output", "style", "wide", "as_json", "jobs", "dask", "trusted"})
    elif trusted:
        raise click.UsageError("--trust has no effect without --from", click.get_current_context())
    result = Sweep.from_csv(source) if source else None
    if result is None or result.planned:
        table = table or source  # a sweep that was interrupted is finished in its own file
        unfinished = resumed_sweep(source, result, trusted) if source and result else planned_sweep(**run)
        result = finish_sweep(unfinished, workers, table)
    if table:
        with output_file(table) as file:
            file.write(result.csv_text().encode())
    print_result(format_sweep(result, sys.maxsize if wide else WIDTH), result.as_dict(), as_json, table)
    if output:
        from ringsim.report.plots.sweep_figure import save_sweep  # noqa: PLC0415  takes most of a second to import

        save_sweep(result, output, style)
        say_wrote(output)


def _refuse_given_beside(allowed: set[str]) -> None:
    """Refuse an option that would be without effect."""
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        if name not in allowed and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} has no effect together with --from", context)
