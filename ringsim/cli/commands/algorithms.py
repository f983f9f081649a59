"""`ringsim algorithms` and `ringsim networks`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import click
from click import argument, option

from ringsim import console
from ringsim.analysis import Cost, NetworkBound, bound_of, cost_of
from ringsim.cli.options import COLLECTIVES, NETWORK, RANKS, ranks_option, refuse_without, size_option
from ringsim.files import finite_or_none
from ringsim.limits import CHOSEN_TRANSFERS, require_few_transfers
from ringsim.network import Network, load_network, network_text, preset_names
from ringsim.registry import ALGORITHMS, build, summary_of
from ringsim.report import bound_reason, format_network_details, format_networks, network_details, network_summary
from ringsim.schedule import Collective, Schedule
from ringsim.simulation import lists_more_than, predict_time
from ringsim.text_table import align_columns, wrap_text
from ringsim.units import format_size, format_time, plural


@console.command(
    "ringsim algorithms --collective all_gather --ranks 16", "ringsim algorithms --network gbe-racks --ranks 80"
)
@option(
    "--collective",
    type=console.Choice(COLLECTIVES),
    metavar="NAME",
    help=f"List only the algorithms of this collective, one of {', '.join(known.value for known in COLLECTIVES)}.",
)
@ranks_option
@option(
    "--network",
    "name",
    type=NETWORK,
    help="Also list the time of each algorithm on this network, one that ringsim networks lists or "
    "FILE.toml, and the least time that the network allows.",
)
@size_option
@console.json_option
def algorithms(collective: Collective | None, ranks: int, name: str | None, size: int, as_json: bool) -> None:
    """List the algorithms of each collective with their steps, transfers and bytes, and what each of them does.

    sent/size: what the rank that sends most sends, as a multiple of the size of the whole tensor. The lines above
    the algorithms of a collective give lower bounds: of sent/size, of the steps, and with --network of the time.
    """
    refuse_without("size", name, "network")
    network = load_network(name) if name else None
    if network:
        network.topology(ranks)  # whether there is room for so many
    listed: list[_Listed] = []
    skipped: list[dict[str, str]] = []
    keys = [key for key in ALGORITHMS if collective in (None, key[0])]
    with console.progress_bar(len(keys), "counting", delay_s=1.0) as progress:
        for owner, algorithm in keys:
            make = partial(build, owner, algorithm, size_bytes=size) if network else partial(build, owner, algorithm)
            try:
                require_few_transfers(make, ranks)
                cost = cost_of(make(ranks))
                listed.append(_Listed(cost, summary_of(owner, algorithm), _time_s(cost.schedule, network, size)))
            except ValueError as error:
                skipped.append({"collective": owner.value, "algorithm": algorithm, "reason": str(error)})
            progress.update(1)
    owners = dict.fromkeys(one.cost.schedule.collective for one in listed) if network else ()
    bounds = {owner: bound_of(owner, network, ranks, size) for owner in owners} if network else {}
    dicts = [
        one.cost.as_dict() | {"summary": one.summary} | ({"time_s": finite_or_none(one.time_s)} if network else {})
        for one in listed
    ]
    notes = [wrap_text("{collective} {algorithm} skipped: {reason}".format(**one), indent="  ") for one in skipped]
    result = {"num_ranks": ranks, "algorithms": dicts, "skipped": skipped}
    if network:
        known = {owner.value: bound.as_dict() if bound else None for owner, bound in bounds.items()}
        result |= {"network": network.as_dict(), "size_bytes": size, "bounds": known}
    lines = _lines(listed, bounds, size, ["time"] if network else [])
    console.print_result("\n".join([*lines, *notes]), result, as_json)


class _Listed(NamedTuple):
    cost: Cost
    summary: str
    time_s: float | None


def _time_s(schedule: Schedule, network: Network | None, size_bytes: int) -> float | None:
    if network is None or lists_more_than(CHOSEN_TRANSFERS, schedule, network, size_bytes):
        return None
    return predict_time(schedule, network, size_bytes)


def _lines(
    listed: Sequence[_Listed], bounds: Mapping[Collective, NetworkBound | None], size_bytes: int, times: Sequence[str]
) -> Iterator[str]:
    rows = [(*_row(one.cost), *([_time_cell(one.time_s)] if times else [])) for one in listed]
    header, *lines = align_columns([(*_HEADER, *times), *rows], "lr")
    collective = None
    for (cost, summary, _), line in zip(listed, lines, strict=True):
        if cost.schedule.collective is not collective:
            yield from ([""] if collective else [])
            collective = cost.schedule.collective
            yield wrap_text(
                f"{collective.value} on {plural(cost.schedule.num_ranks, 'rank')}: some rank must send at least "
                f"{cost.sent_bound:.4g} times the size; if a rank sends to one other in a step, there must be at least "
                f"{plural(cost.steps_bound, 'step')}"
            )
            if bound := bounds.get(collective):
                least = f"{format_time(bound.time_s)} for {format_size(size_bytes)}"
                yield wrap_text(f"no algorithm takes less than {least} here: {bound_reason(bound)}")
            yield header
        yield line
        yield wrap_text(f"  {summary}", indent="  ")


_HEADER = ("algorithm", "chunks", "steps", "transfers", "sent/size")


def _time_cell(time_s: float | None) -> str:
    return "-" if time_s is None else format_time(time_s) if math.isfinite(time_s) else "never"


def _row(cost: Cost) -> tuple[str, ...]:
    schedule = cost.schedule
    sent = f"{cost.sent:.3f}" if cost.sent < 100 else f"{cost.sent:.6g}"
    counts = (schedule.num_chunks, schedule.num_steps, cost.num_transfers)
    return schedule.algorithm, *(str(count) for count in counts), sent


@console.command("ringsim networks", "ringsim networks dgx-h100-cluster --ranks 32", "ringsim networks gbe --toml")
@argument("network", type=NETWORK, required=False)
@option("--ranks", type=RANKS, help="Number of ranks of NETWORK [default: 16, or fewer if it has room for no more].")
@option("--toml", "as_toml", is_flag=True, help=("Print the description of NETWORK as a network file, to be changed."))
@console.wide_option
@console.json_option
def networks(network: str | None, ranks: int | None, as_toml: bool, wide: bool, as_json: bool) -> None:
    """List the preset networks, or show the shared resources and the paths of NETWORK, a preset or FILE.toml."""
    if as_toml:
        if network is None or as_json:
            raise click.UsageError("--toml: name one network, and leave out --json")
        click.echo(network_text(load_network(network)), nl=False)
        return
    if network is None:
        presets = [load_network(name) for name in preset_names()]
        summaries = {"networks": [network_summary(preset) for preset in presets]}
        console.print_result(format_networks(presets, wide), summaries, as_json)
        return
    cluster = load_network(network)
    details = network_details(cluster, ranks or min(16, cluster.spec.max_ranks or 16))
    console.print_result(format_network_details(details, wide), details, as_json)
