"""`ringsim sweep`: from its options or from the file of one that was interrupted; what is kept if it is interrupted."""

import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from ringsim.analysis import LIBRARY, MAX_TRANSFERS, Sweep, SweepPlan, SweepRun, candidates, why_not
from ringsim.calibration import AS_LIBRARY
from ringsim.cli.options import (
    MAX_RANKS,
    collective_option,
    is_given,
    known_algorithms,
    networks_options,
    refuse_without,
    style_option,
    trust_option,
    workers_options,
)
from ringsim.console import (
    FILE,
    OUTPUT,
    PICTURE,
    STDOUT,
    FloatRange,
    Name,
    Quantity,
    ended_once,
    examples,
    json_option,
    message_of,
    output_file,
    parse_numbers,
    print_result,
    progress_bar,
    require_one_stdout,
    say_wrote,
    wide_option,
)
from ringsim.files import atomic_file, file_to_replace, naming_place
from ringsim.network import AnyNetwork, Network, load_network
from ringsim.registry import needs_trust, require_trusted
from ringsim.report import format_sweep
from ringsim.schedule import Collective, ScheduleError
from ringsim.text_table import WIDTH
from ringsim.units import parse_size, whole_number
from ringsim.workers import Workers

KEEP_S = 10.0  # between two times that the cells of a sweep that goes on are written


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
    help="Algorithms to simulate; separate several by commas, or repeat the option [default: all, "
    "and where a network describes NCCL its own (nccl_ring, nccl_tree, nvls) and its choice "
    "among them (nccl)].",
)
@click.option(
    "--ranks",
    type=NUMBERS_OF_RANKS,
    default="2,4,8,16",
    help="Numbers of ranks: 2,4,8, or a range: 8:100 doubles from 8 and ends with 100, 3:81:x3 triples.",
)
@click.option(
    "--sizes",
    type=SIZES,
    default="1KiB:1GiB",
    help="Sizes of the whole tensor: 1KB,4KB, or a range: 1KiB:1GiB grows fourfold and ends with "
    "1GiB, 1:64KiB:x2 doubles.",
)
@partial(networks_options, load=load_network)
@click.option(
    "--max-transfers",
    type=FloatRange(1),
    default=MAX_TRANSFERS,
    show_default="1e7",
    help="Skip schedules with more transfers.",
)
@workers_options
@click.option(
    "--from",
    "source",
    type=FILE,
    help="Resume from the cells in this CSV file: only missing cells of the sweep are simulated.",
)
@trust_option
@click.option("--csv", "table", type=OUTPUT, help="Write all cells to this CSV file, also after Ctrl-C.")
@click.option("-o", "--output", type=PICTURE, help="Write the picture to this file: PNG, PDF or SVG.")
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
    """Show which algorithm is fastest, by size and number of ranks: as a table, CSV and a picture."""
    require_one_stdout(as_json, table)
    refuse_without("style", output, "output")
    if source:
        _refuse_given_beside({"source", "table", "output", "style", "wide", "as_json", "jobs", "dask", "trusted"})
    elif trusted:
        raise click.UsageError("--trust has no effect without --from", click.get_current_context())
    result = Sweep.from_csv(source) if source else None
    if result is None or result.planned:
        table = table or source  # a sweep that was interrupted is finished in its own file
        unfinished = _resumed(source, result, trusted) if source and result else _planned(**run)
        result = _finish(unfinished, workers, table)
    if table:
        with output_file(table) as file:
            file.write(result.csv_text().encode())
    print_result(format_sweep(result, sys.maxsize if wide else WIDTH), result.as_dict(), as_json, table)
    if output:
        from ringsim.report.plots.plot import save_plot  # noqa: PLC0415  takes most of a second to import

        save_plot(result, output, style)
        say_wrote(output)


def _refuse_given_beside(allowed: set[str]) -> None:
    """Refuse an option that would be without effect."""
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        if name not in allowed and is_given(name):
            raise click.UsageError(f"{option.opts[0]} has no effect together with --from", context)


