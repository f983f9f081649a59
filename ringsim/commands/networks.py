"""`ringsim networks`."""

import json

import click

from ringsim.cluster import load_network, preset_names
from ringsim.commands.options import RANKS, json_option
from ringsim.network_table import format_inside, format_summaries, inside, summary


@click.command()
@click.argument("network", required=False)
@click.option("--ranks", type=RANKS, help="Of NETWORK; otherwise 16, or as many as it has.")
@json_option
def networks(network: str | None, ranks: int | None, as_json: bool) -> None:
    """List the preset networks; or show what is shared in NETWORK, a preset or FILE.toml, and its paths."""
    if network is None:
        presets = [load_network(name) for name in preset_names()]
        click.echo(json.dumps([summary(preset) for preset in presets]) if as_json else format_summaries(presets))
        return
    cluster = load_network(network)
    found = inside(cluster, ranks or min(16, cluster.spec.max_ranks or 16))
    click.echo(json.dumps(found) if as_json else format_inside(found))
