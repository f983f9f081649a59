"""`ringsim networks`."""

import click
from click import argument, option

from ringsim import console
from ringsim.cli.options import NETWORK, RANKS
from ringsim.network import load_network, network_text, preset_names
from ringsim.report import format_network_details, format_networks, network_details, network_summary


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
