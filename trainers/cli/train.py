"""`trainers train`: the options, and all checks of them that need no torch; then the ranks are started."""

import os
from pathlib import Path
from typing import Any

import click

from ringsim.console import FILE, check_writable
from trainers.checkpoints.folder import CheckpointFolder
from trainers.cli.options import MAX_RANKS, batch_size_option, seed_option, task_option, timeout_option
from trainers.cli.task_options import read_settings, read_unknown
from trainers.launch.environment import read_environment
from trainers.launch.spawn import spawn
from trainers.loop.config import ON_NAN, TrainConfig
from trainers.loop.rank import Launch, run_rank
from trainers.strategy_names import STRATEGY_NAMES
from trainers.tasks import load_task


@click.command(context_settings={"show_default": True, "ignore_unknown_options": True, "allow_extra_args": True})
@task_option("lm")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="An option of the task; --NAME VALUE is the same."
)
@click.option(
    "--strategy", default="bucketed", help=f"{', '.join(STRATEGY_NAMES)}; with buckets of 4 MiB: bucketed/4, ddp/4."
)
@click.option(
    "--ranks", type=click.IntRange(1, MAX_RANKS), help="To start here.  [default: those of torchrun or srun, else one]"
)
@click.option("--epochs", type=int, help="How often each sample is seen.  [default: the task's]")
@click.option("--steps", type=int, help="End after so many, if not before.")
@batch_size_option()
@click.option("--accumulate", type=int, default=1, help="Compute each rank's share in so many parts.")
@click.option("--clip-norm", type=float, help="The largest global norm of the gradients.  [default: any]")
@seed_option
@click.option("--broadcast", is_flag=True, help="Begin with rank 0's weights, instead of checking that all are alike.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="[default: runs/TASK]")
@click.option("--save-every", type=int, default=100, help="Steps between checkpoints; there is one at the end too.")
@click.option("--keep", type=int, default=2, help="How many checkpoints.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint in --output, if there is one.")
@click.option("--log-every", type=int, default=10, help="Steps between lines of log.jsonl.")
@click.option("--check-every", type=int, help="Steps between checks for drift; 0: never.  [default: 100; none: never]")
@click.option("--on-nan", default="stop", help=f"When a loss is not finite: {', '.join(ON_NAN)} (the step).")
@click.option("--profile", type=FILE, help="Write a time line of a few steps there, for ui.perfetto.dev.")
@timeout_option
def train(
    task: str,
    settings: tuple[str, ...],
    ranks: int | None,
    output: Path | None,
    timeout_s: float,
    **rest: Any,
) -> int:
    """Train a task with a strategy, and keep checkpoints from which --resume goes on.

    trainers --task lm --strategy bucketed --ranks 4; or under torchrun or srun without --ranks. Other options are those
    of the task, such as --learning-rate, and for lm --data, --d-model, --heads, --layers.
    """
    options = read_settings(task, [*settings, *read_unknown(click.get_current_context().args)])
    config = TrainConfig(output=output or Path("runs", task.replace(":", ".")), **rest)
    environment = read_environment(os.environ)
    num_ranks = ranks or environment.num_ranks
    loaded = load_task(task, config.seed, **options)
    config.batches(loaded, 0, num_ranks)
    if environment.rank == 0:
        _check_output(config)
    if config.profile is not None:
        os.environ.setdefault(
            "KINETO_LOG_LEVEL", "99"
        )  # else torch's profiler talks on stderr; read when torch is loaded
    launch = Launch(task, options, config, timeout_s)
    return run_rank(launch, loaded) if ranks is None else spawn(ranks, run_rank, (launch,))


def _check_output(config: TrainConfig) -> None:
    """Find out before the work what is in the way of its results. Raises UsageError."""
    check_writable(f"--output {config.output}", config.output)
    if config.profile is not None:
        check_writable(f"--profile {config.profile}", config.profile.parent)
    if not config.resume and (checkpoints := CheckpointFolder(config.output).newest_first()):
        raise click.UsageError(
            f"--output {config.output}: there is {checkpoints[0].name} of a run already: "
            f"--resume goes on with it; or give another --output"
        )
