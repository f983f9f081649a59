"""`Wine`: from thirteen chemical measurements of a wine to the one of three growers it came from."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from trainers.tasks.classifier import Classifier, Examples

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

INSTALL = "pip install 'ringsim[wine]'"
NUM_TEST = 36  # of the 178 wines, a fifth


class Wine(Classifier):
    """The wine data set that scikit-learn brings with it.

    Raises ValueError if scikit-learn is not installed.
    """

    name = "wine"
    global_batch_size = 16
    epochs = 20
    layers = (13, 64, 3)

    def __init__(self, seed: int, learning_rate: float = 3e-3) -> None:
        train, test = split(_load(), seed)
        super().__init__(train, test, seed, learning_rate)

    def optimizer(self, parameters: "Iterable[nn.Parameter]") -> "Optimizer":
        import torch

        return torch.optim.Adam(parameters, lr=self.learning_rate)


def _load() -> Examples:
    try:
        from sklearn.datasets import load_wine
    except ImportError as error:
        raise ValueError(f"task wine: needs scikit-learn ({error}): {INSTALL}") from error
    inputs, labels = load_wine(return_X_y=True)
    return Examples(inputs, labels)


def split(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Data to train on and to test with, NUM_TEST of them, chosen by `seed`.

    Features have mean 0 and deviation 1 over what is trained on: of the rest nothing is known before the test.
    """
    order = np.random.default_rng(seed).permutation(len(examples.labels))
    train, test = examples.chosen(order[NUM_TEST:]), examples.chosen(order[:NUM_TEST])
    mean, deviation = train.inputs.mean(axis=0), train.inputs.std(axis=0)
    return _standardised(train, mean, deviation), _standardised(test, mean, deviation)


def _standardised(examples: Examples, mean: np.ndarray, deviation: np.ndarray) -> Examples:
    return Examples(((examples.inputs - mean) / deviation).astype(np.float32), examples.labels.astype(np.int64))
