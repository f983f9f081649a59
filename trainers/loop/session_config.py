"""`SessionConfig`: how a task is trained and what is kept of it; bad values are refused before torch is loaded."""

import math
from dataclasses import dataclass
from pathlib import Path

from trainers.strategy_names import check_strategy
from trainers.tasks.config import MAX_TOKENS_PER_BATCH

ON_NAN = ("stop", "skip")
CHECK_EVERY = 100  # steps between two checks for drift, where there should be none


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How a task is trained on any number of ranks, and what is kept of it.

    epochs, batch_size: the task's own if None; batch_size: samples of all ranks together.
    steps: end after so many, if the epochs have not ended before.
    accumulate: the parts in which a rank computes its share of a batch, one after the other.
    save_every, log_every, check_every: in steps; check_every 0: never; None: CHECK_EVERY, with "none" never.
    keep: how many checkpoints.

    Raises ValueError for a value out of range.
    """

    output: Path
    strategy: str = "bucketed"
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    seed: int = 0
    broadcast: bool = False
    on_nan: str = "stop"
    save_every: int = 100
    keep: int = 2
    resume: bool = False
    log_every: int = 10
    check_every: int | None = None
    profile: Path | None = None

    def __post_init__(self) -> None:
        try:
            check_strategy(self.strategy)
        except ValueError as error:
            raise ValueError(f"--strategy {error}") from error
        for name in ("epochs", "steps", "batch_size", "accumulate", "save_every", "keep", "log_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least 1")
        if self.batch_size is not None and self.batch_size > MAX_TOKENS_PER_BATCH:
            raise ValueError(f"--batch-size {self.batch_size}: must be at most {MAX_TOKENS_PER_BATCH}")
        if self.check_every is not None and self.check_every < 0:
            raise ValueError(f"--check-every {self.check_every}: must be at least 0, which is never")
        if self.clip_norm is not None and not (self.clip_norm > 0 and math.isfinite(self.clip_norm)):
            raise ValueError(f"--clip-norm {self.clip_norm}: must be finite and greater than 0")
        if self.on_nan not in ON_NAN:
            raise ValueError(f"--on-nan {self.on_nan}: must be one of {', '.join(ON_NAN)}")

    @property
    def drift_every(self) -> int:
        """Steps between two checks for drift; 0: never."""
        if self.check_every is not None:
            return self.check_every
        return 0 if self.strategy == "none" else CHECK_EVERY

    def num_steps(self, epochs: int, batches_per_epoch: int) -> int:
        """Of the whole run. epochs: those of the task."""
        of_epochs = (self.epochs or epochs) * batches_per_epoch
        return of_epochs if self.steps is None else min(self.steps, of_epochs)
