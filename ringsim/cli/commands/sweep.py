"""`ringsim sweep`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from click import option

from ringsim import console
from ringsim.analysis import Sweep, candidates, run_sweep
from ringsim.cli import options
from ringsim.libraries import LIBRARY, LIBRARY_ALGORITHMS, LIBRARY_TITLE, why_not
from ringsim.limits import SWEPT_TRANSFERS
from ringsim.network import Network
from ringsim.report import format_sweep, sweep_notes
from ringsim.schedule import Collective
from ringsim.text_table import WIDTH
from ringsim.units import parse_size
from ringsim.workers import Workers

SIZES = console.Quantity("sizes", lambda text: console.parse_numbers(text, parse_size, factor=4))


@console.command(
    "ringsim sweep --network gbe --ranks 2:32 --sizes 4KiB:1GiB -o sweep.png",
    "ringsim sweep --algorithm ring,two_shot --ranks 2:256 --jobs 4 --csv s.csv",
)
@options.collective_option()
@option(
    "--algorithm",
    type=console.Name("names", options.known_algorithms, several=True),
    multiple=True,
    help="Algorithms to simulate; separate several by commas, or repeat the option [default: all, "
    f"and where a network describes {LIBRARY_TITLE} its own ({', '.join(LIBRARY_ALGORITHMS)}) and its choice "
    f"among them ({LIBRARY})].",
)
@option(
    "--ranks",
    type=options.NUMBERS_OF_RANKS,
    default="2,4,8,16",
    help="Numbers of ranks: 2,4,8, or a range: 8:100 doubles from 8 and ends with 100, 3:81:x3 triples.",
)
@option(
    "--sizes",
    type=SIZES,
    default="1KiB:1GiB",
    help="Sizes of the whole tensor: 1KB,4KB, or a range: 1KiB:1GiB grows fourfold and ends with "
    "1GiB, 1:64KiB:x2 doubles.",
)
@options.networks_options
@option(
    "--max-transfers",
    type=console.FloatRange(1),
    default=SWEPT_TRANSFERS,
    show_default="1e7",
    help="Skip schedules with more transfers.",
)
@options.workers_options
@option("--csv", "table", type=console.OUTPUT, help="Write all cells to this CSV file.")
@options.picture_options("Write the picture to this file: PNG, PDF or SVG.")
@console.wide_option
@console.json_option
def sweep(table: Path | None, picture: options.PictureFile, wide: bool, as_json: bool, **run: Any) -> None:
    """Show which algorithm is fastest, by size and number of ranks: as a table, CSV and a picture."""
    console.require_one_stdout(as_json, table)
    result = _simulated(**run)
    console.write_output(table, [result.csv_text()])
    about = result.as_dict() | {"notes": sweep_notes(result)}
    console.print_result(format_sweep(result, sys.maxsize if wide else WIDTH), about, as_json, table)
    picture.save(result)


def _simulated(
    collective: Collective,
    algorithm: Sequence[str],
    ranks: Sequence[int],
    sizes: Sequence[int],
    networks: Mapping[str, Network],
    max_transfers: float,
    workers: Workers,
) -> Sweep:
    names = [name.strip() for names in algorithm for name in names.split(",")]
    if not names:
        names = candidates(collective, networks.values())
        names += [LIBRARY] if any(not why_not(network, LIBRARY) for network in networks.values()) else []
    num_cells = len(set(names)) * len(ranks) * len(sizes) * len(networks)
    with console.ended_once(), console.progress_bar(num_cells, "simulating", delay_s=1.0) as bar:
        limits: Any = {"max_transfers": max_transfers, "as_library": True, "workers": workers}
        return run_sweep(collective, names, ranks, sizes, networks, bar.update, **limits)
