"""Options that commands of all three packages have."""

import click

json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="The result is one JSON object: in seconds, bytes and bytes per second.",
)
wide_option = click.option("--wide", is_flag=True, help="The table may be wider than 80 columns and says more.")
