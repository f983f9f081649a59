"""`Task`: the model, data and loss to train; `ModelConfig`: the shape of the transformer. Loads no torch."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

MAX_PARAMETERS = 10**9  # more would not fit into a laptop's memory
MAX_TOKENS_PER_BATCH = 2**22
NUM_BYTE_VALUES = 256
Config = dict[str, int | float | str]
Tokens = npt.NDArray[np.uint8] | npt.NDArray[np.int64]


class Task(Protocol):
    """The protocol of a task: a model with its data and its optimizer.

    Every rank makes an equal task from the seed. Plain attributes may implement the properties.
    """

    @property
    def name(self) -> str:
        """The name in reports and messages."""

    @property
    def num_samples(self) -> int:
        """The number of training samples."""

    @property
    def global_batch_size(self) -> int:
        """The default samples per step over all ranks."""

    @property
    def epochs(self) -> int:
        """The default number of epochs."""

    def model(self) -> "nn.Module":
        """Return a new model on the CPU, with weights from torch's global generator."""

    def optimizer(self, parameters: "Iterable[nn.Parameter]") -> "Optimizer":
        """Return an optimizer of these parameters, perhaps some of the model's."""

    def batch(self, indices: npt.NDArray[np.int64]) -> Any:
        """Return these training samples: CPU tensors, or a tuple, list or dict of them."""

    def loss(self, model: Callable[..., Any], batch: Any) -> "Tensor":
        """Return the mean loss over the batch, which is on the model's device."""

    def evaluate(self, model: "nn.Module") -> dict[str, float]:
        """Return figures on held-out data, by name; called in eval mode without gradients, on any device."""

    def show(self, model: "nn.Module") -> str:
        """Return a text about the trained model, or ""; called like `evaluate`."""

    def config(self) -> Config:
        """Return all settings that determine the training; a run resumes only with equal ones."""


class SeededTask:
    """The common parts of built-in tasks. optimizer_name: a class in torch.optim."""

    name: str
    options: tuple[str, ...] = ("learning_rate",)
    optimizer_name = "AdamW"

    def __init__(self, seed: int, learning_rate: float) -> None:
        if not (learning_rate > 0 and math.isfinite(learning_rate)):
            raise ValueError(f"`learning_rate` {learning_rate}: must be finite and greater than 0")
        self.seed = seed
        self.learning_rate = learning_rate

    def optimizer(self, parameters: "Iterable[nn.Parameter]") -> "Optimizer":
        import torch

        optimizer: Optimizer = getattr(torch.optim, self.optimizer_name)(parameters, lr=self.learning_rate)
        return optimizer

    def show(self, model: "nn.Module") -> str:  # noqa: ARG002  # the figures say what there is to see
        return ""

    def config(self) -> Config:
        return {"task": self.name, "seed": self.seed, "learning_rate": self.learning_rate}


def evaluate(task: Task, model: "nn.Module") -> dict[str, float | None]:
    """Return the task's figures on held-out data; None replaces values that are not finite."""
    with evaluating(model):
        figures = task.evaluate(model)
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def format_figures(figures: Mapping[str, float | None]) -> str:
    """Format figures on held-out data; None becomes nan."""
    return ", ".join(f"{name} {'nan' if value is None else f'{value:.4f}'}" for name, value in figures.items())


@contextmanager
def evaluating(model: "nn.Module") -> "Iterator[torch.device]":
    """Put `model` into eval mode without gradients for the block; yield its device."""
    import torch

    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield next((p.device for p in model.parameters()), torch.device("cpu"))
    finally:
        for module, training in modes:
            module.training = training


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a `TinyTransformer`.

    d_model: width; d_ff: width inside an MLP; sequence_length: maximum number of tokens. Raises ValueError for sizes
    that are too small or do not fit.
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
            raise ValueError(f"`d_model` {self.d_model}: must be divisible by `heads` {self.heads}")
        if self.d_model % 2:
            raise ValueError(f"`d_model` {self.d_model}: must be even (positions are pairs of a sine and a cosine)")
        if self.sequence_length > MAX_TOKENS_PER_BATCH:
            raise ValueError(f"`sequence_length` {self.sequence_length}: must be at most {MAX_TOKENS_PER_BATCH}")
        block = 4 * self.d_model**2 + 2 * self.d_model * self.d_ff
        if (about := 2 * self.vocabulary * self.d_model + self.layers * block) > MAX_PARAMETERS:
            raise ValueError(
                f"`vocabulary` {self.vocabulary}, `d_model` {self.d_model}, `layers` {self.layers}, "
                f"`d_ff` {self.d_ff}: the model would have some {about:.1e} parameters, more than {MAX_PARAMETERS:.0e}"
            )


def flag(name: str) -> str:
    """Return the command-line option of a parameter: --learning-rate for learning_rate."""
    return f"--{name.replace('_', '-')}"


def check_seed(seed: int) -> None:
    """Raise ValueError for a seed that torch or NumPy refuses."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"`seed` {seed}: must be at least 0 and less than 2**63")


def require_at_least(minimum: int, **options: int | None) -> None:
    """Raise ValueError, naming the option, for a value below `minimum`, not for None."""
    for name, value in options.items():
        if value is not None and value < minimum:
            raise ValueError(f"`{name}` {value}: must be at least {minimum}")
