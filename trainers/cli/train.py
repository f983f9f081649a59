"""`trainers train`: the options, and all checks of them that need no torch; then the ranks are started."""

import math
import os
from pathlib import Path
from typing import Any

import click

from ringsim.console import FILE, check_writable
from trainers.cli.task_options import read_settings, read_unknown
from trainers.launch.spawn import spawn
from trainers.launch.where import place
from trainers.loop.batches import Batches
from trainers.loop.checkpoint_folder import CheckpointFolder
from trainers.loop.rank import Launch, run_rank
from trainers.loop.session_config import ON_NAN, SessionConfig
from trainers.strategy_names import STRATEGY_NAMES
from trainers.tasks import TASK_NAMES, load_task

MAX_RANKS = 1024
MAX_TIMEOUT_S = 86400


def _seconds(_: click.Context, option: click.Parameter, value: float) -> float:
    if not 0 < value <= MAX_TIMEOUT_S or math.isnan(value):
        raise click.BadParameter(f"{value}: must be greater than 0 and at most {MAX_TIMEOUT_S}", param=option)
    return value


@click.command(context_settings={"show_default": True, "ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--task", default="lm", help=f"{', '.join(TASK_NAMES)}, or MODULE:FUNCTION of your own.")
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
@click.option("--batch-size", type=int, help="Samples of all ranks together.  [default: the task's]")
@click.option("--accumulate", type=int, default=1, help="Compute each rank's share in so many parts.")
@click.option("--clip-norm", type=float, help="The largest global norm of the gradients.  [default: any]")
@click.option("--seed", type=int, default=0, help="Of the data, the weights, and the order of the samples.")
@click.option("--broadcast", is_flag=True, help="Begin with rank 0's weights, instead of checking that all are alike.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="[default: runs/TASK]")
@click.option("--save-every", type=int, default=100, help="Steps between checkpoints; there is one at the end too.")
@click.option("--keep", type=int, default=2, help="How many checkpoints.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint in --output, if there is one.")
@click.option("--log-every", type=int, default=10, help="Steps between lines of log.jsonl.")
@click.option("--check-every", type=int, help="Steps between checks for drift; 0: never.  [default: 100; none: never]")
@click.option("--on-nan", default="stop", help=f"When a loss is not finite: {', '.join(ON_NAN)} (the step).")
@click.option("--profile", type=FILE, help="Write a time line of a few steps there, for ui.perfetto.dev.")
@click.option("--timeout", "timeout_s", type=float, callback=_seconds, default=60.0, help="Seconds to wait for a peer.")
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
    config = SessionConfig(output=output or Path("runs", task.replace(":", ".")), **rest)
    here = place(os.environ)
    num_ranks = ranks or here.num_ranks
    loaded = load_task(task, config.seed, **options)
    Batches(loaded.num_samples, config.batch_size or loaded.batch_size, config.seed, 0, num_ranks)
    if here.rank == 0:
        _check_output(config)
    if config.profile is not None:
        os.environ.setdefault(
            "KINETO_LOG_LEVEL", "99"
        )  # else torch's profiler talks on stderr; read when torch is loaded
    launch = Launch(task, options, config, timeout_s)
    return run_rank(launch, loaded) if ranks is None else spawn(ranks, run_rank, (launch,))


def _check_output(config: SessionConfig) -> None:
    """Find out before the work what is in the way of its results. Raises UsageError."""
    check_writable(f"--output {config.output}", config.output)
    if config.profile is not None:
        check_writable(f"--profile {config.profile}", config.profile.parent)
    if not config.resume and (found := CheckpointFolder(config.output).newest_first()):
        raise click.UsageError(
            f"--output {config.output}: there is {found[0].name} of a run already: "
            f"--resume goes on with it; or give another --output"
        )
