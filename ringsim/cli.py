"""The command line: parse, call one function, print. Heavy imports wait until a command needs them."""

import json
import math
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ringsim import __version__
from ringsim.algorithms import ALGORITHMS, build
from ringsim.closed_form import closed_form_of
from ringsim.collective import Collective
from ringsim.cost_table import cost_of, format_costs
from ringsim.network import Network
from ringsim.one_line import OneLineGroup
from ringsim.rates import algbw_bytes_per_s, busbw_bytes_per_s
from ringsim.schedule import Schedule
from ringsim.simulate import predict_time
from ringsim.units import format_rate, format_size, format_time, parse_rate, parse_size, parse_time
from ringsim.verify import verify


class Quantity(click.ParamType[float]):
    """An option whose text is read by one of the parsers of `units`."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]  # a default that is a number already
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE = Quantity("size", parse_size)
RATE = Quantity("rate", parse_rate)
TIME = Quantity("time", parse_time)

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
    """Options that say which network and how many bytes; the command gets `network` and `size`."""

    @click.option("--size", type=SIZE, default="64MiB", show_default=True, help="Of the tensor: 1500, 64KiB, 64MB.")
    @click.option("--latency", type=TIME, default="10us", show_default=True, help="Of one message.")
    @click.option("--bandwidth", type=RATE, default="1.25GB/s", show_default=True, help="Of a link; also 10Gbit/s.")
    @click.option("--reduce-bandwidth", type=RATE, help="At which a rank adds; without it reducing is free.")
    @wraps(command)
    def with_network(*, latency: float, bandwidth: float, reduce_bandwidth: float | None, **rest: Any) -> None:
        command(network=Network(latency, bandwidth, reduce_bandwidth or math.inf), **rest)

    return with_network


@click.group(name="ringsim", cls=OneLineGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ringsim")
def main() -> None:
    """Collective communication, proved and predicted from one description of each algorithm."""


@main.command()
@schedule_options
@network_options
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
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="PNG, PDF or SVG, by its suffix.")
def plot(schedule: Schedule, network: Network, size: int, output: Path | None) -> None:
    """Draw the lanes of all ranks, the chunk grid, and time against size."""
    from ringsim.overview import make_overview  # noqa: PLC0415
    from ringsim.plots.overview_figure import save_overview  # noqa: PLC0415  takes most of a second to import

    name = f"ringsim-{schedule.collective.value}-{schedule.algorithm}-{schedule.num_ranks}.png"
    path = output or Path(name)
    save_overview(make_overview(schedule, network, size), path)
    click.echo(path)


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
        "closed_form_s": closed_form_of(schedule, network, size_bytes),
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
