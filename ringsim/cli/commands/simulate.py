"""`ringsim simulate`."""

import json
from pathlib import Path

import click

from ringsim.analysis import explain, why_not_explained
from ringsim.cli.options import json_option, network_options, schedule_options, size_option
from ringsim.console import OUTPUT
from ringsim.network import AnyNetwork
from ringsim.report import describe, ranks_as_dicts, ranks_table, summarise, write_trace
from ringsim.schedule import Schedule


@click.command()
@schedule_options
@network_options
@size_option
@click.option("--per-rank", is_flag=True, help="Also what each rank did with its time.")
@click.option("--trace", type=OUTPUT, help="Where to write all transfers, for ui.perfetto.dev.")
@json_option
def simulate(
    schedule: Schedule, network: AnyNetwork, size: int, per_rank: bool, trace: Path | None, as_json: bool
) -> None:
    """How long a collective takes, and why."""
    too_large = why_not_explained(schedule)
    if too_large and (per_rank or trace):
        raise ValueError(f"{'--trace' if trace else '--per-rank'}: {too_large}")
    explanation = None if too_large else explain(schedule, network, size)
    result = summarise(schedule, network, size, explanation) | {"not_explained": too_large}
    if explanation and trace:
        write_trace(trace, [("simulated", explanation.timeline)], [explanation.stall])
    if as_json:
        ranks = {"ranks": ranks_as_dicts(explanation)} if explanation and per_rank else {}
        click.echo(json.dumps(result | ranks, allow_nan=False))
        return
    click.echo(describe(result, explanation))
    if too_large:
        click.echo(f"  not explained: {too_large}")
    if explanation and per_rank:
        click.echo("\n" + ranks_table(explanation))
