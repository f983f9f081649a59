"""The command line. What a command needs besides NumPy is imported when it is called."""

import click

from ringsim import __version__
from ringsim.commands.algorithms import algorithms, verify
from ringsim.commands.calibrate import calibrate
from ringsim.commands.compare import compare
from ringsim.commands.ddp import ddp
from ringsim.commands.formats import export, import_
from ringsim.commands.measure import measure
from ringsim.commands.networks import networks
from ringsim.commands.order import order
from ringsim.commands.plot import plot
from ringsim.commands.simulate import simulate
from ringsim.commands.sweep import sweep
from ringsim.one_line import OneLineGroup


@click.group(name="ringsim", cls=OneLineGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ringsim")
def main() -> None:
    """Collective communication, proved and predicted from one description of each algorithm."""


MEASURED = (measure, calibrate, compare)
for command in (simulate, plot, sweep, ddp, order, algorithms, verify, networks, export, import_, *MEASURED):
    main.add_command(command)
