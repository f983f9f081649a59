"""`Trainer`: train a task with one strategy, on one rank of a group."""

import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import torch.distributed as dist

from collectives.runtime import CollectiveError, naming_failures, span
from trainers.checkpoints.checkpoint import Checkpoint, random_state, seed_apart, set_random_state
from trainers.checkpoints.manager import CheckpointManager, first_decides, first_fault, usable_checkpoints
from trainers.checkpoints.output import Mark
from trainers.data_parallel import DriftError
from trainers.loop.config import TrainConfig
from trainers.loop.meter import Meter, ProfilerTrace, describe_evaluation, describe_line, held_bytes
from trainers.loop.train_step import (
    CANNOT_CONTINUE,
    DivergedError,
    StoppedError,
    TrainStep,
    exchange_losses,
    require_finite,
)
from trainers.tasks.base import Task, evaluate

LEAST_BETWEEN_LINES_S = 1.0  # between two printed lines of the log
MAX_SKIPPED_IN_A_ROW = 10  # more are not bad batches, but a bad model

RESTART_COUNTS = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")  # as Slurm and torchrun name them
RESUME_HINT = "`resume` continues from the last checkpoint, at which they still agreed"

Say = Callable[[str], None]


class Trainer:
    """Train a task as a config describes; collective.

    Task and config determine the result, even if training is interrupted and resumed.

    say: called on rank 0 with messages for the user.

    Raises ValueError on every rank for contradictory settings, and for an unusable output directory or checkpoint.

    >>> from pathlib import Path
    >>> from trainers import TrainConfig, Trainer, distributed_environment, init_process_group, load_task
    >>> group = init_process_group(distributed_environment(), timeout_s=60)
    >>> config = TrainConfig(output=Path("run"), strategy="ring", batch_size=16, steps=20)
    >>> trainer = Trainer(load_task("mlp", seed=0), config, group)
    >>> trainer.train()
    >>> trainer.close()
    >>> sorted(path.name for path in Path("run").iterdir())
    ['checkpoint-20.pt', 'log.jsonl']
    """

    def __init__(
        self, task: Task, config: TrainConfig, group: dist.ProcessGroup, device: str = "cpu", say: Say = print
    ) -> None:
        self.task, self.config, self.group, self._device = task, config, group, device
        self._say: Say = say if group.rank() == 0 else _silent
        self.batches = config.batches(task, group.rank(), group.size())
        self.num_steps = config.num_steps(task.epochs, self.batches.batches_per_epoch)
        self.train_step = TrainStep(task, config, group, device, self.num_steps)
        self._save_every = config.steps_between_saves(self.batches.batches_per_epoch)
        self.meter = Meter(
            group, getattr(task, "tokens_per_sample", 0), makes_lines=config.log_every + config.eval_every > 0
        )
        self.identity = config.identity(task, group.size(), self.num_steps)
        self.first_step = 0
        self._check_is_due = False
        self.stopped_by = 0  # the number of the signal that has asked a rank to stop before the last step
        self.num_done = 0
        self.memory_bytes: dict[str, int] | None = None  # what this rank held after the last step, once that is taken
        self._say_line: Say = _silent
        self._begin_s = 0.0
        self._said_s = -math.inf
        self.manager = CheckpointManager(config.output, self.train_step.model, group, self._say)
        try:
            # Checked again now that the directory is locked: another run may have left its checkpoints there.
            mark = self._resume() if config.resume else first_decides(group, self.manager.folder.require_none)
            self.manager.begin(self.first_step, mark, config.tensorboard)
        except BaseException:
            self.close()
            raise

    def _resume(self) -> Mark | None:
        """Load the newest checkpoint that fits on every rank, if any; return its mark of the log."""
        for path, checkpoint in usable_checkpoints(self.manager.folder, self.identity, self.group, self._say):
            if checkpoint.step > self.num_steps:
                done, asked = checkpoint.step, self.num_steps
                raise ValueError(f"checkpoint {path}: {done} steps are done, but {asked} asked for; give more `steps`")
            if not (fault := first_fault(self._load(checkpoint), self.group)):
                break
            self._say(f"checkpoint {path}: {fault}")
        else:
            self._say(f"no checkpoint in {self.config.output} yet{_restarted()}: starting with the first step")
            return None
        self.first_step = self.num_done = checkpoint.step
        self._say(f"resumed from {path}: {self.first_step} of {self.num_steps} steps are done")
        ranks_before, num_ranks = len(checkpoint.random_states), self.group.size()
        if ranks_before != num_ranks:
            self._say(
                f"it is of {ranks_before} ranks, now {num_ranks}: the batches are the same, the random states are "
                f"new, and losses will agree to rounding"
            )
        before = checkpoint.config["training"]["strategy"]
        if before != self.config.strategy:
            self._say(f"it is of the strategy {before}, now {self.config.strategy}: losses will agree to rounding")
        mark: Mark | None = checkpoint.notes.get("log")
        return mark

    def _load(self, checkpoint: Checkpoint) -> str:
        rank, notes = self.group.rank(), checkpoint.notes
        try:
            if checkpoint.step > notes["skipped"]:
                self.train_step.rebuild_buckets()
            self.train_step.load(checkpoint)
            self.meter.set_notes(notes)
            if len(checkpoint.random_states) == self.group.size():
                set_random_state(checkpoint.random_states[rank], self._device)
            else:
                seed_apart(self.config.seed, checkpoint.step, rank)
        except CollectiveError:
            raise
        except Exception as error:  # the others must hear of it, whatever it is
            return f"does not fit the task: {' '.join(str(error).split())}"
        return ""

    def train(
        self, after_step: Say = lambda _: None, say_line: Say = lambda _: None, asked: Callable[[], int] = lambda: 0
    ) -> None:
        """Take all remaining steps; collective.

        after_step: called with a short text on the progress.
        say_line: called on rank 0 with lines of the log, at most one a second, and the last.
        asked: returns the number of a signal to stop, or 0. All ranks then stop after the same step, with a checkpoint;
        see `stopped_by` and `num_done`.

        Raises CollectiveError when a peer fails; and on all ranks DivergedError, DriftError, or StoppedError if rank 0
        cannot write.
        """
        path = self.config.profile if self.group.rank() == 0 else None
        trace = ProfilerTrace(path, self.first_step, self.num_steps)
        self._say_line = say_line if self.group.rank() == 0 else _silent
        self._begin_s = time.perf_counter()
        self.meter.restart()
        for step in range(self.first_step, self.num_steps):
            with self._naming(step), trace.recording(step):
                self._take(step, CANNOT_CONTINUE if self.manager.trouble else asked())
            if trace.is_over(step):
                self.manager.attempt(trace.save)
            after_step(self.meter.brief())
            with self._naming(step), self.train_step.naming_step(step):
                self._keep(step + 1)
            self.num_done = step + 1
            if self.stopped_by:
                break
        with self._naming(self.num_done), self.train_step.naming_step(self.num_done):
            # Stops all ranks for a failure after the exchange of the last step's losses.
            exchange_losses(self.group, 0.0, CANNOT_CONTINUE if self.manager.trouble else 0)

    def close(self) -> None:
        """Release the output directory, after its last file is written."""
        self.manager.close()

    @contextmanager
    def _naming(self, step: int) -> Iterator[None]:
        try:
            yield
        except StoppedError as error:
            reason = self.manager.describe_trouble() if self.manager.trouble else str(error)
            raise StoppedError(f"training step {step}: {reason}") from error

    def _take(self, step: int, asked: int) -> None:
        result = self.train_step.run(step, asked)
        if step + 1 < self.num_steps:
            self.stopped_by = result.asked
        if self.config.on_nan == "stop":
            require_finite(result.trouble, f"training step {step}", ", or `on_nan` skip")
        if result.trouble:
            trouble = f"training step {step}: {result.trouble}"
            if self.meter.skipped_in_a_row == MAX_SKIPPED_IN_A_ROW:
                raise DivergedError(f"{trouble}, after {MAX_SKIPPED_IN_A_ROW} steps skipped in a row")
            self._say(f"{trouble}: all ranks skip the step")
        self.meter.add(result, self.batches.num_samples(step))

    def _keep(self, done: int) -> None:
        config, is_last = self.config, done == self.num_steps
        if is_last:
            self.memory_bytes = held_bytes(self.train_step)
            self.train_step.finish()
        if config.writes_line(done, self.num_steps):
            self._log(done)
        saves = done % self._save_every == 0 or is_last or self.stopped_by != 0
        if config.drift_every and (done % config.drift_every == 0 or saves):
            self._check_is_due = True
        if self._check_is_due and self.train_step.model.strategy.parameters_agree:
            self._check(done - 1)
            self._check_is_due = False
        if saves:
            self._save(done)

    def _log(self, done: int) -> None:
        epoch = (done - 1) // self.batches.batches_per_epoch
        line = {"step": done, "epoch": epoch, **self.meter.line()}
        if not self.meter.skipped_in_a_row:
            norm = self.train_step.gradient_norm()
            line["gradient_norm"] = float(f"{norm:.5g}") if math.isfinite(norm) else None
        if not self.config.schedule(self.num_steps).is_constant:
            line["learning_rate"] = float(self.train_step.optimizer.param_groups[0]["lr"])
        step_s = (time.perf_counter() - self._begin_s) / (done - self.first_step)
        figures = self._evaluate() if self.config.evaluates(done) else {}
        line["time_left_s"] = round((self.num_steps - done) * step_s, 1)
        line["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.manager.log({**line, "evaluation": figures} if figures else line)
        now_s = time.monotonic()
        if figures or done == self.num_steps or now_s >= self._said_s + LEAST_BETWEEN_LINES_S:
            self._say_line(describe_line(line, self.num_steps))
            self._said_s = now_s
        if figures:
            self._say_line(describe_evaluation(done, self.num_steps, figures))
        self.meter.restart()

    def _evaluate(self) -> dict[str, float | None]:
        """Return the figures on rank 0; collective. Model and random generators do not change."""
        figures: dict[str, float | None] = {}
        with naming_failures("gathering the parameters failed"):
            self.train_step.model.unshard()
        if self.group.rank() == 0:
            before = random_state(self._device)
            with span("evaluate"):
                figures = evaluate(self.task, self.train_step.model.model)
            set_random_state(before, self._device)
        with naming_failures("waiting for rank 0 to evaluate the model failed"):
            dist.barrier(self.group)  # so that waiting is not part of the next step
        return figures

    def _check(self, step: int) -> None:
        with span("compare the ranks' models"):
            try:
                self.train_step.model.check_identical()
            except DriftError as error:
                raise DriftError(
                    f"training step {step}: the ranks have drifted apart: {error}; {RESUME_HINT}"
                ) from error

    def _save(self, done: int) -> None:
        with span("save a checkpoint"):
            state = self.train_step.model.strategy.state_dict()
            checkpoint = Checkpoint(
                self.train_step.model.state_dict(),
                self.train_step.optimizer.state_dict(),
                self.identity,
                done,
                self._of_every_rank(random_state(self._device)),
                self.meter.notes() | {"log": self.manager.log_mark},
                self._of_every_rank(state) if state else [],
            )
            self.manager.save(checkpoint, self.config.keep)

    def _of_every_rank(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        states: list[Any] | None = [None] * self.group.size() if self.group.rank() == 0 else None
        with naming_failures("gathering the states of the ranks failed"):
            dist.gather_object(state, states, group=self.group, group_dst=0)
        return states or []


def _silent(_: str) -> None:
    pass


def _restarted() -> str:
    """Return a warning if the job was restarted, perhaps on another node, or ""."""
    for name in RESTART_COUNTS:
        if (count := os.environ.get(name, "0")) != "0":
            return (
                f", though the job was started before ({name}={count}); if it saved any, {socket.gethostname()} "
                "does not see them: give an `output` on a file system that all nodes share"
            )
    return ""
