"""`ringsim order`: a search for a better rank placement."""

import json
from pathlib import Path

import click

from ringsim.analysis import RankPlacement, default_budget, find_placement
from ringsim.cli.options import algorithm_options, json_option, network_options, size_option
from ringsim.console import OUTPUT, progress_bar
from ringsim.files import atomic_file
from ringsim.network import AnyNetwork
from ringsim.report import format_placement, placement_dict
from ringsim.schedule import Schedule


@click.command()
@algorithm_options
@network_options
@size_option
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the search.")
@click.option("--budget", type=click.IntRange(1), help="Placements to simulate at most.  [default: some seconds]")
@json_option
@click.option("-o", "--output", type=OUTPUT, help="Where to save the JSON object; --order reads it.")
def order(
    schedule: Schedule,
    network: AnyNetwork,
    size: int,
    output: Path | None,
    as_json: bool,
    seed: int,
    budget: int | None,
) -> None:
    """Find a rank placement that is fast on an uneven network, such as one with hosts or slow links."""
    placement = _find_with_bar(schedule, network, size, seed, budget or default_budget(schedule))
    report = placement_dict(schedule, network, size, placement, seed)
    if output:
        with atomic_file(output) as file:
            file.write(f"{json.dumps(report)}\n".encode())
    click.echo(json.dumps(report) if as_json else format_placement(report))


def _find_with_bar(schedule: Schedule, network: AnyNetwork, size: int, seed: int, budget: int) -> RankPlacement:
    """`find_placement` with a progress bar on stderr, where that is a terminal."""
    with progress_bar(budget, "simulating") as bar:
        return find_placement(schedule, network, size, seed=seed, budget=budget, on_progress=bar.update)
