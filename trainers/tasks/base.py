"""`Task`: what is trained, on which data, with which loss; the training loop knows no more of it than this."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Config = dict[str, int | float | str]


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
