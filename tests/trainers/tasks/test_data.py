"""Tokens come from text, chance or a file."""

from pathlib import Path

import numpy as np
import pytest

from trainers.tasks.config import ModelConfig
from trainers.tasks.lm import english_text, read_tokens

MODEL = ModelConfig(sequence_length=10)


def refusal(source: str, config: ModelConfig = MODEL) -> str:
    """The message with which `read_tokens` refuses."""
    with pytest.raises(ValueError, match=r"^--") as caught:
        read_tokens(source, config, seed=0)
    return str(caught.value)


def test_topics_are_english() -> None:
    """The default text needs no download, is long enough to learn from, and reads as prose."""
    tokens = read_tokens("topics", MODEL, seed=0)
    assert tokens.tobytes() == english_text()
    assert len(tokens) > 300_000
    assert english_text().count(b" the ") > 2_000


def test_random_tokens_follow_the_seed_and_the_vocabulary() -> None:
    """Every token of the vocabulary occurs, none above it, and only the seed decides which."""
    config = ModelConfig(vocabulary=300)
    tokens = read_tokens("random", config, seed=1)
    assert np.array_equal(np.unique(tokens), np.arange(300))
    assert np.array_equal(tokens, read_tokens("random", config, seed=1))
    assert not np.array_equal(tokens, read_tokens("random", config, seed=2))


def test_a_files_bytes_are_the_tokens(tmp_path: Path) -> None:
    """Any file will do."""
    path = tmp_path / "bytes.bin"
    content = bytes(range(223, 256))
    path.write_bytes(content)
    tokens = read_tokens(str(path), MODEL, seed=0)
    assert tokens.tolist() == list(content)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A missing file, and what is no file, are named with the reason."""
    missing = tmp_path / "missing.txt"
    assert refusal(str(missing)) == f"--data {missing}: cannot be read: No such file or directory"
    assert refusal(str(tmp_path)) == f"--data {tmp_path}: cannot be read: not a regular file"
    assert refusal("/dev/zero") == "--data /dev/zero: cannot be read: not a regular file"


def test_bytes_need_256_tokens() -> None:
    """A vocabulary that has no place for some bytes is refused for text, and fine for random tokens."""
    config = ModelConfig(vocabulary=100)
    assert refusal("topics", config) == "--vocabulary 100: byte tokens need at least 256"
    assert read_tokens("random", config, seed=0).max() == 99
