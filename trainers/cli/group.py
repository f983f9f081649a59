"""The command line `trainers`, or `python -m trainers`. Loading it loads no torch."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ringsim import __version__
from ringsim.console import OneLineGroup, examples, general_help, is_under_torchrun
from trainers.cli.compare import main as compare
from trainers.cli.evaluate import evaluate_command, sample_command
from trainers.cli.options import RESUME_COMMAND, TrainersCommand
from trainers.cli.train import train
from trainers.launch.environment import in_slurm_step

DEFAULT = "train"
FORMER_NAMES = {"ring": "compare", "compare-strategies": "compare"}
RULE = """A directory that holds the
checkpoints of a run is not written to again without --resume."""


class TrainersGroup(TrainersCommand, OneLineGroup):
    """The commands; `train` is the default."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[RESUME_COMMAND] = resume_command(args)
        own = {name for option in self.get_params(ctx) for name in option.opts}
        if args and args[0].startswith("-") and args[0] not in own:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, FORMER_NAMES.get(cmd_name, cmd_name))


def resume_command(arguments: Sequence[str]) -> str:
    """Return the command that resumes a run with these arguments, started the same way."""
    left = list(arguments)
    while "--resume" in left:
        place = left.index("--resume")
        del left[place : place + (2 if left[place + 1 : place + 2] == ["auto"] else 1)]
    left = [argument for argument in left if not argument.startswith("--resume=")]
    return shlex.join([*_program(), *left, "--resume"])


def _program() -> list[str]:
    if is_under_torchrun():
        hosts = os.environ.get("GROUP_WORLD_SIZE", "1")
        several = ["--nnodes", hosts] if hosts != "1" else []
        return ["torchrun", *several, "--nproc-per-node", os.environ.get("LOCAL_WORLD_SIZE", "1"), "-m", "trainers"]
    program = ["python", "-m", "trainers"] if Path(sys.argv[0]).name == "__main__.py" else ["trainers"]
    return ["srun", *program] if in_slurm_step(os.environ) else program


@click.group(
    name="trainers",
    cls=TrainersGroup,
    epilog=f"{examples('trainers --task mlp --strategy ring --ranks 2')}\n\n{general_help('trainers', RULE)}",
)
@click.version_option(__version__, prog_name="trainers")
def main() -> None:
    """Train on several ranks, with a choice of gradient synchronisation.

    Options without the name of a command are those of train: trainers --task lm --ranks 4; see trainers train --help.
    """


main.add_command(train)
main.add_command(evaluate_command)
main.add_command(sample_command)
main.add_command(compare, "compare")
