"""`Mlp` and `Wine`: tasks whose model tells classes apart, and what they have in common."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ringsim.suggestions import to_install
from trainers.tasks.base import SeededTask, evaluating

if TYPE_CHECKING:
    from torch import Tensor, nn

NUM_TRAIN = 8000
NUM_TEST = 2000
DISTANCE = 4.0  # of a cluster's centre from the origin, where the noise has deviation 1 in each direction
NUM_TEST_WINES = 36  # of the 178 wines, a fifth


class Examples(NamedTuple):
    """inputs: (num_samples, num_features) float32. labels: (num_samples,) int64, from 0."""

    inputs: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def chosen(self, which: npt.NDArray[np.int64] | slice) -> "Examples":
        """Return the examples at these places."""
        return Examples(self.inputs[which], self.labels[which])

    def tensors(self) -> "tuple[Tensor, Tensor]":
        """Return both in the same memory."""
        import torch

        return torch.from_numpy(self.inputs), torch.from_numpy(self.labels)


class Classifier(SeededTask):
    """A task whose model gives a score for each class, and which minimises the cross entropy.

    A batch is a tuple: what the model is called with, and the labels.
    """

    def held_out(self) -> "tuple[Tensor, ...]":
        """Return the data to test with as a batch."""
        raise NotImplementedError

    def loss(self, model: Callable[..., Any], batch: "tuple[Tensor, ...]") -> "Tensor":
        from torch.nn import functional

        *inputs, labels = batch
        return functional.cross_entropy(model(*inputs), labels)

    def evaluate(self, model: "nn.Module") -> dict[str, float]:
        """Return the mean cross entropy in nats, and the share of right answers, on the test data."""
        from torch.nn import functional

        with evaluating(model) as device:
            *inputs, labels = (tensor.to(device) for tensor in self.held_out())
            scores = model(*inputs)
            loss = functional.cross_entropy(scores, labels).item()
            right = (scores.argmax(dim=1) == labels).double().mean().item()
        return {"loss": loss, "accuracy": right}


class Perceptron(Classifier):
    """A classifier with one hidden layer. layers: numbers of inputs, hidden units and classes."""

    layers: tuple[int, int, int]

    def __init__(self, train: Examples, test: Examples, seed: int, learning_rate: float) -> None:
        super().__init__(seed, learning_rate)
        self.num_samples = len(train.labels)
        self.train = train
        self.test = test

    def model(self) -> "nn.Module":
        from torch import nn

        inputs, hidden, classes = self.layers
        return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def batch(self, indices: npt.NDArray[np.int64]) -> "tuple[Tensor, ...]":
        """Return inputs and labels."""
        return self.train.chosen(indices).tensors()

    def held_out(self) -> "tuple[Tensor, ...]":
        return self.test.tensors()


class Mlp(Perceptron):
    """Ten classes, each two clusters on opposite sides of the origin: nothing linear can tell them apart.

    The clusters overlap, so that no classifier is always right.
    """

    name = "mlp"
    global_batch_size = 64
    epochs = 5
    layers = (784, 256, 10)
    optimizer_name = "SGD"

    def __init__(self, seed: int, learning_rate: float = 0.2) -> None:
        train, test = draw_examples(seed, self.layers[0], self.layers[-1])
        super().__init__(train, test, seed, learning_rate)


def draw_examples(seed: int, num_features: int, num_classes: int) -> tuple[Examples, Examples]:
    """Return data to train on and to test with."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((num_classes, num_features), dtype=np.float32)
    lengths: npt.NDArray[np.float32] = np.linalg.norm(directions, axis=1, keepdims=True)
    # Each class has two clusters: one around its centre, the other around the opposite point.
    centres = DISTANCE / lengths * directions
    labels = rng.integers(num_classes, size=NUM_TRAIN + NUM_TEST)
    sides = rng.choice(np.array([-1, 1], dtype=np.float32), size=(len(labels), 1))
    inputs = sides * centres[labels] + rng.standard_normal((len(labels), num_features), dtype=np.float32)
    examples = Examples(inputs, labels)
    return examples.chosen(slice(NUM_TRAIN)), examples.chosen(slice(NUM_TRAIN, None))


class Wine(Perceptron):
    """The wine data set that scikit-learn brings with it.

    Raises ValueError if scikit-learn is not installed.
    """

    name = "wine"
    global_batch_size = 16
    epochs = 20
    layers = (13, 64, 3)
    optimizer_name = "Adam"

    def __init__(self, seed: int, learning_rate: float = 3e-3) -> None:
        train, test = split(_load(), seed)
        super().__init__(train, test, seed, learning_rate)


def _load() -> Examples:
    try:
        from sklearn.datasets import load_wine
    except ImportError as error:
        raise ValueError(f"task wine: needs scikit-learn ({error}): {to_install('wine')}") from error
    inputs, labels = load_wine(return_X_y=True)
    return Examples(inputs, labels)


def split(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Return data to train on and to test with, NUM_TEST_WINES of them, chosen by `seed`.

    Features have mean 0 and deviation 1 over what is trained on: of the rest nothing is known before the test.
    """
    order = np.random.default_rng(seed).permutation(len(examples.labels))
    own = examples.inputs[order[NUM_TEST_WINES:]]
    inputs = ((examples.inputs - own.mean(axis=0)) / own.std(axis=0)).astype(np.float32)
    whole = Examples(inputs, examples.labels.astype(np.int64))
    return whole.chosen(order[NUM_TEST_WINES:]), whole.chosen(order[:NUM_TEST_WINES])