def _planned(
    collective: str,
    algorithm: Sequence[str],
    ranks: Sequence[int],
    sizes: Sequence[int],
    networks: Mapping[str, AnyNetwork],
    max_transfers: float,
) -> SweepRun:
    """Return a sweep with nothing done, from the options of `ringsim sweep`."""
    chosen = Collective(collective)
    names = [name.strip() for names in algorithm for name in names.split(",")]
    if not names:
        names = candidates(chosen, networks.values())
        names += [LIBRARY] if any(not why_not(network, LIBRARY) for network in networks.values()) else []
    return SweepRun(SweepPlan.of(chosen, names, ranks, sizes, networks, max_transfers, AS_LIBRARY))


def _resumed(source: Path, sweep: Sweep, trusted: Sequence[str]) -> SweepRun:
    """Return the sweep that `source` holds a part of.

    Raises ValueError, which names the file, if a network or an algorithm has changed since, or names a Python file
    that is not trusted.
    """
    with naming_place(source):
        assert sweep.planned
        for algorithm in sweep.planned.algorithms:
            require_trusted("the sweep names", algorithm, trusted)
        networks = {name: _network(name, facts) for name, facts in sweep.networks.items()}
        return SweepRun(SweepPlan.resumed(sweep.planned, sweep.collective, networks, AS_LIBRARY), sweep.cells)


def _network(name: str, facts: Mapping[str, Any]) -> AnyNetwork:
    """The network of that name, which must be as it was when the sweep began."""
    if "spec" not in facts:
        return Network.from_dict(facts)
    cluster = load_network(name)
    if json.loads(json.dumps(cluster.as_dict())) != facts:
        raise ValueError(f"network {name}: has changed since the sweep began: restore it, or run the sweep again")
    return cluster


def _finish(run: SweepRun, workers: Workers, table: Path | None) -> Sweep:
    """Simulate what is missing, with a progress line on stderr, where that is a terminal.

    table: where the cells are kept now and then, and if the sweep is interrupted.
    """
    with (
        ended_once(),
        _keeping(run, table) as keep,
        workers,
        progress_bar(run.num_cells, "simulating", done=run.num_done, delay_s=1.0) as bar,
    ):

        def on_progress(count: int) -> None:
            bar.update(count)
            keep()

        run.finish(workers, on_progress)
    return run.sweep()


@contextmanager
def _keeping(run: SweepRun, table: Path | None) -> Iterator[Any]:
    """Yield what is to be called after each cell; when the sweep is interrupted, the error says how to go on."""
    kept_at = time.monotonic()

    def keep() -> None:
        nonlocal kept_at
        if time.monotonic() > kept_at + KEEP_S:
            _write(run, table)
            kept_at = time.monotonic()

    try:
        yield keep
    except (ValueError, ScheduleError):
        raise  # the user's mistake, which would come again
    except KeyboardInterrupt:
        raise click.exceptions.Abort(f"interrupted{_write(run, table)}") from None
    except (OSError, MemoryError) as error:
        kind = OSError if isinstance(error, OSError) else MemoryError
        raise kind(f"{message_of(error)}{_write(run, table)}") from error
    except BaseException:
        _write(run, table)
        raise


def _write(run: SweepRun, table: Path | None) -> str:
    """Write the cells that there are; what to say of that."""
    if table in (None, STDOUT) or not run.num_done or run.num_done == run.num_cells:
        return ""
    if file_to_replace(table) is None:  # a FIFO, whose reader would get these cells twice
        return ""
    with atomic_file(table) as file:
        file.write(run.sweep().csv_text().encode())
    trusted = "".join(f" --trust {shlex.quote(name)}" for name in run.algorithms if needs_trust(name))
    done = f"{run.num_done} of {run.num_cells} cells are in {table}"
    return f"; {done}; resume with: ringsim sweep --from {shlex.quote(str(table))}{trusted}"
