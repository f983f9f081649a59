"""`python -m tests.fuzz`: attack for a while, and report the faults."""

import random
import sys

import click

from ringsim.console.local_ranks import ended_once
from tests.fuzz.campaign import SHARES, Campaign, attacks


@click.command()
@click.option("--seconds", type=click.FloatRange(0), default=600.0, show_default=True, help="Duration of the fuzzing.")
@click.option("--seed", type=int, help="Seed of all cases [default: random, and printed].")
@click.option("--cases", type=click.IntRange(1), help="Number of cases of each attack after which to end.")
@click.option("--only", multiple=True, type=click.Choice(list(SHARES)), help="Attack to run alone; repeatable.")
def main(seconds: float, seed: int | None, cases: int | None, only: tuple[str, ...]) -> None:
    """Attack the project for a while with random cases; exit code 1 if a fault was found."""
    chosen = attacks(only or SHARES)
    seed = random.randrange(2**32) if seed is None else seed
    click.echo(f"seed {seed}, {seconds:g} s: {', '.join(attack.name for attack in chosen)}")
    campaign = Campaign(chosen, seed, click.echo)
    code = 0
    try:
        with ended_once():
            campaign.run(seconds, cases)
    except KeyboardInterrupt:
        click.echo("\nstopped")
        code = 130
    click.echo(f"\n{campaign.table()}\nseed {seed}")
    sys.exit(1 if campaign.faults else code)


if __name__ == "__main__":
    main()
