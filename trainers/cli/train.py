"""`trainers train`: the options, their checks without torch, and `run_rank`, one rank of the run."""

import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ringsim import console
from ringsim.console import Progress, examples, say, spawn
from ringsim.files import save_json
from ringsim.units import format_size, plural
from trainers.checkpoints.output import (
    FOLDER,
    LOG,
    OPTIONS_FILE,
    RESULT,
    CheckpointFolder,
    require_tensorboard,
    save_options,
)
from trainers.cli.options import (
    MAX_RANKS,
    RESUME_COMMAND,
    all_options,
    as_toml,
    config_option,
    config_options,
    is_of_file,
    naming_options,
    rate_and_number_options,
    task_option,
    task_options,
    timeout_option,
)
from trainers.launch.environment import DistributedEnvironment, distributed_environment, in_slurm_step, read_environment
from trainers.launch.rendezvous import init_process_group
from trainers.launch.signals import StopRequest, end_together, leave, say_failures_before_the_end
from trainers.loop.config import TrainConfig
from trainers.tasks import Task, load_task
from trainers.tasks.base import evaluate, evaluating, format_figures

if TYPE_CHECKING:
    import torch.distributed as dist

    from trainers.loop.trainer import Trainer

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Launch:
    """A training run as all ranks get it.

    options: of the task. resume: the resuming command. options_file: content of OPTIONS_FILE.
    """

    task: str
    options: dict[str, Any]
    config: TrainConfig
    timeout_s: float
    as_json: bool = False
    resume: str = ""
    quiet: bool = False
    options_file: str = ""

    def resumable(self, ended: str = "interrupted") -> str:
        return f"{ended}; resume with: {self.resume}" if self.resume else ended


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
    type=console.IntRange(1, MAX_RANKS),
    help="Number of ranks to start here [default: those of torchrun or srun, or else one].",
)
@config_options(TrainConfig, "epochs", "steps", "batch_size", "accumulate", "clip_norm")
@rate_and_number_options
@config_options(TrainConfig, "broadcast", "output", "save_every", "keep")
@click.option(
    "--resume",
    is_flag=False,
    flag_value=AUTO,
    type=console.Choice((AUTO,)),
    callback=lambda _context, _option, value: value is not None,
    metavar="[auto]",
    help="Resume from the newest checkpoint in --output if there is one, and start otherwise.",
)
@config_options(TrainConfig, "log_every", "eval_every")
@click.option("--quiet", is_flag=True, help="Write the lines of --log-every to log.jsonl only.")
@config_options(TrainConfig, "tensorboard", "check_every", "on_nan", "profile")
@timeout_option
@config_option
@console.json_option
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
    if is_of_file(context, "ranks") and (console.is_under_torchrun() or in_slurm_step(os.environ)):
        ranks = None  # the launcher has started them
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
        # Silences torch's profiler on stderr; read when torch is loaded.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    resume = context.meta.get(RESUME_COMMAND, "")
    file = as_toml(context, all_options(task, loaded, options), ranks=num_ranks, output=config.output)
    return _start(Launch(task, options, config, timeout_s, as_json, resume, quiet, file), loaded, ranks)


def _start(launch: Launch, task: Task, ranks: int | None) -> int:
    if ranks is None:
        try:
            return run_rank(launch, task)
        except KeyboardInterrupt:
            raise click.exceptions.Abort(launch.resumable()) from None
    console.require_torch("this command")
    progress = Progress()
    progress.begin(f"starting {plural(ranks, 'rank')}")  # rank 0 goes on in its place
    code = spawn(ranks, run_rank, (replace(launch, resume=""),), stops=True)  # printed below, whatever ends them
    if code == 128 + signal.SIGINT:
        raise click.exceptions.Abort(launch.resumable())
    checkpoints = CheckpointFolder(launch.config.output).newest_first()
    if code > 128:
        say(f"trainers: {launch.resumable()}")
    elif code not in (0, click.UsageError.exit_code) and launch.resume and checkpoints:
        say(f"trainers: {checkpoints[0].name} is there; resume with: {launch.resume}")
    return code


def _check_output(config: TrainConfig) -> None:
    console.check_writable(f"--output {config.output}", config.output)
    if config.profile is not None:
        console.check_writable(f"--profile {config.profile}", config.profile.parent)
    if config.tensorboard:
        require_tensorboard()
    if not config.resume:
        CheckpointFolder(config.output).require_none()


def run_rank(launch: Launch, task: Task | None = None) -> int:
    """Train on one rank; rank 0 then evaluates. Returns the exit code."""
    stop = StopRequest()
    started = read_environment(os.environ)
    progress = Progress(rank=started.rank)
    progress.begin(f"starting {plural(started.num_ranks, 'rank')}")
    environment = distributed_environment()
    task = task or load_task(launch.task, launch.config.seed, **launch.options)
    say_failures_before_the_end(
        lambda: say(f"trainers: {launch.resumable()}") if environment.rank == 0 else None, lambda: stop.heeded
    )
    with stop.catching_sigusr1():
        group = init_process_group(environment, launch.timeout_s)
        try:
            with progress:
                return _run(launch, task, environment, group, progress, stop)
        except Exception as error:
            from collectives.runtime import CollectiveError  # noqa: PLC0415

            described = f"rank {environment.rank}: {''.join(traceback.format_exception(error)).rstrip()}"
            leave(str(error) if isinstance(error, CollectiveError) else described)


