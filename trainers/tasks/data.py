"""The tokens a model is trained on, and the `Shard` of them that belongs to one rank.

Loading and checking is done with NumPy alone: a bad `--data` is reported before torch is loaded.
"""

from pathlib import Path
from pydoc_data.topics import topics
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ringsim.schedule import partition
from trainers.tasks.config import ModelConfig, TrainConfig

if TYPE_CHECKING:
    import torch

Tokens = npt.NDArray[np.uint8] | npt.NDArray[np.int64]

NUM_BYTE_VALUES = 256
NUM_RANDOM_TOKENS = 2**19  # about as many as the English text has


def english_text() -> bytes:
    """The help pages that every Python brings with it, some 466,000 bytes; they differ a little between versions."""
    return "\n".join(topics[name] for name in sorted(topics)).encode()


def load_tokens(source: str, config: ModelConfig, num_ranks: int, seed: int) -> Tokens:
    """The tokens of all ranks, as `read_tokens` has them.

    Raises ValueError as that does, and if a rank's share is shorter than one sequence and the token after it.
    """
    tokens = read_tokens(source, config, seed)
    needed = num_ranks * (config.sequence_length + 1)
    if len(tokens) < needed:
        raise ValueError(
            f"--data {source}: has {len(tokens)} tokens (bytes), but {num_ranks} ranks with "
            f"--sequence-length {config.sequence_length} need at least {needed}"
        )
    return tokens


def read_tokens(source: str, config: ModelConfig, seed: int) -> Tokens:
    """Tokens, shape (num_tokens,).

    source: "topics", `english_text`; "random", drawn uniformly from the vocabulary, so nothing can be learned but
    that; otherwise the path of a file, whose bytes are the tokens (./random for a file called random).

    Raises ValueError if the source cannot be read or its bytes do not fit the vocabulary.
    """
    if source == "random":
        return _random_tokens(config.vocabulary, seed)
    return _byte_tokens(source, config.vocabulary)


def _random_tokens(vocabulary: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(vocabulary, size=NUM_RANDOM_TOKENS)


def _byte_tokens(source: str, vocabulary: int) -> npt.NDArray[np.uint8]:
    if vocabulary < NUM_BYTE_VALUES:
        raise ValueError(f"--vocabulary {vocabulary}: byte tokens need at least {NUM_BYTE_VALUES}")
    text = english_text() if source == "topics" else _read(source)
    return np.frombuffer(text, dtype=np.uint8)


def _read(source: str) -> bytes:
    path = Path(source)
    try:
        # Every rank reads it for itself, and a pipe or a device would keep the second rank waiting for ever.
        if path.exists() and not path.is_file():
            raise ValueError(f"--data {source}: cannot be read: not a regular file")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"--data {source}: cannot be read: {error.strerror}") from error


class Shard:
    """One rank's share of the tokens: contiguous, and equal to the other ranks' to within one token."""

    def __init__(self, tokens: Tokens, rank: int, num_ranks: int, model: ModelConfig, train: TrainConfig) -> None:
        bounds = partition(len(tokens), num_ranks)
        self.tokens = tokens[bounds[rank] : bounds[rank + 1]]
        self._rank = rank
        self._seed = train.seed
        self._batch_size = train.batch_size
        self._window = model.sequence_length + 1

    def batch(self, step: int) -> "torch.Tensor":
        """Random windows of the shard, shape (batch_size, sequence_length + 1), int64.

        Depends on the seed, the rank and the step only, so every way to synchronise gradients sees the same batches.
        """
        import torch  # takes seconds, which the checks above must not wait for

        # (rank, step) as a spawn key: entropy (seed, 0, 0) would be the stream that the random tokens are drawn from.
        rng = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(self._rank, step)))
        starts = rng.integers(len(self.tokens) - self._window + 1, size=(self._batch_size, 1))
        windows = self.tokens[starts + np.arange(self._window)]
        return torch.from_numpy(windows.astype(np.int64))
