"""Options that several commands share, and `together`, which combines options into one record."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click import option
from click.core import ParameterSource

from ringsim.calibration import fabric_warning, nic_warning, one_host_warning
from ringsim.console import PICTURE, RATE, TIME, Choice, IntRange, Name, Quantity, parse_numbers, say, say_wrote
from ringsim.files import values
from ringsim.libraries import LIBRARY, tables_of_library
from ringsim.network import Network, load_network, preset_names
from ringsim.registry import ALGORITHMS
from ringsim.schedule import Collective
from ringsim.units import parse_size, whole_number
from ringsim.workers import Workers

MAX_JOBS = 2**10
COLLECTIVES = sorted({collective for collective, _ in ALGORITHMS}, key=lambda collective: collective.value)

Command = Callable[..., None]
Decorator = Callable[[Command], Command]


def together(name: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Return the decorator that adds options, and passes the command `name` in place of their values.

    make: builds it from the options that its parameters name, also others.
    """
    wanted = tuple(inspect.signature(make).parameters)

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_object(**values: Any) -> None:
            taken = {parameter: values.pop(parameter) for parameter in wanted if parameter in values}
            command(**{name: make(**taken)}, **values)

        decorated: Command = with_object
        for add in reversed(options):
            decorated = add(decorated)
        return decorated

    return decorate


def is_given(name: str) -> bool:
    """Return whether the user has given this option."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def refuse_without(name: str, needed: object, needed_name: str) -> None:
    """Raise click.UsageError if `name` was given without the option whose value is `needed`."""
    if needed is None and is_given(name):
        raise click.UsageError(f"--{name} has no effect without --{needed_name}", click.get_current_context())


def refuse_together(first: str, *others: str) -> None:
    """Raise click.UsageError for another option given with `first`."""
    for name in filter(is_given, others):
        text = f"--{first} and --{name.replace('_', '-')} exclude each other"
        raise click.UsageError(text, click.get_current_context())


class _NumberOfRanks(IntRange):
    """A number of ranks; the error for several names the commands that accept them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and ("," in value or ":" in value):
            several = f"ringsim sweep --ranks {value}, ringsim ddp --scaling {value}"
            self.fail(f"{value!r} is more than one number of ranks, which other options accept: {several}", param, ctx)
        return super().convert(value, param, ctx)


def _parse_num_ranks(text: str) -> int:
    num_ranks = whole_number(text.strip())
    if num_ranks is None or not 2 <= num_ranks <= values.MAX_RANKS:
        raise ValueError(f"{text!r} is not a number of ranks: write a whole number from 2 to {values.MAX_RANKS}")
    return num_ranks


def _parse_one_size(text: str) -> int:
    if "," in text or ":" in text:
        raise ValueError(f"{text!r} is more than one size, which ringsim sweep takes: --sizes {text}")
    return parse_size(text)


def _parse_style(name: str) -> str:
    if name not in ("light", "dark"):
        from ringsim.report.plots.style import check_style  # noqa: PLC0415  takes most of a second to import

        check_style(name)
    return name


def known_algorithms(context: click.Context) -> list[str]:
    """Return the algorithms for shell completion."""
    chosen = context.params.get("collective")
    names = [name for collective, name in ALGORITHMS if chosen in (None, collective)]
    return list(dict.fromkeys([*names, LIBRARY]))


RANKS = _NumberOfRanks(1, values.MAX_RANKS)
NUMBERS_OF_RANKS = Quantity("ranks", lambda text: parse_numbers(text, _parse_num_ranks, factor=2))
ALL_REDUCE = Name("name", [name for collective, name in ALGORITHMS if collective is Collective.ALL_REDUCE])
NETWORK = Name("name", lambda _: preset_names())

size_option = option(
    "--size",
    type=Quantity("size", _parse_one_size),
    default="64MiB",
    help="Size of the whole tensor, such as 64KiB or 64MB.",
)
ranks_option = option("--ranks", type=RANKS, default=8, help="Number of ranks.")
trust_option = option(
    "--trust",
    "trusted",
    multiple=True,
    metavar="FILE.py:FUNCTION",
    help="Python file that results name as an algorithm, and that may be run; no other is.",
)


def collective_option(known: Iterable[Collective] = COLLECTIVES) -> Decorator:
    """Return the option --collective."""
    help_text = f"Collective that the algorithm performs, one of {', '.join(collective.value for collective in known)}."
    return option("--collective", type=Choice(known), metavar="NAME", default="all_reduce", help=help_text)


