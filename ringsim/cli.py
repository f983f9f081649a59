"""The command line: parse, call one function, print. Heavy imports wait until a command needs them."""

import json
import math
import shutil
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ringsim import __version__
from ringsim.algorithms import ALGORITHMS, build
from ringsim.closed_form import ring_time_s
from ringsim.collective import Collective
from ringsim.cost_table import cost_of, format_costs
from ringsim.network import Network
from ringsim.number_list import parse_numbers
from ringsim.one_line import OneLineGroup
from ringsim.rates import algbw_bytes_per_s, busbw_bytes_per_s
from ringsim.schedule import Schedule
from ringsim.simulate import predict_time
from ringsim.sweep import MAX_TRANSFERS, Sweep, run_sweep
from ringsim.sweep_table import format_sweep
from ringsim.units import format_rate, format_size, format_time, parse_rate, parse_size, parse_time
from ringsim.verify import verify


class Quantity(click.ParamType[Any]):
    """An option whose text is read by a parser that raises ValueError, such as those of `units`."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default that is a number already
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE = Quantity("size", parse_size)
RATE = Quantity("rate", parse_rate)
TIME = Quantity("time", parse_time)
SIZES = Quantity("sizes", lambda text: parse_numbers(text, parse_size, factor=4))
RANKS = Quantity("ranks", lambda text: parse_numbers(text, parse_num_ranks, factor=2))

MAX_RANKS = 2**17  # beyond that one collective would be simulated for many minutes
COLLECTIVES = sorted({collective.value for collective, _ in ALGORITHMS})

Command = Callable[..., None]


def schedule_options(command: Command) -> Command:
    """Options that say which schedule; the command gets it as `schedule`."""

    @click.option("--collective", type=click.Choice(COLLECTIVES), default="all_reduce", show_default=True)
    @click.option("--algorithm", default="ring", show_default=True, help="See ringsim algorithms; or FILE.py:FUNCTION.")
    @click.option("--ranks", type=click.IntRange(1, MAX_RANKS), default=8, show_default=True)
    @wraps(command)
    def with_schedule(*, collective: str, algorithm: str, ranks: int, **rest: Any) -> None:
        command(schedule=build(Collective(collective), algorithm, ranks), **rest)

    return with_schedule


def network_options(command: Command) -> Command:
    """Options that say which network; the command gets it as `network`."""

    @click.option("--latency", type=TIME, default="10us", show_default=True, help="Of one message.")
    @click.option("--bandwidth", type=RATE, default="1.25GB/s", show_default=True, help="Of a link; also 10Gbit/s.")
    @click.option("--reduce-bandwidth", type=RATE, help="At which a rank adds; without it reducing is free.")
    @wraps(command)
    def with_network(*, latency: float, bandwidth: float, reduce_bandwidth: float | None, **rest: Any) -> None:
        command(network=Network(latency, bandwidth, reduce_bandwidth or math.inf), **rest)

    return with_network


size_option = click.option(
    "--size", type=SIZE, default="64MiB", show_default=True, help="Of the tensor: 1500, 64KiB, 64MB."
)


@click.group(name="ringsim", cls=OneLineGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ringsim")
def main() -> None:
    """Collective communication, proved and predicted from one description of each algorithm."""


@main.command()
@schedule_options
@network_options
@size_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def simulate(schedule: Schedule, network: Network, size: int, as_json: bool) -> None:
    """How long a collective takes on uniform links."""
    result = summarise(schedule, network, size)
    click.echo(json.dumps(result) if as_json else describe(result))


@main.command()
@click.option("--collective", type=click.Choice(COLLECTIVES), help="Only this one's.")
@click.option("--ranks", type=click.IntRange(1, MAX_RANKS), default=8, show_default=True)
def algorithms(collective: str | None, ranks: int) -> None:
    """List the algorithms with their steps, transfers and bytes, beside what no algorithm can undercut."""
    chosen = [key for key in ALGORITHMS if collective in (None, key[0].value)]
    click.echo(format_costs(cost_of(build(*key, ranks)) for key in chosen))


@main.command("verify")
@schedule_options
def verify_command(schedule: Schedule) -> None:
    """Prove that an algorithm gives every rank what it must have, each contribution counted once."""
    proof = verify(schedule)
    click.echo(f"{schedule}: correct ({proof.num_steps} steps, {proof.num_transfers} transfers)")


@main.command()
@schedule_options
@network_options
@size_option
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="PNG, PDF or SVG, by its suffix.")
def plot(schedule: Schedule, network: Network, size: int, output: Path | None) -> None:
    """Draw the lanes of all ranks, the chunk grid, and time against size."""
    from ringsim.overview import make_overview  # noqa: PLC0415
    from ringsim.plots.overview_figure import save_overview  # noqa: PLC0415  takes most of a second to import

    name = f"ringsim-{schedule.collective.value}-{schedule.algorithm}-{schedule.num_ranks}.png"
    path = output or Path(name)
    save_overview(make_overview(schedule, network, size), path)
    click.echo(path)


@main.command("sweep")
@click.option("--collective", type=click.Choice(COLLECTIVES), default="all_reduce", show_default=True)
@click.option("--algorithm", "names", multiple=True, help="One, or several with commas; repeatable.  [default: all]")
@click.option("--ranks", type=RANKS, default="2,4,8,16", show_default=True, help="2,4,8 or 2:64 or 3:81:x3.")
@click.option("--sizes", type=SIZES, default="1KiB:1GiB", show_default=True, help="1KB,4KB or 1KiB:1GiB or 1:64KiB:x2.")
@network_options
@click.option(
    "--max-transfers", type=click.FloatRange(1), default=MAX_TRANSFERS, help="Skip larger schedules.  [default: 1e7]"
)
@click.option("--from", "source", type=click.Path(path_type=Path, dir_okay=False), help="A CSV file; simulate nothing.")
@click.option("--csv", "table", type=click.Path(path_type=Path, dir_okay=False), help="Where to save all cells.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Picture: PNG, PDF or SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all cells.")
def sweep_command(source: Path | None, table: Path | None, output: Path | None, as_json: bool, **run: Any) -> None:
    """Who is fastest, by size and number of ranks: as a table, CSV and a picture."""
    if source:
        _refuse_given_beside({"source", "table", "output", "as_json"})
    sweep = Sweep.from_csv(source) if source else sweep_with_bar(**run)
    if table:
        sweep.to_csv(table)
    width = shutil.get_terminal_size((100, 24)).columns
    click.echo(json.dumps(sweep.as_dict()) if as_json else format_sweep(sweep, width))
    if output:
        from ringsim.plots.sweep_figure import save_sweep  # noqa: PLC0415  takes most of a second to import

        save_sweep(sweep, output)


def sweep_with_bar(
    collective: str, names: tuple[str, ...], ranks: list[int], sizes: list[int], network: Network, max_transfers: float
) -> Sweep:
    """`run_sweep` with a progress bar on stderr, where that is a terminal."""
    of = Collective(collective)
    algorithms = [name.strip() for some in names for name in some.split(",")] or [n for c, n in ALGORITHMS if c is of]
    networks = {"uniform": network}
    num_cells = len(set(algorithms)) * len(ranks) * len(sizes) * len(networks)
    hidden = not sys.stderr.isatty()
    with click.progressbar(length=num_cells, label="simulating", file=sys.stderr, hidden=hidden) as bar:
        return run_sweep(of, algorithms, ranks, sizes, networks, bar.update, max_transfers=max_transfers)


def _refuse_given_beside(allowed: set[str]) -> None:
    """An option that would be without effect is the user's mistake."""
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        if name not in allowed and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} has no effect together with --from", context)


