"""Options that several commands have: which schedule, which network, how many bytes."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from click import option
from click.core import ParameterSource

from ringsim.calibration import nic_warning, one_host_warning
from ringsim.console import RATE, TIME, Choice, IntRange, Name, Quantity
from ringsim.libraries import DIRECT, LIBRARIES, LIBRARY, MAX_TRANSFERS, Call, Plan, library_of
from ringsim.network import Network, Tuning, load_network, preset_names
from ringsim.registry import ALGORITHMS, build, names_file
from ringsim.report import parse_placement
from ringsim.schedule import Collective, Schedule, permute_ranks
from ringsim.simulation import RULE, Runtime
from ringsim.units import format_time, parse_size
from ringsim.workers import Workers

PLACEMENT = Quantity("order", parse_placement)  # the name in the messages of --order

MAX_JOBS = 2**10
MAX_RANKS = 2**17  # beyond that one collective would be simulated for many minutes
COLLECTIVES = sorted({collective.value for collective, _ in ALGORITHMS})

Command = Callable[..., None]


class _NumberOfRanks(IntRange):
    """One number of ranks; a list or a range is refused with the commands that accept one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and ("," in value or ":" in value):
            several = f"ringsim sweep --ranks {value}, ringsim ddp --scaling {value}"
            self.fail(f"{value!r} is more than one number of ranks, which other options accept: {several}", param, ctx)
        return super().convert(value, param, ctx)


RANKS = _NumberOfRanks(1, MAX_RANKS)


