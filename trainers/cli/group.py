"""The command line `trainers`, or `python -m trainers`. Loading it loads no torch."""

import click

from ringsim import __version__
from ringsim.console import OneLineGroup, TorchrunCommand
from trainers.cli.compare import compare_command
from trainers.cli.train import train

DEFAULT = "train"


class TrainersGroup(TorchrunCommand, OneLineGroup):
    """Commands of which `train` need not be named: options alone are its options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for option in self.get_params(ctx) for name in option.opts}
        if not args or (args[0].startswith("-") and args[0] not in own):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


@click.group(name="trainers", cls=TrainersGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trainers")
def main() -> None:
    """Train on several ranks, with gradients synchronised as you like.

    Without the name of a command it is train: trainers --task lm --ranks 4; see trainers train --help.
    """


main.add_command(train)
main.add_command(compare_command)
