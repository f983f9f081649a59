"""`python -m tests.fuzz`: attack for a while, and say what was found."""

import random
import sys
from pathlib import Path

import click

from ringsim.console.local_ranks import ended_once
from tests.fuzz.attacks import attacks
from tests.fuzz.campaign import Campaign

MAX_SEED = 2**32
DATABASE = Path(__file__).parents[2] / ".hypothesis" / "fuzz"


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(0), default=600.0, show_default=True, help=("Duration of the fuzzing.")
)
@click.option("--seed", type=int, help="Seed of all cases [default: random, and printed].")
@click.option(
    "--cases", "max_cases", type=click.IntRange(1), help=("Number of cases of each attack after which to end.")
)
@click.option("--only", multiple=True, metavar="NAME", help="Attack to run, and no others; repeatable.")
def main(seconds: float, seed: int | None, max_cases: int | None, only: tuple[str, ...]) -> None:
    """Attack the project for a while with random cases; exit code 1 if a fault was found."""
    try:
        chosen = attacks(only)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    seed = random.randrange(MAX_SEED) if seed is None else seed
    click.echo(f"seed {seed}, {seconds:g} s: {', '.join(attack.name for attack in chosen)}")
    campaign = Campaign(chosen, seed, click.echo, DATABASE)
    code = 0
    try:
        with ended_once():
            campaign.run(seconds, max_cases)
    except KeyboardInterrupt:
        click.echo("\nstopped")
        code = 130
    click.echo(f"\n{campaign.table()}\nseed {seed}")
    sys.exit(1 if campaign.faults else code)


if __name__ == "__main__":
    main()
