"""What each rank of `python -m trainers` does, however it was started; and how it ends when something goes wrong."""

import os
import sys
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ringsim.console import progress_bar
from trainers.launch.environment import DistributedEnvironment, distributed_environment, init_process_group
from trainers.launch.termination import delay_termination, is_under_torchrun
from trainers.loop.config import TrainConfig
from trainers.tasks import load_task
from trainers.tasks.base import Task

if TYPE_CHECKING:
    import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Launch:
    """What is asked of all ranks. task: its name; options: its own."""

    task: str
    options: dict[str, Any]
    config: TrainConfig
    timeout_s: float


def run_rank(launch: Launch, task: Task | None = None) -> int:
    """Train; rank 0 then judges the model. Returns the exit code.

    task: that of the launch, if it has been loaded already.
    """
    environment = distributed_environment()
    task = task or load_task(launch.task, launch.config.seed, **launch.options)
    say_failures_before_the_end()
    group = init_process_group(environment, launch.timeout_s)
    try:
        return _run(launch, task, environment, group)
    except Exception as error:
        from collectives.runtime import CollectiveError  # noqa: PLC0415

        leave(str(error) if isinstance(error, CollectiveError) else _traceback(error, environment.rank))


def say_failures_before_the_end() -> None:
    """Let this rank say that a peer failed before torchrun ends it for that."""
    from collectives.runtime import has_failed  # noqa: PLC0415

    if is_under_torchrun(os.environ):
        delay_termination(has_failed)


def _run(launch: Launch, task: Task, environment: DistributedEnvironment, group: "dist.ProcessGroup") -> int:
    import torch.distributed as dist  # noqa: PLC0415

    from trainers.data_parallel import DriftError  # noqa: PLC0415
    from trainers.loop.loss_sync import DivergedError, StoppedError  # noqa: PLC0415
    from trainers.loop.trainer import Trainer  # noqa: PLC0415

    try:
        trainer = Trainer(task, launch.config, group, environment.device, lambda text: click.echo(text, err=True))
    except ValueError as error:
        return end_together(f"trainers: {error}", 2, group)
    begin_s = time.perf_counter()
    try:
        with progress_bar(trainer.num_steps, "training", rank=environment.rank, done=trainer.first_step) as bar:
            trainer.train(lambda text: bar.update(1, text))
    except (DivergedError, DriftError, StoppedError) as error:
        trainer.close()
        return end_together(f"trainers: {error}", 1, group)
    train_s = time.perf_counter() - begin_s
    dist.destroy_process_group()  # rank 0 goes on alone: nobody waits for it, nor fails with it
    return _finish(trainer, train_s) if environment.rank == 0 else 0


def _finish(trainer: Any, train_s: float) -> int:
    from trainers.loop.result import judge, result_of, save_result, summary  # noqa: PLC0415

    figures, shown = judge(trainer)
    result = result_of(trainer, figures, train_s)
    try:
        save_result(trainer, result)
        trainer.close()
    except OSError as error:
        click.echo(f"trainers: {error.filename}: cannot be written: {error.strerror}", err=True)
        return 1
    click.echo(f"{shown}\n\n{summary(trainer, result)}" if shown else summary(trainer, result))
    return 0


def end_together(message: str, code: int, group: "dist.ProcessGroup") -> int:
    """Let rank 0 say what all ranks know, before any of them ends: then whoever started them ends the rest."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    if group.rank() == 0:
        click.echo(message, err=True)
    try:
        dist.all_reduce(torch.zeros(1), group=group)
    except RuntimeError:  # it was this rank alone, after all
        if group.rank() != 0:
            click.echo(message, err=True)
        leave("", code)
    dist.destroy_process_group()
    return code


def leave(message: str, code: int = 1) -> NoReturn:
    """End this rank at once.

    Threads of a broken group may still be waiting, and would abort a process that takes leave in order.
    """
    if message:
        click.echo(message, err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _traceback(error: Exception, rank: int) -> str:
    """Of what is no user's mistake on the command line, but in the code of a task, or ours."""
    return f"rank {rank}: {''.join(traceback.format_exception(error)).rstrip()}"