def is_given(name: str) -> bool:
    """Return whether the user has given this option to the command that runs."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def _parse_style(name: str) -> str:
    """The name or file of a style of pictures; raises ValueError for one that there is not."""
    if name not in ("light", "dark"):
        from ringsim.report.plots.style import check_style  # noqa: PLC0415  takes most of a second to import

        check_style(name)
    return name


def _parse_one_size(text: str) -> int:
    if "," in text or ":" in text:
        raise ValueError(f"{text!r} is more than one size, which ringsim sweep takes: --sizes {text}")
    return parse_size(text)


style_option = option(
    "--style",
    type=Quantity("style", _parse_style),
    help="Style of the picture: light, dark, the name of a style of matplotlib, or a file of its settings.",
)
size_option = option(
    "--size",
    type=Quantity("size", _parse_one_size),
    default="64MiB",
    help="Size of the whole tensor, such as 64KiB or 64MB.",
)
ranks_option = option("--ranks", type=RANKS, default=8, help="Number of ranks.")


def collective_option_of(names: Sequence[str]) -> Callable[[Command], Command]:
    """Return the option --collective of a command that takes these."""
    told = f"Collective that the algorithm performs, one of {', '.join(names)}."
    return option("--collective", type=Choice(names), metavar="NAME", default="all_reduce", help=told)


collective_option = collective_option_of(COLLECTIVES)


def known_algorithms(context: click.Context) -> list[str]:
    """Return the algorithms of --collective, as far as it is known; for completion by the shell."""
    chosen = context.params.get("collective")
    names = [name for collective, name in ALGORITHMS if chosen in (None, collective.value)]
    return list(dict.fromkeys([*names, LIBRARY]))


ALGORITHM = Name("name", known_algorithms)
ALL_REDUCE = Name("name", [name for collective, name in ALGORITHMS if collective is Collective.ALL_REDUCE])
NETWORK = Name("name", lambda _: preset_names())


trust_option = option(
    "--trust",
    "trusted",
    multiple=True,
    metavar="FILE.py:FUNCTION",
    help="Python file that results name as an algorithm, and that may be run; no other is.",
)


def workers_options(command: Command) -> Command:
    """Adds --jobs and --dask; the command gets `workers`."""

    @option(
        "--jobs",
        type=IntRange(1, MAX_JOBS),
        default=1,
        help="Number of processes on this machine that share the work, one per core.",
    )
    @option(
        "--dask",
        metavar="ADDRESS",
        help="Address of a Dask scheduler, such as tcp://10.0.0.1:8786, whose workers share the work.",
    )
    @wraps(command)
    def with_workers(*, jobs: int, dask: str | None, **rest: Any) -> None:
        if dask is not None and jobs > 1:
            raise click.UsageError("--jobs and --dask exclude each other", click.get_current_context())
        command(workers=Workers(jobs, dask), **rest)

    return with_workers


def algorithm_options(command: Command, library: bool = False) -> Command:
    """Adds the options of a schedule, with all ranks in their own places; the command gets it as `schedule`.

    If the command has --size, it is the schedule for that size. That of a file has the collective it is for, unless
    --collective asks for another. library: whether it may be what NCCL takes, which the command finds by
    `library_choice`; until then it is that of other networks.
    """

    @collective_option
    @option(
        "--algorithm",
        type=ALGORITHM,
        help="Algorithm that ringsim algorithms lists, perhaps in segments (ring/4) or for hosts of 4 ranks "
        "(hierarchical@4)"
        + (", nccl for NCCL's choice" if library else "")
        + ", FILE.py:FUNCTION, or MSCCL's FILE.xml [default: "
        + ("nccl if the network describes NCCL, else " if library else "")
        + "ring, or direct for all_to_all, gather and scatter].",
    )
    @ranks_option
    @wraps(command)
    def with_schedule(*, collective: str, algorithm: str | None, ranks: int, **rest: Any) -> None:
        asked = Collective(collective) if is_given("collective") or not names_file(algorithm or "") else None
        name = algorithm
        if name is None or (library and name == LIBRARY):
            name = "direct" if asked in DIRECT else "ring"
        command(schedule=build(asked, name, ranks, rest.get("size")), **rest)

    return with_schedule


def schedule_options(command: Command, library: bool = False) -> Command:
    """Adds the same and --order, a rank placement, in whose places the ranks of `schedule` then are."""

    @partial(algorithm_options, library=library)
    @option("--order", type=PLACEMENT, help="Rank order: 0,2,1,3, or a file that ringsim order wrote.")
    @wraps(command)
    def with_placement(*, schedule: Schedule, order: Sequence[int] | None, **rest: Any) -> None:
        command(schedule=schedule if order is None else permute_ranks(schedule, order), **rest)

    return with_placement


def library_choice(
    schedule: Schedule, network: Network, size: int, *, runtime: Runtime = RULE, is_named: bool = False
) -> Plan | None:
    """Return how the library of the network would send the schedule; its choice without --algorithm, or if that asks.

    is_named: whether the schedule is meant, although there is no --algorithm. None for a single rank, which sends
    nothing, and for a network that says nothing of a library.

    Raises ValueError where the library's choice is not known, and for a network on which messages take no time.
    """
    num_ranks, algorithm = schedule.num_ranks, click.get_current_context().params["algorithm"]
    network.require_priced(num_ranks)
    library = LIBRARIES[LIBRARY] if algorithm == LIBRARY else library_of(network)
    if algorithm != LIBRARY and (is_named or algorithm or num_ranks == 1 or not library.chooses):
        return None if num_ranks == 1 else library.fastest_plan(schedule, network, size, runtime=runtime)
    chosen = library.choose(network, Call.on(network, schedule.collective, num_ranks, size), runtime=runtime)
    chosen = replace(chosen, schedule=in_given_places(chosen.schedule))
    chosen.require_known(MAX_TRANSFERS, runtime)
    if algorithm is None:
        click.echo(
            f"{network.name}: {library.title} would use {chosen.schedule.algorithm}; --algorithm names another",
            err=True,
        )
    return chosen


def in_given_places(schedule: Schedule) -> Schedule:
    """Return the schedule with its ranks in the places of --order, if that was given to the command that runs."""
    order = click.get_current_context().params.get("order")
    return schedule if order is None else permute_ranks(schedule, order)


def drawn_as_library(
    schedule: Schedule, network: Network, size: int, *, is_named: bool = False
) -> tuple[Schedule, Network]:
    """Return what a picture is to show: the schedule, and the network over the protocol of its library, if it has one.

    A line on stderr says which, and that its start is left out. is_named: as of `library_choice`.
    """
    choice = library_choice(schedule, network, size, is_named=is_named)
    if choice is None:
        return schedule, network
    if why := choice.why_by_formula(RULE):
        raise ValueError(f"there is no picture of {choice.schedule}: {why}; give fewer ranks")
    start = format_time(choice.start_s)
    click.echo(f"over NCCL's protocol {choice.protocol.name}, without the {start} before its first message", err=True)
    return choice.schedule, choice.network


def load_simulated(name: str) -> Network:
    """Return the network, and says on stderr which parts of its file no simulation goes by."""
    cluster = load_network(name)
    say_left_out(name, cluster)
    return cluster


def say_left_out(name: str, network: Network) -> None:
    """Says on stderr which parts of a network's file a simulation does not go by; nothing if it goes by all."""
    if network.spec.protocols or network.spec.library != Tuning():
        click.echo(
            f"{name}: this prediction does not include NCCL's protocols and trees ([[protocol]] and [library] in the "
            "file); ringsim simulate, explain, sweep, plot, animate, ddp --backend nccl and step --device cuda use "
            "them, and ringsim compare for logs",
            err=True,
        )


