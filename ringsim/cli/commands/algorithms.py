"""`ringsim algorithms` and `ringsim verify`: what there is, and whether it is right."""

from functools import partial

import click

from ringsim.analysis import cost_of, format_costs
from ringsim.cli.options import COLLECTIVES, RANKS, schedule_options
from ringsim.registry import ALGORITHMS, build
from ringsim.schedule import Schedule, require_few_transfers
from ringsim.schedule import verify as prove


@click.command()
@click.option("--collective", type=click.Choice(COLLECTIVES), help="Only this one's.")
@click.option("--ranks", type=RANKS, default=8, show_default=True)
def algorithms(collective: str | None, ranks: int) -> None:
    """List the algorithms with their steps, transfers and bytes, beside what no algorithm can undercut."""
    costs, skipped = [], []
    for key in (key for key in ALGORITHMS if collective in (None, key[0].value)):
        make = partial(build, *key)
        try:
            require_few_transfers(make, ranks)
            costs.append(cost_of(make(ranks)))
        except ValueError as error:
            skipped.append(f"{key[0].value} {key[1]} skipped: {error}")
    click.echo("\n".join([format_costs(costs), *skipped]))


@click.command()
@schedule_options
def verify(schedule: Schedule) -> None:
    """Prove that an algorithm gives every rank what it must have, each contribution counted once."""
    proof = prove(schedule)
    click.echo(f"{schedule}: correct ({proof.num_steps} steps, {proof.num_transfers} transfers)")
