"""`Docstrings`: from a docstring of the standard library to the package in which it stands."""

import ast
import hashlib
import re
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from trainers.tasks.base import Config
from trainers.tasks.classifier import Classifier

if TYPE_CHECKING:
    from torch import Tensor, nn

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml")
VOCABULARY = 4096  # words are hashed; 0 is no word, but what pads a docstring
MAX_WORDS = 64
MIN_WORDS = 4
WORD = re.compile(r"[A-Za-z_]+|[^\sA-Za-z_]")
NUM_TEST = 5  # one docstring in so many

Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Words = npt.NDArray[np.int64]


class Padded(NamedTuple):
    """Docstrings of uneven lengths in one tensor.

    words: (batch, longest) int64, 0 after the end of each. mask: of the same shape, True where there is a word.
    labels: (batch,) int64, places in PACKAGES.
    """

    words: "Tensor"
    mask: "Tensor"
    labels: "Tensor"


class Docstrings(Classifier):
    """Real text of uneven lengths: batches are padded to their longest docstring, and the model sees a mask.

    Raises ValueError where Python comes without the source of its library.
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
        num_test = len(texts) // NUM_TEST
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
    """Yield the docstrings of a package of the standard library that have some words, file by file."""
    for path in sorted((_library() / package).rglob("*.py")):
        if "test" in path.parts:
            continue
        for text in _of_definitions(ast.parse(path.read_bytes())):
            if len(WORD.findall(text)) >= MIN_WORDS:
                yield text


def _of_definitions(node: Definition) -> Iterator[str]:
    """Yield the docstrings of a module, a class or a function and of all that is defined directly in it."""
    yield ast.get_docstring(node) or ""
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _of_definitions(inner)


def word_numbers(text: str) -> Words:
    """Return the first words of a text as numbers from 1, the same in every process: (at most MAX_WORDS,)."""
    words = WORD.findall(text.lower())[:MAX_WORDS]
    return np.array([1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words], dtype=np.int64)


def pad(rows: Sequence[Words]) -> Words:
    """Return the rows below one another, with zeros after the end of each: (len(rows), longest)."""
    padded = np.zeros((len(rows), max(len(row) for row in rows)), dtype=np.int64)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))