@dataclass(frozen=True, slots=True)
class PictureFile:
    """The file of a picture, if requested, and its style."""

    path: Path | None
    style: str | None = None

    def save(self, result: object) -> None:
        """Draw a result, if requested."""
        if self.path is not None:
            from ringsim.report.plots import save_plot  # noqa: PLC0415  takes most of a second to import

            save_plot(result, self.path, self.style)
            say_wrote(self.path)


style_option = option(
    "--style",
    type=Quantity("style", _parse_style),
    help="Style of the picture: light, dark, the name of a style of matplotlib, or a file of its settings.",
)


def picture_options(
    help_text: str, name: str = "--output", file: click.ParamType[Any] = PICTURE, kind: type[PictureFile] = PictureFile
) -> Decorator:
    """Return the option `name` (--output is also -o) and --style; the command gets `picture`."""

    def picture(path: Path | None, style: str | None) -> PictureFile:
        refuse_without("style", path, name.strip("-"))
        return kind(path, style)

    names = ("-o", name) if name == "--output" else (name,)
    return together("picture", picture, option(*names, "path", type=file, help=help_text), style_option)


def _workers(jobs: int, dask: str | None) -> Workers:
    if dask is not None and jobs > 1:
        raise click.UsageError("--jobs and --dask exclude each other", click.get_current_context())
    return Workers(jobs, dask)


workers_options = together(
    "workers",
    _workers,
    option(
        "--jobs",
        type=IntRange(1, MAX_JOBS),
        default=1,
        help="Number of processes on this machine that share the work, one per core.",
    ),
    option(
        "--dask",
        metavar="ADDRESS",
        help="Address of a Dask scheduler, such as tcp://10.0.0.1:8786, whose workers share the work.",
    ),
)


def _networks(
    names: tuple[str, ...], latency: float, bandwidth: float, reduce_bandwidth: float | None
) -> Mapping[str, Network]:
    if not names:
        return {"uniform": Network.uniform(latency, bandwidth, reduce_bandwidth or math.inf)}
    refuse_together("network", "latency", "bandwidth", "reduce_bandwidth")  # a file describes the whole network
    loaded = {name: load_network(name) for name in names}
    for network in loaded.values():
        say_contradiction(network)
        say_guesses(network, _most_ranks())
    return loaded


networks_options = together(
    "networks",
    _networks,
    option(
        "--network",
        "names",
        type=NETWORK,
        multiple=True,
        help="Network, one that ringsim networks lists, or FILE.toml. It excludes the next three options.",
    ),
    option("--latency", type=TIME, default="10us", help="Latency per message."),
    option(
        "--bandwidth",
        type=RATE,
        default="1.25GB/s",
        help="Bandwidth of a rank in each direction; 10Gbit/s is the same.",
    ),
    option("--reduce-bandwidth", type=RATE, help="Rate at which a rank adds; without it reducing takes no time."),
)


def _only(networks: Mapping[str, Network]) -> Network:
    if len(networks) > 1:
        raise click.UsageError("--network can be given only once", click.get_current_context())
    return next(iter(networks.values()))


def network_options(command: Command) -> Command:
    """Add the same options; the command gets one `network`."""
    return networks_options(together("network", _only)(command))


network_name_option = option(
    "--network",
    "name",
    type=NETWORK,
    required=True,
    help="Network, one that ringsim networks lists, or FILE.toml, which ringsim calibrate writes.",
)


def _most_ranks() -> int:
    params = click.get_current_context().params
    ranks, scaling = params.get("ranks") or 1, params.get("scaling") or []
    return int(max([*(ranks if isinstance(ranks, list) else [ranks]), *scaling]))


def say_left_out(network: Network) -> None:
    """Report parts of the network that a prediction leaves out."""
    if tables := tables_of_library(network):
        name = network.name if network.name in preset_names() else network.place
        say(
            f"{name}: this prediction does not include {tables}; ringsim simulate, explain, sweep, plot, animate, "
            f"ddp --backend {LIBRARY} and step --device cuda use them, and ringsim compare for logs"
        )


def say_guesses(network: Network, num_ranks: int) -> None:
    """Report ranks per host, or hosts, beyond the measured ones."""
    per_host = network.spec.ranks_per_host
    nics = nic_warning(network, per_host) if per_host and num_ranks > per_host else ""
    num_hosts = len(network.spec.placed_hosts) or -(-num_ranks // (per_host or num_ranks))
    for line in filter(None, [nics, one_host_warning(network, num_ranks), fabric_warning(network, [num_hosts])]):
        say(line)


def say_contradiction(network: Network) -> None:
    """Report that the network was calibrated from contradictory logs."""
    if "contradictory: " in network.source:
        say(
            f"{network.name} was calibrated from logs that contradict each other (`source` in its file): its "
            "predictions lie between the logs; calibrate the logs separately"
        )
