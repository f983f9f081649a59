"""`ringsim networks`."""

import click

from ringsim.cli.options import NETWORK, RANKS
from ringsim.console import examples, json_option, print_result, wide_option
from ringsim.network import load_network, preset_names
from ringsim.report import format_network_details, format_networks, network_details, network_summary


@click.command(epilog=examples("ringsim networks", "ringsim networks dgx-h100-cluster --ranks 32"))
@click.argument("network", type=NETWORK, required=False)
@click.option(
    "--ranks", type=RANKS, help="NETWORK has so many ranks; without it 16, or fewer if it has room for no more."
)
@wide_option
@json_option
def networks(network: str | None, ranks: int | None, wide: bool, as_json: bool) -> None:
    """Lists the preset networks, or shows what NETWORK shares, a preset or FILE.toml, and its paths."""
    if network is None:
        presets = [load_network(name) for name in preset_names()]
        summaries = {"networks": [network_summary(preset) for preset in presets]}
        print_result(format_networks(presets, wide), summaries, as_json)
        return
    cluster = load_network(network)
    details = network_details(cluster, ranks or min(16, cluster.spec.max_ranks or 16))
    print_result(format_network_details(details, wide), details, as_json)
