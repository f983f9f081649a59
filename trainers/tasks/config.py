"""`ModelConfig`, `TrainConfig`, `Job`: what is trained and how; bad values are refused here, before torch is loaded."""

import math
from dataclasses import dataclass
from pathlib import Path

MAX_PARAMETERS = 10**9  # more would not be a tiny transformer, and would not fit into a laptop's memory
MAX_TOKENS_PER_BATCH = 2**22
RESULTS = ("checkpoint.pt", "report.png", "report.json")  # what the main job leaves in --output


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a `TinyTransformer`.

    d_model: numbers per token; d_ff: numbers per token inside an MLP; sequence_length: the most tokens it sees at once.

    Raises ValueError for a size that is too small or does not fit the others.
    """

    vocabulary: int = 256
    d_model: int = 128
    heads: int = 4
    layers: int = 2
    d_ff: int = 512
    sequence_length: int = 64

    def __post_init__(self) -> None:
        _require_at_least(2, vocabulary=self.vocabulary, d_model=self.d_model)
        _require_at_least(1, heads=self.heads, layers=self.layers, d_ff=self.d_ff, sequence_length=self.sequence_length)
        if self.d_model % self.heads:
            raise ValueError(f"--d-model {self.d_model}: must be divisible by --heads {self.heads}")
        if self.d_model % 2:
            raise ValueError(f"--d-model {self.d_model}: must be even (positions are pairs of a sine and a cosine)")
        if self.sequence_length > MAX_TOKENS_PER_BATCH:
            raise ValueError(f"--sequence-length {self.sequence_length}: must be at most {MAX_TOKENS_PER_BATCH}")
        block = 4 * self.d_model**2 + 2 * self.d_model * self.d_ff
        if (about := 2 * self.vocabulary * self.d_model + self.layers * block) > MAX_PARAMETERS:
            raise ValueError(
                f"--vocabulary {self.vocabulary}, --d-model {self.d_model}, --layers {self.layers}, "
                f"--d-ff {self.d_ff}: the model would have some {about:.1e} parameters, more than {MAX_PARAMETERS:.0e}"
            )


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How a model is trained.

    batch_size: sequences per rank and step; seed: of the weights and of the batches.

    Raises ValueError for a value out of range.
    """

    batch_size: int = 8
    steps: int = 100
    learning_rate: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        _require_at_least(1, batch_size=self.batch_size, steps=self.steps)
        if self.batch_size > MAX_TOKENS_PER_BATCH:
            raise ValueError(f"--batch-size {self.batch_size}: must be at most {MAX_TOKENS_PER_BATCH}")
        check_learning_rate(self.learning_rate)
        check_seed(self.seed)


def check_learning_rate(learning_rate: float) -> None:
    """Raise ValueError for a rate that is not finite or not greater than 0."""
    if not (learning_rate > 0 and math.isfinite(learning_rate)):
        raise ValueError(f"--learning-rate {learning_rate}: must be finite and greater than 0")


def check_seed(seed: int) -> None:
    """Raise ValueError for a seed that torch or NumPy would refuse."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"--seed {seed}: must be at least 0 and less than 2**63")


@dataclass(frozen=True, slots=True)
class Job:
    """What the main job is asked to do. profile: where to save the profile of a step, if anywhere."""

    model: ModelConfig
    train: TrainConfig
    data: str
    strategies: tuple[str, ...]
    profile: Path | None = None


def _require_at_least(minimum: int, **options: int) -> None:
    for name, value in options.items():
        if value < minimum:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least {minimum}")
