"""`run_rank`: one rank of `python -m trainers`, however it was started, and its end when something goes wrong."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ringsim.console import Progress, clear_line, is_under_torchrun, print_result, say, say_wrote
from ringsim.files import save_json
from ringsim.units import format_size, plural
from trainers.checkpoints.output import FOLDER, LOG, OPTIONS_FILE, RESULT, save_options
from trainers.cli.options import naming_options
from trainers.launch.environment import DistributedEnvironment, distributed_environment, read_environment
from trainers.launch.rendezvous import init_process_group
from trainers.launch.signals import StopRequest, delay_termination
from trainers.loop.config import TrainConfig
from trainers.loop.log_line import format_figures
from trainers.tasks import load_task
from trainers.tasks.base import Task, evaluate, evaluating

if TYPE_CHECKING:
    import torch.distributed as dist

    from trainers.loop.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Launch:
    """A training run as it is asked of all ranks.

    task: its name; options: its own. resume: the command that would go on with it. quiet: whether lines of the log are
    not printed. options_file: all options, as the file OPTIONS_FILE in the output directory shall have them.
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
        """Return how the run has ended, with the command that resumes it."""
        return f"{ended}; resume with: {self.resume}" if self.resume else ended


def run_rank(launch: Launch, task: Task | None = None) -> int:
    """Train; rank 0 then judges the model. Returns the exit code.

    task: that of the launch, if it has been loaded already.
    """
    stop = StopRequest()
    started = read_environment(os.environ)
    progress = Progress(rank=started.rank)
    progress.begin(f"starting {plural(started.num_ranks, 'rank')}")
    environment = distributed_environment()
    task = task or load_task(launch.task, launch.config.seed, **launch.options)
    say_failures_before_the_end(
        lambda: say(f"trainers: {launch.resumable()}") if environment.rank == 0 else None, lambda: stop.heeded
    )
    with stop.noting():
        group = init_process_group(environment, launch.timeout_s)
        try:
            with progress:
                return _run(launch, task, environment, group, progress, stop)
        except Exception as error:
            from collectives.runtime import CollectiveError  # noqa: PLC0415

            described = f"rank {environment.rank}: {''.join(traceback.format_exception(error)).rstrip()}"
            leave(str(error) if isinstance(error, CollectiveError) else described)


def say_failures_before_the_end(
    say_interrupted: Callable[[], None] = lambda: None, is_stopping: Callable[[], bool] = lambda: False
) -> None:
    """Let this rank say that a peer failed before torchrun ends it for that, or that the run was interrupted.

    is_stopping: as `delay_termination` takes it.
    """
    from collectives.runtime import has_failed  # noqa: PLC0415

    if is_under_torchrun():
        delay_termination(has_failed, say_interrupted, is_stopping=is_stopping)


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
        return end_together(f"trainers: {error}", 2, group)
    if launch.options_file and environment.rank == 0:
        trainer.manager.attempt(lambda: save_options(launch.config.output, launch.options_file))
    begin_s = time.perf_counter()
    progress.begin("training", trainer.num_steps, trainer.first_step)
    with stop.heeding():
        if code := _train(launch, trainer, group, progress, lambda: stop.number):
            return code
    train_s = time.perf_counter() - begin_s
    dist.destroy_process_group()  # rank 0 goes on alone: nobody waits for it, nor fails with it
    return _finish(launch, trainer, train_s) if environment.rank == 0 else 0


def _train(
    launch: Launch, trainer: "Trainer", group: "dist.ProcessGroup", progress: Progress, asked: Callable[[], int]
) -> int:
    """Return the exit code, 0 after the last step; otherwise rank 0 has said why it is not."""
    from trainers.data_parallel import DriftError  # noqa: PLC0415
    from trainers.loop.train_step import DivergedError, StoppedError  # noqa: PLC0415

    try:
        say_line = (lambda _: None) if launch.quiet else progress.say
        trainer.train(lambda text: progress.update(1, text), say_line, asked)
    except (DivergedError, DriftError, StoppedError) as error:
        trainer.close()
        return end_together(f"trainers: {error}", 1, group)
    if not trainer.stopped_by:
        return 0
    trainer.close()
    name, path = signal.Signals(trainer.stopped_by).name, trainer.manager.folder.path(trainer.num_done)
    stopped = f"stopped by {name} after {trainer.num_done} of {trainer.num_steps} steps, saved in {path}"
    return end_together(f"trainers: {launch.resumable(stopped)}", 128 + trainer.stopped_by, group)


def _finish(launch: Launch, trainer: "Trainer", train_s: float) -> int:
    """Judge the model on this rank alone, and write result.json; return the exit code."""
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
    clear_line()
    text = summary(trainer, result)
    print_result(f"{shown}\n\n{text}" if shown else text, result, launch.as_json)
    for path in written(trainer, result["checkpoint"]):
        say_wrote(path)
    return 0


def result_of(trainer: "Trainer", figures: dict[str, Any], train_s: float) -> dict[str, Any]:
    """Return the result for JSON. train_s: seconds of training since the launch, which may have been a resumption."""
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
            "fingerprint": fingerprint(model),  # equal for two runs whose models are, bit for bit
            "checkpoint": trainer.manager.folder.path(trainer.num_steps).name,
            "train_s": train_s,
            "provenance": {**provenance(), "torch": torch.__version__},
        }
    )


def summary(trainer: "Trainer", result: dict[str, Any]) -> str:
    """Return a few lines about the run."""
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
    """Return the files that the run leaves, but for older checkpoints."""
    config = trainer.config
    logs = [*([LOG] if config.log_every + config.eval_every else []), *([FOLDER] if config.tensorboard else [])]
    files = [trainer.manager.output / name for name in (checkpoint, *logs, RESULT)]
    options = trainer.manager.output / OPTIONS_FILE
    files += [options] if options.exists() else []  # a program of a user's own writes none
    return [*files, *([config.profile] if config.profile else [])]


def end_together(message: str, code: int, group: "dist.ProcessGroup") -> int:
    """Let rank 0 say what all ranks know, before any of them ends: then whoever started them ends the rest."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    message = naming_options(message)
    if group.rank() == 0:
        say(message)
    try:
        dist.all_reduce(torch.zeros(1), group=group)
    except RuntimeError:  # it was this rank alone, after all
        if group.rank() != 0:
            say(message)
        leave("", code)
    dist.destroy_process_group()
    return code


def leave(message: str, code: int = 1) -> NoReturn:
    """End this rank at once.

    Threads of a broken group may still be waiting, and would abort a process that takes leave in order.
    """
    if message:
        say(message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
