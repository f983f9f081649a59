"""The strategy comparison: probe, predict, train with every strategy and in one process, compare; loads no torch."""

from dataclasses import dataclass
from typing import Any

from ringsim.files import naming_place
from trainers.loop.config import StepConfig
from trainers.strategies import parse_strategy
from trainers.tasks.base import Task, require_at_least

ONE_PROCESS = "one_process"  # in lists of strategies: one process trains on the batch of all ranks, the others wait
COMPARISON = "comparison.json"
RESULTS = ("checkpoint.pt", "report.png", "memory.png", "report.html", "report.json")  # files in the output directory


@dataclass(frozen=True, slots=True)
class JobConfig:
    """A training run per strategy, all with the same model and batches, and interleaved steps.

    one_process: rank 0 also trains alone on the batch of all ranks. Raises ValueError for a value out of range.
    """

    task: Task
    step: StepConfig
    strategies: tuple[str, ...]
    steps: int
    one_process: bool = False

    def __post_init__(self) -> None:
        require_at_least(1, steps=self.steps)
        self.step.schedule(self.steps)
        with naming_place("`strategies`"):
            for name in self.strategies:
                parse_strategy(name)
            if len(set(self.strategies)) != len(self.strategies):
                raise ValueError(f"{','.join(self.strategies)!r} names a strategy twice")
            if not self.strategies:
                raise ValueError(f"{ONE_PROCESS!r}: must name a strategy to compare it with")

    def training(self) -> dict[str, Any]:
        names = ("batch_size", "lr_schedule", "warmup_steps", "amp", "compile", "seed")
        return {"steps": self.steps, **{name: getattr(self.step, name) for name in names}}
