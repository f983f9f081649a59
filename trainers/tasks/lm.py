"""`LanguageModel`: a tiny transformer that predicts the next byte of a text; checks data before torch is loaded."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, fields
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ringsim.files import read_regular
from trainers.tasks.base import NUM_BYTE_VALUES, Config, ModelConfig, SeededTask, Tokens, evaluating

if TYPE_CHECKING:
    from torch import Tensor, nn

NUM_RANDOM_TOKENS = 2**19  # about as many as the English text has
LEARNING_RATE = 3e-3
HELD_OUT = 10  # one window in so many, at the end of the text
MAX_EVALUATED = 1024  # held-out windows: of a long text evenly spaced ones have to do
TOKENS_AT_ONCE = 4096
SHOWN_BYTES = 200


def english_text() -> bytes:
    """Return Python's help pages, some 466,000 bytes; versions differ a little."""
    return "\n".join(topics[name] for name in sorted(topics)).encode()


def read_tokens(source: str, config: ModelConfig, seed: int) -> Tokens:
    """Return tokens, (num_tokens,). Raises ValueError for an unreadable source or too small a vocabulary.

    source: "topics": `english_text`; "random": uniformly drawn; otherwise a file whose bytes are the tokens.
    """
    if source == "random":
        return np.random.default_rng(seed).integers(config.vocabulary, size=NUM_RANDOM_TOKENS)
    if config.vocabulary < NUM_BYTE_VALUES:
        raise ValueError(f"`vocabulary` {config.vocabulary}: byte tokens need at least {NUM_BYTE_VALUES}")
    text = english_text() if source == "topics" else read_regular(source, f"`data` {source}")
    return np.frombuffer(text, dtype=np.uint8)


class LanguageModel(SeededTask):
    """Training on non-overlapping windows of a text, and evaluation on its last tenth.

    Samples have sequence_length + 1 tokens. Raises ValueError for bad sizes (`ModelConfig`) or data (`read_tokens`).
    """

    name = "lm"
    global_batch_size = 32
    epochs = 3
    options = ("data", "learning_rate", *(field.name for field in fields(ModelConfig)))

    def __init__(self, seed: int, data: str = "topics", learning_rate: float = LEARNING_RATE, **sizes: int) -> None:
        super().__init__(seed, learning_rate)
        self.model_config = ModelConfig(**sizes)
        self.tokens = read_tokens(data, self.model_config, seed)
        self.is_text = data != "random"
        length = self.tokens_per_sample = self.model_config.sequence_length
        num_windows = (len(self.tokens) - 1) // length
        if num_windows < 2:
            raise ValueError(
                f"`data` {data}: has {len(self.tokens)} tokens (bytes), but to train and to test on it with "
                f"`sequence_length` {length} needs at least {2 * length + 1}"
            )
        held_out = max(1, num_windows // HELD_OUT)
        self.num_samples = num_windows - held_out
        self.held_out = np.arange(self.num_samples, num_windows)[:: -(-held_out // MAX_EVALUATED)]

    def model(self) -> "nn.Module":
        from trainers.tasks.model import TinyTransformer

        return TinyTransformer(self.model_config)

    def batch(self, indices: npt.NDArray[np.int64]) -> "Tensor":
        """Return windows, (len(indices), sequence_length + 1) int64; neighbours share one token."""
        import torch

        length = self.model_config.sequence_length
        windows = self.tokens[indices[:, np.newaxis] * length + np.arange(length + 1)]
        return torch.from_numpy(windows.astype(np.int64))

    def loss(self, model: Callable[..., Any], batch: "Tensor") -> "Tensor":
        from trainers.tasks.model import next_token_loss

        return next_token_loss(model, batch)

    def evaluate(self, model: "nn.Module") -> dict[str, float]:
        """Return the mean loss of held-out tokens in nats; for a text also in bits per byte."""
        total = 0.0
        with evaluating(model) as device:
            at_once = max(1, TOKENS_AT_ONCE // self.model_config.sequence_length)
            for start in range(0, len(self.held_out), at_once):
                indices = self.held_out[start : start + at_once]
                total += len(indices) * self.loss(model, self.batch(indices).to(device)).item()
        loss = total / len(self.held_out)
        return {"loss": loss, "bits_per_byte": loss / math.log(2)} if self.is_text else {"loss": loss}

    def show(self, model: "nn.Module") -> str:
        from trainers.tasks.model import continue_text

        if not self.is_text:
            return ""
        length = self.model_config.sequence_length
        prompt = self.tokens[-length:].tobytes()
        drawn = continue_text(model, length, prompt, SHOWN_BYTES, self.seed)
        return f"the end of the text:\n{printable(prompt)}\n\ncontinued by the model:\n{printable(drawn)}"

    def config(self) -> Config:
        return {
            **super().config(),
            **asdict(self.model_config),
            # Not the name of the file: another path to the same bytes is the same task, other bytes are not.
            "data_sha256": hashlib.sha256(self.tokens.data).hexdigest(),
        }


def printable(text: bytes) -> str:
    """Decode bytes as text; replace invalid bytes and unprintable characters."""
    shown = text.decode(errors="replace")
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in shown)
