"""Classification tasks: `Mlp`, `Wine`, and `Docstrings`, which sorts text by package."""

import ast
import hashlib
import re
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ringsim.suggestions import to_install
from trainers.tasks.base import Config, SeededTask, evaluating

if TYPE_CHECKING:
    from torch import Tensor, nn

NUM_TRAIN = 8000
NUM_TEST = 2000
DISTANCE = 4.0  # of a cluster's centre from the origin, where the noise has deviation 1 in each direction
NUM_TEST_WINES = 36  # of the 178 wines, a fifth
PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml")
VOCABULARY = 4096  # words are hashed; 0 is no word, but what pads a docstring
MAX_WORDS = 64
MIN_WORDS = 4
WORD = re.compile(r"[A-Za-z_]+|[^\sA-Za-z_]")
TEST_SHARE = 5  # one docstring in so many is for testing
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Words = npt.NDArray[np.int64]


class Examples(NamedTuple):
    """inputs: (num_samples, num_features) float32. labels: (num_samples,) int64, from 0."""

    inputs: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def chosen(self, which: npt.NDArray[np.int64] | slice) -> "Examples":
        return Examples(self.inputs[which], self.labels[which])

    def tensors(self) -> "tuple[Tensor, Tensor]":
        import torch

        return torch.from_numpy(self.inputs), torch.from_numpy(self.labels)


class Classifier(SeededTask):
    """A task with a cross-entropy loss; a batch is a tuple of the model's inputs and the labels."""

    def held_out(self) -> "tuple[Tensor, ...]":
        raise NotImplementedError

    def loss(self, model: Callable[..., Any], batch: "tuple[Tensor, ...]") -> "Tensor":
        from torch.nn import functional

        *inputs, labels = batch
        return functional.cross_entropy(model(*inputs), labels)

    def evaluate(self, model: "nn.Module") -> dict[str, float]:
        """Return the mean cross entropy in nats and the accuracy on the test data."""
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
        return self.train.chosen(indices).tensors()

    def held_out(self) -> "tuple[Tensor, ...]":
        return self.test.tensors()


class Mlp(Perceptron):
    """Ten classes of two overlapping clusters on opposite sides of the origin: no linear model separates them."""

    name = "mlp"
    global_batch_size = 64
    epochs = 5
    layers = (784, 256, 10)
    optimizer_name = "SGD"

    def __init__(self, seed: int, learning_rate: float = 0.2) -> None:
        train, test = draw_examples(seed, self.layers[0], self.layers[-1])
        super().__init__(train, test, seed, learning_rate)


def draw_examples(seed: int, num_features: int, num_classes: int) -> tuple[Examples, Examples]:
    """Draw training and test data."""
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
    """The wine data set of scikit-learn. Raises ValueError if scikit-learn is not installed."""

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
    """Return training data and NUM_TEST_WINES test examples, chosen by `seed`.

    Features have mean 0 and deviation 1 over the training data.
    """
    order = np.random.default_rng(seed).permutation(len(examples.labels))
    own = examples.inputs[order[NUM_TEST_WINES:]]
    inputs = ((examples.inputs - own.mean(axis=0)) / own.std(axis=0)).astype(np.float32)
    whole = Examples(inputs, examples.labels.astype(np.int64))
    return whole.chosen(order[NUM_TEST_WINES:]), whole.chosen(order[:NUM_TEST_WINES])


class Padded(NamedTuple):
    """Docstrings of different lengths in one tensor.

    words: (batch, longest) int64, padded with 0. mask: same shape, True for words. labels: (batch,) int64.
    """

    words: "Tensor"
    mask: "Tensor"
    labels: "Tensor"


class Docstrings(Classifier):
    """Classification of the standard library's docstrings by package, with padded batches and a mask.

    Raises ValueError if the source of the library is not installed.
    """

    name = "docstrings"
    global_batch_size = 32
    epochs = 8

    def __init__(self, seed: int, learning_rate: float = 3e-3) -> None:
        super().__init__(seed, learning_rate)
        texts = sorted({(text, label) for label, name in enumerate(PACKAGES) for text in docstrings(name)})
        if not texts:
            raise ValueError(f"task docstrings: {_library()} has no source of {', '.join(PACKAGES)}")
        order = np.random.default_rng(seed).permutation(len(texts))
        self._digest = hashlib.sha256(repr(texts).encode()).hexdigest()
        self._words = [word_numbers(texts[place][0]) for place in order]
        self._labels = np.array([texts[place][1] for place in order], dtype=np.int64)
        num_test = len(texts) // TEST_SHARE
        self.num_samples = len(texts) - num_test
        self._test = np.arange(self.num_samples, len(texts))

    def model(self) -> "nn.Module":
        from trainers.tasks.model import TextClassifier

        return TextClassifier(VOCABULARY, len(PACKAGES))

    def batch(self, indices: npt.NDArray[np.int64]) -> Padded:
        import torch

        words = pad([self._words[index] for index in indices])
        return Padded(torch.from_numpy(words), torch.from_numpy(words > 0), torch.from_numpy(self._labels[indices]))

    def held_out(self) -> Padded:
        return self.batch(self._test)

    def config(self) -> Config:
        return {**super().config(), "data_sha256": self._digest}  # another version of Python has other docstrings


def docstrings(package: str) -> Iterator[str]:
    """Yield the docstrings of at least MIN_WORDS words in a package of the standard library."""
    for path in sorted((_library() / package).rglob("*.py")):
        if "test" in path.parts:
            continue
        for text in _of_definitions(ast.parse(path.read_bytes())):
            if len(WORD.findall(text)) >= MIN_WORDS:
                yield text


def _of_definitions(node: Definition) -> Iterator[str]:
    yield ast.get_docstring(node) or ""
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _of_definitions(inner)


def word_numbers(text: str) -> Words:
    """Hash a text's first words to numbers from 1, (at most MAX_WORDS,), alike in every process."""
    words = WORD.findall(text.lower())[:MAX_WORDS]
    return np.array([1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words], dtype=np.int64)


def pad(rows: Sequence[Words]) -> Words:
    """Pad the rows with zeros to the longest: (len(rows), longest)."""
    padded = np.zeros((len(rows), max(len(row) for row in rows)), dtype=np.int64)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))
