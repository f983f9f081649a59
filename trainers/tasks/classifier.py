"""`Classifier`: what the tasks have in common whose model tells classes apart."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainers.tasks.base import Config
from trainers.tasks.config import check_learning_rate
from trainers.tasks.evaluating import evaluating

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


class Examples(NamedTuple):
    """inputs: (num_samples, num_features) float32. labels: (num_samples,) int64, from 0."""

    inputs: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def chosen(self, which: npt.NDArray[np.int64] | slice) -> "Examples":
        """Those of them."""
        return Examples(self.inputs[which], self.labels[which])


class Classifier:
    """A task whose model has one hidden layer and minimises the cross entropy; what a kind of data needs, it adds.

    layers: numbers of inputs, hidden units and classes.
    """

    name: str
    global_batch_size: int
    epochs: int
    layers: tuple[int, int, int]
    options = ("learning_rate",)

    def __init__(self, train: Examples, test: Examples, seed: int, learning_rate: float) -> None:
        check_learning_rate(learning_rate)
        self.num_samples = len(train.labels)
        self.train = train
        self.test = test
        self.seed = seed
        self.learning_rate = learning_rate

    def model(self) -> "nn.Module":
        from torch import nn

        inputs, hidden, classes = self.layers
        return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def optimizer(self, parameters: "Iterable[nn.Parameter]") -> "Optimizer":
        raise NotImplementedError

    def batch(self, indices: npt.NDArray[np.int64]) -> "tuple[Tensor, Tensor]":
        """Inputs and labels."""
        return _tensors(self.train, indices)

    def loss(self, model: Callable[..., Any], batch: "tuple[Tensor, Tensor]") -> "Tensor":
        from torch.nn import functional

        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels)

    def evaluate(self, model: "nn.Module") -> dict[str, float]:
        """Mean cross entropy in nats, and the share of right answers, on the test data."""
        from torch.nn import functional

        with evaluating(model) as device:
            inputs, labels = (tensor.to(device) for tensor in _tensors(self.test, np.arange(len(self.test.labels))))
            scores = model(inputs)
            loss = functional.cross_entropy(scores, labels).item()
            right = (scores.argmax(dim=1) == labels).double().mean().item()
        return {"loss": loss, "accuracy": right}

    def show(self, model: "nn.Module") -> str:  # noqa: ARG002  # what there is to see, the accuracy says
        return ""

    def config(self) -> Config:
        return {"task": self.name, "seed": self.seed, "learning_rate": self.learning_rate}


def _tensors(examples: Examples, indices: npt.NDArray[np.int64]) -> "tuple[Tensor, Tensor]":
    import torch

    inputs, labels = examples.chosen(indices)
    return torch.from_numpy(inputs), torch.from_numpy(labels)
