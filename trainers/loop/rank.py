"""`run_rank`: one rank of `python -m trainers`, however it was started, and its end when something goes wrong."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ringsim.console import Progress, clear_line, is_under_torchrun, print_result, say, say_wrote
from ringsim.files import save_json
from ringsim.units import plural
from trainers.checkpoints.output import save_options
from trainers.launch.environment import DistributedEnvironment, distributed_environment, read_environment
from trainers.launch.rendezvous import init_process_group
from trainers.launch.signals import StopRequest, delay_termination
from trainers.loop.config import TrainConfig
from trainers.tasks import load_task
from trainers.tasks.base import Task

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
        trainer = Trainer(task, launch.config, group, environment.device, progress.say)
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


def _finish(launch: Launch, trainer: Any, train_s: float) -> int:
    from trainers.checkpoints.manager import RESULT  # noqa: PLC0415
    from trainers.loop.result import judge, result_of, summary, written  # noqa: PLC0415

    figures, shown = judge(trainer)
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
    for path in written(trainer, result):
        say_wrote(path)
    return 0


def end_together(message: str, code: int, group: "dist.ProcessGroup") -> int:
    """Let rank 0 say what all ranks know, before any of them ends: then whoever started them ends the rest."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

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