def _run(
    launch: Launch,
    task: Task,
    environment: DistributedEnvironment,
    group: "dist.ProcessGroup",
    progress: Progress,
    stop: StopRequest,
) -> int:
    import torch.distributed as dist  # noqa: PLC0415

    from trainers.loop.trainer import Trainer  # noqa: PLC0415

    try:
        trainer = Trainer(
            task, launch.config, group, environment.device, lambda text: progress.say(naming_options(text))
        )
    except ValueError as error:
        return end_together(naming_options(f"trainers: {error}"), 2, group)
    if launch.options_file and environment.rank == 0:
        trainer.manager.attempt(lambda: save_options(launch.config.output, launch.options_file))
    begin_s = time.perf_counter()
    progress.begin("training", trainer.num_steps, trainer.first_step)
    with stop.catching_sigterm():
        if code := _train(launch, trainer, group, progress, lambda: stop.number):
            return code
    train_s = time.perf_counter() - begin_s
    dist.destroy_process_group()  # rank 0 goes on alone: nobody waits for it, nor fails with it
    return _finish(launch, trainer, train_s) if environment.rank == 0 else 0


def _train(
    launch: Launch, trainer: "Trainer", group: "dist.ProcessGroup", progress: Progress, asked: Callable[[], int]
) -> int:
    from trainers.data_parallel import DriftError  # noqa: PLC0415
    from trainers.loop.train_step import DivergedError, StoppedError  # noqa: PLC0415

    try:
        say_line = (lambda _: None) if launch.quiet else progress.say
        trainer.train(lambda text: progress.update(1, text), say_line, asked)
    except (DivergedError, DriftError, StoppedError) as error:
        trainer.close()
        return end_together(naming_options(f"trainers: {error}"), 1, group)
    if not trainer.stopped_by:
        return 0
    trainer.close()
    name, path = signal.Signals(trainer.stopped_by).name, trainer.manager.folder.path(trainer.num_done)
    stopped = f"stopped by {name} after {trainer.num_done} of {trainer.num_steps} steps, saved in {path}"
    return end_together(f"trainers: {launch.resumable(stopped)}", 128 + trainer.stopped_by, group)


def _finish(launch: Launch, trainer: "Trainer", train_s: float) -> int:
    model = trainer.train_step.model.model
    figures = evaluate(trainer.task, model)
    with evaluating(model):
        shown = trainer.task.show(model)
    result = result_of(trainer, figures, train_s)
    try:
        save_json(trainer.manager.output / RESULT, result)
        trainer.close()
    except OSError as error:
        say(f"trainers: {error.filename}: cannot be written: {error.strerror}")
        return 1
    console.clear_line()
    text = summary(trainer, result)
    console.print_result(f"{shown}\n\n{text}" if shown else text, result, launch.as_json)
    for path in written(trainer, result["checkpoint"]):
        console.say_wrote(path)
    return 0


def result_of(trainer: "Trainer", figures: dict[str, Any], train_s: float) -> dict[str, Any]:
    """Return the result for JSON. train_s: seconds of training since this launch."""
    import torch  # noqa: PLC0415

    from ringsim.measurements import provenance  # noqa: PLC0415
    from ringsim.verdict import TrainingSession  # noqa: PLC0415  loads seconds of modules
    from trainers.data_parallel import fingerprint  # noqa: PLC0415

    model, meter = trainer.train_step.model.model, trainer.meter
    return TrainingSession.FORMAT.write(
        {
            **trainer.identity,
            "num_parameters": sum(p.numel() for p in model.parameters()),
            "steps": trainer.num_steps,
            "resumed_at": trainer.first_step,
            "skipped_steps": meter.skipped,
            "last_loss": meter.last_loss,
            "memory_bytes": trainer.memory_bytes,  # of rank 0
            "evaluation": figures,
            "fingerprint": fingerprint(model),  # equal if two models are, bit for bit
            "checkpoint": trainer.manager.folder.path(trainer.num_steps).name,
            "train_s": train_s,
            "provenance": {**provenance(), "torch": torch.__version__},
        }
    )


def summary(trainer: "Trainer", result: dict[str, Any]) -> str:
    """Return a short summary of the run."""
    training = result["training"]
    ranks = plural(training["num_ranks"], "rank")
    steps, first = result["steps"], result["resumed_at"]
    resumed = f", {first} of them before this launch" if first else ""
    lines = [
        f"{trainer.task.name}: {result['num_parameters']:,} parameters, strategy {training['strategy']} on {ranks}",
        f"  {plural(steps, 'step')} of {trainer.batches}{resumed}; {result['train_s']:.1f} s",
    ]
    if result["skipped_steps"]:
        lines.append(f"  {plural(result['skipped_steps'], 'step')} skipped because the loss was not finite")
    if result["last_loss"] is not None:
        lines.append(f"  loss of the last step {result['last_loss']:.4f}")
    if held := result["memory_bytes"]:
        names = {kind: kind for kind in held} | {"vectors": "buffers of the strategy"}
        sizes = (f"{names[kind]} {format_size(size_bytes)}" for kind, size_bytes in held.items())
        lines.append(f"  memory of rank 0: {', '.join(sizes)}")
    if result["evaluation"]:
        lines.append(f"  held-out data: {format_figures(result['evaluation'])}")
    return "\n".join(lines)


def written(trainer: "Trainer", checkpoint: str) -> list[Path]:
    """Return the run's files, except for older checkpoints."""
    config = trainer.config
    logs = [*([LOG] if config.log_every + config.eval_every else []), *([FOLDER] if config.tensorboard else [])]
    files = [trainer.manager.output / name for name in (checkpoint, *logs, RESULT)]
    options = trainer.manager.output / OPTIONS_FILE
    files += [options] if options.exists() else []  # a program of a user's own writes none
    return [*files, *([config.profile] if config.profile else [])]
