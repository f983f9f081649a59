"""`Mlp`: the classifier that every course begins with, 784-256-10, on data that needs no download."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainers.tasks.classifier import Classifier, Examples

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

NUM_TRAIN = 8000
NUM_TEST = 2000
DISTANCE = 4.0  # of a cluster's centre from the origin, where the noise has deviation 1 in each direction


class Mlp(Classifier):
    """Ten classes, each two clusters on opposite sides of the origin: nothing linear can tell them apart.

    The clusters overlap, so that no classifier is always right.
    """

    name = "mlp"
    global_batch_size = 64
    epochs = 5
    layers = (784, 256, 10)

    def __init__(self, seed: int, learning_rate: float = 0.2) -> None:
        train, test = draw_examples(seed, self.layers[0], self.layers[-1])
        super().__init__(train, test, seed, learning_rate)

    def optimizer(self, parameters: "Iterable[nn.Parameter]") -> "Optimizer":
        import torch

        return torch.optim.SGD(parameters, lr=self.learning_rate)


def draw_centres(rng: np.random.Generator, num_features: int, num_classes: int) -> npt.NDArray[np.float32]:
    """The centre of one cluster of each class, that of the other being opposite; (num_classes, num_features)."""
    directions = rng.standard_normal((num_classes, num_features), dtype=np.float32)
    lengths: npt.NDArray[np.float32] = np.linalg.norm(directions, axis=1, keepdims=True)
    return DISTANCE / lengths * directions


def draw_examples(seed: int, num_features: int, num_classes: int) -> tuple[Examples, Examples]:
    """Data to train on and to test with."""
    rng = np.random.default_rng(seed)
    centres = draw_centres(rng, num_features, num_classes)
    labels = rng.integers(num_classes, size=NUM_TRAIN + NUM_TEST)
    sides = rng.choice(np.array([-1, 1], dtype=np.float32), size=(len(labels), 1))
    inputs = sides * centres[labels] + rng.standard_normal((len(labels), num_features), dtype=np.float32)
    examples = Examples(inputs, labels)
    return examples.chosen(slice(NUM_TRAIN)), examples.chosen(slice(NUM_TRAIN, None))
