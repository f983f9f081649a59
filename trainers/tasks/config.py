"""`ModelConfig`: the shape of the transformer; bad values are refused here, before torch is loaded."""

import math
from dataclasses import dataclass

MAX_PARAMETERS = 10**9  # more would not be a tiny transformer, and would not fit into a laptop's memory
MAX_TOKENS_PER_BATCH = 2**22
NUM_BYTE_VALUES = 256


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
        require_at_least(2, vocabulary=self.vocabulary, d_model=self.d_model)
        require_at_least(1, heads=self.heads, layers=self.layers, d_ff=self.d_ff, sequence_length=self.sequence_length)
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


def check_learning_rate(learning_rate: float) -> None:
    """Raise ValueError for a rate that is not finite or not greater than 0."""
    if not (learning_rate > 0 and math.isfinite(learning_rate)):
        raise ValueError(f"--learning-rate {learning_rate}: must be finite and greater than 0")


def check_seed(seed: int) -> None:
    """Raise ValueError for a seed that torch or NumPy would refuse."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"--seed {seed}: must be at least 0 and less than 2**63")


def require_at_least(minimum: int, **options: int | None) -> None:
    """Raise ValueError, naming the option, for a value below `minimum`; None is an option that was not given."""
    for name, value in options.items():
        if value is not None and value < minimum:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least {minimum}")