def parse_num_ranks(text: str) -> int:
    """A number of ranks that can be simulated in reasonable time; raises ValueError for anything else."""
    if not text.strip().isdecimal() or not 2 <= int(text) <= MAX_RANKS:
        raise ValueError(f"{text!r} is not a number of ranks: write a whole number from 2 to {MAX_RANKS}")
    return int(text)


def summarise(schedule: Schedule, network: Network, size_bytes: int) -> dict[str, Any]:
    """The simulated time of one collective with what it is to be compared with, for JSON."""
    collective, num_ranks = schedule.collective, schedule.num_ranks
    time_s = predict_time(schedule, network, size_bytes)
    return {
        "collective": collective.value,
        "algorithm": schedule.algorithm,
        "num_ranks": num_ranks,
        "num_chunks": schedule.num_chunks,
        "num_steps": schedule.num_steps,
        "num_transfers": schedule.num_transfers,
        "size_bytes": size_bytes,
        "network": network.as_dict(),
        "time_s": time_s,
        "closed_form_s": ring_time_s(collective, num_ranks, size_bytes, network)
        if schedule.algorithm == "ring"
        else None,
        "algbw_bytes_per_s": algbw_bytes_per_s(size_bytes, time_s),
        "busbw_bytes_per_s": busbw_bytes_per_s(collective, num_ranks, size_bytes, time_s),
    }


def describe(result: dict[str, Any]) -> str:
    """What `summarise` gave, for people."""
    rows = [
        f"{result['collective']} {result['algorithm']}, {result['num_ranks']} ranks, "
        f"{format_size(result['size_bytes'])}",
        f"  transfers    {result['num_transfers']} in {result['num_steps']} steps",
        f"  time         {format_time(result['time_s'])}",
    ]
    if result["closed_form_s"] is not None:
        rows.append(f"  closed form  {format_time(result['closed_form_s'])}")
    for name in ("algbw", "busbw"):
        rate = result[f"{name}_bytes_per_s"]
        rows.append(f"  {name}        {'-' if rate is None else format_rate(rate)}")
    return "\n".join(rows)
