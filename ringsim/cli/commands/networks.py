"""`ringsim networks`."""

import json

import click

from ringsim.cli.options import RANKS, json_option
from ringsim.network import load_network, preset_names
from ringsim.report import format_network_details, format_networks, network_details, network_summary


@click.command()
@click.argument("network", required=False)
@click.option("--ranks", type=RANKS, help="Of NETWORK; otherwise 16, or as many as it has.")
@json_option
def networks(network: str | None, ranks: int | None, as_json: bool) -> None:
    """List the preset networks; or show what is shared in NETWORK, a preset or FILE.toml, and its paths."""
    if network is None:
        presets = [load_network(name) for name in preset_names()]
        click.echo(json.dumps([network_summary(preset) for preset in presets]) if as_json else format_networks(presets))
        return
    cluster = load_network(network)
    details = network_details(cluster, ranks or min(16, cluster.spec.max_ranks or 16))
    click.echo(json.dumps(details) if as_json else format_network_details(details))