def _most_ranks() -> int:
    """Return the largest number of ranks that the options of the running command have; 1 if they have none."""
    params = click.get_current_context().params
    ranks, scaling = params.get("ranks") or 1, params.get("scaling") or []
    return int(max([*(ranks if isinstance(ranks, list) else [ranks]), *scaling]))


def say_guesses(network: Network, num_ranks: int) -> None:
    """Say on stderr if more ranks are on a host, or send from it, than the network was measured on."""
    per_host = network.spec.ranks_per_host
    nics = nic_warning(network, per_host) if per_host and num_ranks > per_host else ""
    for line in filter(None, [nics, one_host_warning(network, num_ranks)]):
        click.echo(line, err=True)


def say_contradiction(network: Network) -> None:
    """Say on stderr if the network was calibrated from logs that contradict each other, as its source tells."""
    if "contradictory: " in network.source:
        click.echo(
            f"{network.name} was calibrated from logs that contradict each other (`source` in its file): its "
            "predictions lie between the logs; calibrate the logs separately",
            err=True,
        )


def networks_options(command: Command, load: Callable[[str], Network] = load_simulated) -> Command:
    """Adds the options of networks; the command gets `networks`, from their names as the user gave them.

    Without --network there is one, "uniform", on which all ranks are alike.
    """

    @option(
        "--network",
        "names",
        type=NETWORK,
        multiple=True,
        help="Network, one that ringsim networks lists, or FILE.toml. It excludes the next three options.",
    )
    @option("--latency", type=TIME, default="10us", help="Latency per message.")
    @option(
        "--bandwidth",
        type=RATE,
        default="1.25GB/s",
        help="Bandwidth of a rank in each direction; 10Gbit/s is the same.",
    )
    @option("--reduce-bandwidth", type=RATE, help=("Rate at which a rank adds; without it reducing takes no time."))
    @wraps(command)
    def with_networks(
        *, names: tuple[str, ...], latency: float, bandwidth: float, reduce_bandwidth: float | None, **rest: Any
    ) -> None:
        if names:
            refuse_together("network", "latency", "bandwidth", "reduce_bandwidth")  # a file says all of the network
            loaded = {name: load(name) for name in names}
            for network in loaded.values():
                say_contradiction(network)
                say_guesses(network, _most_ranks())
            networks: dict[str, Network] = {**loaded}
        else:
            rates = bandwidth, reduce_bandwidth or math.inf
            networks = {"uniform": Network.uniform(latency, *rates)}
        command(networks=networks, **rest)

    return with_networks


network_name_option = option(
    "--network",
    "name",
    type=NETWORK,
    required=True,
    help="Network, one that ringsim networks lists, or FILE.toml, which ringsim calibrate writes.",
)


def network_options(command: Command, load: Callable[[str], Network] = load_simulated) -> Command:
    """Adds the options of exactly one network; the command gets it as `network`."""

    @partial(networks_options, load=load)
    @wraps(command)
    def with_network(*, networks: dict[str, Network], **rest: Any) -> None:
        if len(networks) > 1:
            raise click.UsageError("--network can be given only once", click.get_current_context())
        (network,) = networks.values()
        command(network=network, **rest)

    return with_network


def refuse_without(name: str, needed: object, needed_name: str) -> None:
    """Raise click.UsageError if option `name` was given without the one that it needs, whose value is `needed`."""
    if needed is None and is_given(name):
        raise click.UsageError(f"--{name} has no effect without --{needed_name}", click.get_current_context())


def refuse_together(first: str, *others: str) -> None:
    """Raise click.UsageError for the first other option that was given. `first` was given, and replaces them all."""
    for name in filter(is_given, others):
        text = f"--{first} and --{name.replace('_', '-')} exclude each other"
        raise click.UsageError(text, click.get_current_context())


def default_path(schedule: Schedule, names: str, suffix: str) -> Path:
    """Return the path of a run's file for a command without --output. names: of algorithms. suffix: such as .html."""
    name = f"ringsim-{schedule.collective.value}-{names}-{schedule.num_ranks}"
    return Path(re.sub(r"[^\w.-]+", "-", name) + suffix)
