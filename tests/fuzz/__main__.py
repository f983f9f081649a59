"""`python -m tests.fuzz`: attack for a while, and say what was found."""

import random
import sys

import click

from ringsim.console.signals import ended_once
from tests.fuzz.attacks import Attack, attacks
from tests.fuzz.campaign import Campaign

MAX_SEED = 2**32


@click.command()
@click.option("--seconds", type=click.FloatRange(0), default=600.0, show_default=True, help="How long to attack.")
@click.option("--seed", type=int, help="What all cases are drawn from; random, and printed, if not given.")
@click.option("--cases", "max_cases", type=click.IntRange(1), help="End after so many cases of each attack.")
@click.option("--only", multiple=True, metavar="NAME", help="Run this attack and no others; can be repeated.")
@click.option("--case", "number", metavar="NAME:NUMBER", help="Run one case, as a report names it.")
def main(seconds: float, seed: int | None, max_cases: int | None, only: tuple[str, ...], number: str | None) -> None:
    """Attack the project for a while with random cases; exit code 1 if a fault was found."""
    try:
        chosen = [_named(number)] if number else attacks(only)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    seed = random.randrange(MAX_SEED) if seed is None else seed
    campaign = Campaign(chosen, seed, click.echo)
    code = 0
    try:
        with ended_once():
            if number:
                _run_one(campaign, chosen[0], int(number.partition(":")[2]))
            else:
                click.echo(f"seed {seed}, {seconds:g} s: {', '.join(attack.name for attack in chosen)}")
                campaign.run(seconds, max_cases)
    except KeyboardInterrupt:
        click.echo("\nstopped")
        code = 130
    click.echo(f"\n{campaign.table()}\nseed {seed}")
    sys.exit(1 if campaign.faults else code)


def _named(number: str) -> Attack:
    name, _, digits = number.partition(":")
    if not digits.isdecimal():
        raise ValueError(f"case {number!r}: must be NAME:NUMBER, as a report names it")
    return attacks((name,))[0]


def _run_one(campaign: Campaign, attack: Attack, number: int) -> None:
    click.echo(attack.draw(number).describe())
    try:
        campaign.run_case(attack, number)
    finally:
        attack.close()


if __name__ == "__main__":
    main()
