"""`JobConfig` and `LogConfig`: what the strategy comparison is asked to do. Importing this loads no torch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainers.loop.config import StepConfig, check_log
from trainers.tasks import LanguageModel
from trainers.tasks.base import require_at_least

RESULTS = (
    "checkpoint.pt",
    "report.png",
    "memory.png",
    "report.html",
    "report.json",
)  # what the strategy comparison leaves in --output


@dataclass(frozen=True, slots=True)
class JobConfig:
    """A training run with each strategy, step by step in turn.

    data: what the task was made from, as the user named it. step: of all strategies, but for its name.
    profile: where to save the profile of a step, if anywhere.

    Raises ValueError for a value out of range, and a warm-up that is not shorter than `steps`.
    """

    task: LanguageModel
    data: str
    step: StepConfig
    strategies: tuple[str, ...]
    steps: int
    profile: Path | None = None

    def __post_init__(self) -> None:
        require_at_least(1, steps=self.steps)
        self.step.schedule(self.steps)

    def of_each_strategy(self) -> Iterator[StepConfig]:
        """Yield how the model of each strategy is trained."""
        return (replace(self.step, strategy=name) for name in self.strategies)

    def training(self) -> dict[str, Any]:
        """Return how models are trained, for JSON; batch_size: per rank."""
        sizes = {"batch_size": self.step.batch_size, "steps": self.steps}
        rate = {"lr_schedule": self.step.lr_schedule, "warmup_steps": self.step.warmup_steps}
        numbers = {"amp": self.step.amp, "compile": self.step.compile}
        return {**sizes, "learning_rate": self.task.learning_rate, **rate, **numbers, "seed": self.step.seed}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Where the strategy comparison writes its log, and how often: after `log_every` steps of all strategies, 0: never.

    options: all of the job, as a file beside the log shall have them.

    Raises ValueError for a value out of range.
    """

    output: Path
    log_every: int
    tensorboard: bool = False
    options: str = ""

    def __post_init__(self) -> None:
        check_log(self.tensorboard, self.log_every)
