"""`trainers train`: the options, and all checks of them that need no torch; then the ranks are started."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ringsim.console import (
    Choice,
    IntRange,
    Progress,
    check_writable,
    examples,
    is_under_torchrun,
    json_option,
    require_torch,
    say,
    spawn,
)
from ringsim.units import plural
from trainers.checkpoints.output import CheckpointFolder, require_tensorboard
from trainers.cli.options import (
    MAX_RANKS,
    RESUME_COMMAND,
    config_options,
    rate_and_number_options,
    task_option,
    timeout_option,
)
from trainers.cli.rank_main import Launch, run_rank
from trainers.cli.settings import all_options, as_toml, config_option, is_of_file, task_options
from trainers.launch.environment import in_slurm_step, read_environment
from trainers.loop.config import TrainConfig
from trainers.tasks import Task, load_task

AUTO = "auto"


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=examples(
        "trainers train --task lm --strategy bucketed --ranks 4",
        "trainers train --task mlp --ranks 2 --output run --resume auto",
        "torchrun --nproc-per-node 4 -m trainers train --task lm --d-model 64",
    ),
)
@task_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Value of an option of the task; --NAME VALUE is the same.",
)
@config_options(TrainConfig, "strategy")
@click.option(
    "--ranks",
    type=IntRange(1, MAX_RANKS),
    help="Number of ranks to start here [default: those of torchrun or srun, or else one].",
)
@config_options(TrainConfig, "epochs", "steps", "batch_size", "accumulate", "clip_norm")
@rate_and_number_options
@config_options(TrainConfig, "broadcast")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write checkpoints, log.jsonl and result.json to this directory [default: runs/TASK].",
)
@click.option(
    "--save-every",
    default="100",
    metavar="STEPS|Nepoch",
    help="Steps, or epochs (1epoch), between two checkpoints; the end of the run also writes one.",
)
@config_options(TrainConfig, "keep")
@click.option(
    "--resume",
    is_flag=False,
    flag_value=AUTO,
    type=Choice((AUTO,)),
    callback=lambda _context, _option, value: value is not None,
    metavar="[auto]",
    help="Resume from the newest checkpoint in --output if there is one, and start otherwise.",
)
@config_options(TrainConfig, "log_every", "eval_every")
@click.option("--quiet", is_flag=True, help="Write the lines of --log-every to log.jsonl only.")
@config_options(TrainConfig, "tensorboard", "check_every", "on_nan", "profile")
@timeout_option
@config_option
@json_option
def train(
    task: str,
    settings: tuple[str, ...],
    ranks: int | None,
    output: Path | None,
    quiet: bool,
    timeout_s: float,
    as_json: bool,
    **rest: Any,
) -> int:
    """Train a task with a strategy, and keep checkpoints from which --resume continues.

    Under torchrun or srun leave out --ranks. Other options are those of the task, such as --learning-rate, and for lm
    --data, --d-model, --heads, --layers.
    """
    context = click.get_current_context()
    options = task_options(task, settings)
    config = TrainConfig(output=output or Path("runs", task.replace(":", ".")), **rest)
    environment = read_environment(os.environ)
    if is_of_file(context, "ranks") and (is_under_torchrun() or in_slurm_step(os.environ)):
        ranks = None  # there are those that have been started
    num_ranks = ranks or environment.num_ranks
    loaded = load_task(task, config.seed, **options)
    batches = config.batches(loaded, 0, num_ranks)
    num_steps = config.num_steps(loaded.epochs, batches.batches_per_epoch)
    config.schedule(num_steps)
    if environment.rank == 0:
        _check_output(config)
        if config.steps is not None and num_steps < config.steps:
            epochs = plural(config.epochs or loaded.epochs, "epoch")
            say(f"trainers: --steps {config.steps}: the run ends after {num_steps} steps, with its {epochs} (--epochs)")
    if config.profile is not None:
        # Else torch's profiler talks on stderr. It is read when torch is loaded.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    resume = context.meta.get(RESUME_COMMAND, "")
    file = as_toml(context, all_options(task, loaded, options), ranks=num_ranks, output=config.output)
    return _run(Launch(task, options, config, timeout_s, as_json, resume, quiet, file), loaded, ranks)


def _run(launch: Launch, task: Task, ranks: int | None) -> int:
    """Return the exit code; raise Abort with the command that goes on after Ctrl-C, and say it after a failure.

    Nothing is said after a mistake of the user's, which the same command would meet again.
    """
    if ranks is None:
        try:
            return run_rank(launch, task)
        except KeyboardInterrupt:
            raise click.exceptions.Abort(launch.resumable()) from None
    require_torch("this command")
    progress = Progress()
    progress.begin(f"starting {plural(ranks, 'rank')}")  # rank 0 goes on in its place
    code = spawn(ranks, run_rank, (replace(launch, resume=""),), stops=True)  # it is said here, whatever ends them
    if code == 128 + signal.SIGINT:
        raise click.exceptions.Abort(launch.resumable())
    if code > 128:
        say(f"trainers: {launch.resumable()}")
    elif (
        code not in (0, click.UsageError.exit_code)
        and launch.resume
        and (checkpoints := CheckpointFolder(launch.config.output).newest_first())
    ):
        say(f"trainers: {checkpoints[0].name} is there; resume with: {launch.resume}")
    return code


def _check_output(config: TrainConfig) -> None:
    """Find out before the work what is in the way of its results. Raises UsageError and ValueError."""
    check_writable(f"--output {config.output}", config.output)
    if config.profile is not None:
        check_writable(f"--profile {config.profile}", config.profile.parent)
    if config.tensorboard:
        require_tensorboard()
    if not config.resume:
        CheckpointFolder(config.output).require_none()
