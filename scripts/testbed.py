"""Several hosts on one machine: `testbed.py --hosts 4 --rate 1gbit -- scripts/train_ring.py` (docs/testbed.md)."""

from pathlib import Path

import click

from netns_testbed import Testbed, clean, network_text
from ringsim.console import INT, IntRange, OneLineCommand, ended_once
from ringsim.files import atomic_file
from ringsim.units import whole_number


def parse_host_rates(texts: tuple[str, ...]) -> dict[int, str]:
    """Parse 2=250mbit by host; the rates are checked on use."""
    rates: dict[int, str] = {}
    for text in texts:
        host, separator, rate = text.partition("=")
        if not separator or whole_number(host) is None:
            raise ValueError(f"--host-rate {text}: write it as HOST=RATE, such as 2=250mbit; hosts count from 0")
        if int(host) in rates:
            raise ValueError(f"--host-rate {text}: host {int(host)} has a rate already; give it one")
        rates[int(host)] = rate
    return rates


@click.command("testbed", cls=OneLineCommand, context_settings={"show_default": True})
@click.option("--hosts", type=INT, default=2, help="Number of hosts.")
@click.option("--rate", help="Rate of each host's link in each direction, such as 1gbit.  [default: not limited]")
@click.option(
    "--host-rate",
    "host_rates",
    multiple=True,
    metavar="HOST=RATE",
    help="Rate of the link of one host (from 0); repeatable.",
)
@click.option("--ranks-per-host", type=IntRange(min=1), default=1, help="Number of ranks on each host.")
@click.option(
    "--network",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the same network to FILE.toml, for ringsim.",
)
@click.option("--clean", "cleaning", is_flag=True, help="Only remove what killed testbeds have left behind.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def main(
    hosts: int,
    rate: str | None,
    host_rates: tuple[str, ...],
    ranks_per_host: int,
    network: Path | None,
    cleaning: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND, a script with its options as for torchrun, on several hosts made of network namespaces, as root."""
    if cleaning:
        click.echo("\n".join(f"removed {name}" for name in clean()) or "nothing left behind")
        return 0
    bed = Testbed(hosts, rate, parse_host_rates(host_rates))
    if network is not None:
        with atomic_file(network) as file:
            file.write(network_text(bed.plan, ranks_per_host).encode())
    if not command:
        if network is None:
            raise click.UsageError("no COMMAND: write it after --, such as -- scripts/train_ring.py --steps 5")
        return 0
    try:
        with ended_once(), bed:
            ending = bed.run(command, ranks_per_host)
    except KeyboardInterrupt as interrupt:
        return 128 + int(interrupt.args[0])  # as a shell says it
    if ending.failed_host is not None:  # said last: it is hard to see in what the ended ones print
        click.echo(f"testbed: host {ending.failed_host} failed first, exit code {ending.exit_code}", err=True)
    return ending.exit_code


if __name__ == "__main__":
    main(prog_name="testbed")  # in messages, as it is where they do not come from click
