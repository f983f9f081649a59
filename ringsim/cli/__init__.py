"""The command line. A command imports its dependencies other than NumPy when it is called."""

import click

from ringsim import __version__
from ringsim.cli.commands.algorithms import algorithms, networks
from ringsim.cli.commands.compare import compare, report
from ringsim.cli.commands.ddp import ddp
from ringsim.cli.commands.draw import animate, plot
from ringsim.cli.commands.formats import export, import_, verify
from ringsim.cli.commands.measure import calibrate, doctor, measure
from ringsim.cli.commands.search import order, synthesize
from ringsim.cli.commands.simulate import explain, simulate
from ringsim.cli.commands.step import step
from ringsim.cli.commands.sweep import sweep
from ringsim.cli.commands.trace import trace
from ringsim.console import OneLineGroup, examples, general_help

RULE = '"-" is stdout for files of\ntext, except in trace and step.'


@click.group(
    name="ringsim",
    cls=OneLineGroup,
    epilog=f"{examples('ringsim simulate --algorithm ring --ranks 8 --size 64MiB')}\n\n{general_help('ringsim', RULE)}",
)
@click.version_option(__version__, prog_name="ringsim")
def main() -> None:
    """Collective communication, proved and predicted from one description of each algorithm."""


# Commands by the source of their output: simulations, descriptions of algorithms and networks, measurements.
PREDICTED = (simulate, explain, animate, plot, sweep, ddp, trace, step, order, synthesize)
DESCRIBED = (algorithms, verify, networks, export, import_)
MEASURED = (measure, calibrate, compare, report, doctor)
for command in (*PREDICTED, *DESCRIBED, *MEASURED):
    main.add_command(command)
