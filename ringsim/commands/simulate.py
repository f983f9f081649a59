"""`ringsim simulate`."""

import json

import click

from ringsim.commands.options import json_option, network_options, schedule_options, size_option
from ringsim.machine import AnyNetwork
from ringsim.schedule import Schedule
from ringsim.summary import describe, summarise


@click.command()
@schedule_options
@network_options
@size_option
@json_option
def simulate(schedule: Schedule, network: AnyNetwork, size: int, as_json: bool) -> None:
    """How long a collective takes, and why."""
    result = summarise(schedule, network, size)
    click.echo(json.dumps(result) if as_json else describe(result))
