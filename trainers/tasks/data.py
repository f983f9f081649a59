"""The tokens a language model is trained on.

Loading and checking is done with NumPy alone: a bad `--data` is reported before torch is loaded.
"""

from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt

from trainers.tasks.config import ModelConfig

Tokens = npt.NDArray[np.uint8] | npt.NDArray[np.int64]

NUM_BYTE_VALUES = 256
NUM_RANDOM_TOKENS = 2**19  # about as many as the English text has


def english_text() -> bytes:
    """The help pages that every Python brings with it, some 466,000 bytes; they differ a little between versions."""
    return "\n".join(topics[name] for name in sorted(topics)).encode()


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
