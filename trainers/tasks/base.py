"""`Task`: what is trained, on which data, with which loss; `evaluate`: the figures of a model on held-out data.

The training loop knows no more of a task than this.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

Config = dict[str, int | float | str]
Tokens = npt.NDArray[np.uint8] | npt.NDArray[np.int64]


class Task(Protocol):
    """What is trained.

    Building one checks its input and raises ValueError. Every rank builds its own: of the same seed, the same. The
    values may be plain attributes; an object with all these parts is a Task, whatever its class.
    """

    @property
    def name(self) -> str:
        """What reports and messages call it."""

    @property
    def num_samples(self) -> int:
        """How many samples of training data there are."""

    @property
    def global_batch_size(self) -> int:
        """Samples per step of all ranks together, unless the user gives a batch size per rank."""

    @property
    def epochs(self) -> int:
        """How many times each sample is seen, unless the user says otherwise."""

    def model(self) -> "nn.Module":
        """A new model on the CPU, its weights drawn from torch's global generator."""

    def optimizer(self, parameters: "Iterable[nn.Parameter]") -> "Optimizer":
        """What updates these parameters, which may be a part of the model's."""

    def batch(self, indices: npt.NDArray[np.int64]) -> Any:
        """These training samples as the model and the loss want them: CPU tensors, or a tuple, list or dict of them."""

    def loss(self, model: Callable[..., Any], batch: Any) -> "Tensor":
        """The mean over the samples of the batch, which is where the model is."""

    def evaluate(self, model: "nn.Module") -> dict[str, float]:
        """Figures on held-out data, by name; called in eval mode and without gradients, wherever the model is."""

    def show(self, model: "nn.Module") -> str:
        """What one should see of the trained model, "" if nothing; called as `evaluate` is."""

    def config(self) -> Config:
        """All that decides what is trained; to resume a run it must be what it was."""


def evaluate(task: Task, model: "nn.Module") -> dict[str, float | None]:
    """The task's figures on held-out data; None for one that is not finite, which JSON does not have."""
    with evaluating(model):
        figures = task.evaluate(model)
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


@contextmanager
def evaluating(model: "nn.Module") -> "Iterator[torch.device]":
    """Put `model` into eval mode and record no gradients; afterwards each module of it is in the mode it was in.

    Gives the device of the model, where its input must be.
    """
    import torch

    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield next((p.device for p in model.parameters()), torch.device("cpu"))
    finally:
        for module, training in modes:
            module.training = training
