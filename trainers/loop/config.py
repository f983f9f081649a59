"""`StepConfig` and `TrainConfig`: the settings of training; loads no torch."""

import math
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.loop.batches import Batches
from trainers.strategies import parse_strategy
from trainers.tasks.base import MAX_TOKENS_PER_BATCH, Task, check_seed, require_at_least

CHOICES = {"on_nan": ("stop", "skip"), "amp": ("bfloat16",), "lr_schedule": ("constant", "cosine")}
CHECK_EVERY = 100  # steps between two checks for drift, where there should be none
OTHERWISE = "or leave out `compile`"


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """A linear warm-up, then a constant rate or half a cosine down to 0 (Loshchilov and Hutter 2017, eq. 5).

    Raises ValueError unless the warm-up is shorter than the run.
    """

    name: str = "constant"
    warmup_steps: int = 0
    num_steps: int = 1

    def __post_init__(self) -> None:
        count, most = self.warmup_steps, self.num_steps
        if count and count >= most:
            raise ValueError(f"`warmup_steps` {count}: must be less than the {most} steps of the run")

    @property
    def is_constant(self) -> bool:
        return self.name == "constant" and not self.warmup_steps

    def factor(self, step: int) -> float:
        """Return the factor of the learning rate in `step`, from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.name == "constant":
            return 1.0
        done = min(1.0, (step - self.warmup_steps) / (self.num_steps - self.warmup_steps))
        return round((1 + math.cos(math.pi * done)) / 2, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """The settings of a training step.

    batch_size: samples per rank; None: the task's `global_batch_size`, divided among the ranks.
    accumulate: number of micro-batches. clip_norm: maximum global gradient norm.
    broadcast: start from rank 0's weights, which otherwise must be the same.
    on_nan: action when a loss is not finite. amp: autocast dtype of the forward pass.

    Raises ValueError for a value out of range, and if torch.compile would find no compiler.
    """

    strategy: str = "bucketed"
    batch_size: int | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    seed: int = 0
    broadcast: bool = False
    on_nan: str = "stop"
    lr_schedule: str = "constant"
    warmup_steps: int = 0
    amp: str | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        try:
            parse_strategy(self.strategy)
        except ValueError as error:
            raise ValueError(f"`strategy` {error}") from error
        require_at_least(1, batch_size=self.batch_size, accumulate=self.accumulate)
        if self.batch_size is not None and self.batch_size > MAX_TOKENS_PER_BATCH:
            raise ValueError(f"`batch_size` {self.batch_size}: must be at most {MAX_TOKENS_PER_BATCH}")
        if self.clip_norm is not None and not (self.clip_norm > 0 and math.isfinite(self.clip_norm)):
            raise ValueError(f"`clip_norm` {self.clip_norm}: must be finite and greater than 0")
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if value not in known and not (name == "amp" and value is None):
                raise ValueError(f"`{name}` {value}: must be one of {', '.join(known)}")
        require_at_least(0, warmup_steps=self.warmup_steps)
        check_seed(self.seed)
        if self.compile:
            require_compiler()

    def global_batch_size(self, task: Task, num_ranks: int) -> int:
        return task.global_batch_size if self.batch_size is None else self.batch_size * num_ranks

    def batches(self, task: Task, rank: int, num_ranks: int) -> Batches:
        return Batches(task.num_samples, self.global_batch_size(task, num_ranks), self.seed, rank, num_ranks)

    def schedule(self, num_steps: int) -> RateSchedule:
        return RateSchedule(self.lr_schedule, self.warmup_steps, num_steps)

    def identity(self, task: Task, num_ranks: int, num_steps: int) -> dict[str, Any]:
        """Return all settings that determine the result of a run, for its checkpoints."""
        fields = ("accumulate", "clip_norm", "lr_schedule", "warmup_steps", "amp", "compile")
        training = {
            "strategy": self.strategy,
            "num_ranks": num_ranks,
            "seed": self.seed,
            "global_batch_size": self.global_batch_size(task, num_ranks),
            **{name: getattr(self, name) for name in fields},
            "schedule_steps": None if self.lr_schedule == "constant" else num_steps,
        }
        return {"task": task.config(), "training": training}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(StepConfig):
    """The settings of a training run. Paths may be given as text.

    epochs: None: the task's default. steps: maximum number.
    save_every: steps between checkpoints, or epochs: "1epoch". keep: number of them.
    log_every, eval_every: steps between lines of the log, and between evaluations by rank 0; 0: never.
    check_every: steps between checks for drift; 0: never; None: CHECK_EVERY, or never with the strategy "none".
    profile: file for a timeline of some steps.
    """

    output: Path
    epochs: int | None = None
    steps: int | None = None
    save_every: int | str = 100
    keep: int = 2
    resume: bool = False
    log_every: int = 10
    tensorboard: bool = False
    check_every: int | None = None
    eval_every: int = 0
    profile: Path | None = None

    def __post_init__(self) -> None:
        StepConfig.__post_init__(self)  # super() does not work in a class that `slots` has made anew
        object.__setattr__(self, "output", Path(self.output))
        if self.profile is not None:
            object.__setattr__(self, "profile", Path(self.profile))
        require_at_least(1, epochs=self.epochs, steps=self.steps)
        require_at_least(1, save_every=self._saves()[0], keep=self.keep)
        for option, every in (("log", self.log_every), ("check", self.check_every), ("eval", self.eval_every)):
            if every is not None and every < 0:
                raise ValueError(f"`{option}_every` {every}: must be at least 0, which is never")
        if self.tensorboard and not self.log_every and not self.eval_every:
            raise ValueError("`tensorboard`: with `log_every` 0 there is nothing to write")

    @property
    def drift_every(self) -> int:
        if self.check_every is not None:
            return self.check_every
        return 0 if self.strategy == "none" else CHECK_EVERY

    def steps_between_saves(self, batches_per_epoch: int) -> int:
        count, in_epochs = self._saves()
        return count * batches_per_epoch if in_epochs else count

    def writes_line(self, done: int, num_steps: int) -> bool:
        is_due = self.log_every > 0 and (done % self.log_every == 0 or done == num_steps)
        return is_due or self.evaluates(done)

    def evaluates(self, done: int) -> bool:
        return self.eval_every > 0 and done % self.eval_every == 0

    def _saves(self) -> tuple[int, bool]:
        """Return the number between checkpoints, and whether it counts epochs."""
        match = re.fullmatch(r"(-?[0-9]+) ?(epochs?)?", str(self.save_every), re.ASCII)
        if match is None:
            raise ValueError(
                f"`save_every` {self.save_every}: must be a number of steps, such as 100, or of epochs, such as 1epoch"
            )
        return int(match[1]), match[2] is not None

    def num_steps(self, epochs: int, batches_per_epoch: int) -> int:
        """Return the steps of the whole run. epochs: the task's default."""
        steps_of_epochs = (self.epochs or epochs) * batches_per_epoch
        return steps_of_epochs if self.steps is None else min(self.steps, steps_of_epochs)


def require_compiler() -> None:
    """Raise ValueError, with advice, if torch.compile would find no C++ compiler or no Python.h."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise ValueError(
            f"`compile`: there is no C++ compiler {compiler!r}: install one (g++ or clang++) or name it in the "
            f"environment variable CXX; {OTHERWISE}"
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        raise ValueError(f"`compile`: there is no {header}: install Python's headers (python3-dev), {OTHERWISE}")


class ScheduledRates:
    """Sets an optimizer's learning rates; made before a checkpoint is loaded. Raises ValueError without rates."""

    def __init__(self, groups: Sequence[dict[str, Any]], schedule: RateSchedule) -> None:
        self._schedule = schedule
        if not schedule.is_constant and any("lr" not in group for group in groups):
            raise ValueError("`lr_schedule`, `warmup_steps`: the task's optimizer has no learning rate, called lr")
        # A rate may be a tensor, which an optimizer may change in place.
        self._whole = [] if schedule.is_constant else [group["lr"] * 1 for group in groups]

    def set(self, groups: Sequence[dict[str, Any]], step: int) -> None:
        factor = self._schedule.factor(step)
        for group, whole in zip(groups, self._whole, strict=False):  # there are none if it is constant
            group["lr"] = whole * factor
