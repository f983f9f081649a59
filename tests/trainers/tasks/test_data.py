"""Tokens come from text, chance or a file, and every rank draws its batches from its own share of them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from trainers.tasks.config import ModelConfig, TrainConfig
from trainers.tasks.data import Shard, english_text, load_tokens

MODEL = ModelConfig(sequence_length=10)
TRAIN = TrainConfig(batch_size=6, seed=17)
NUM_RANKS = 3


@pytest.fixture
def shards() -> list[Shard]:
    """Shares of 0, 1, 2, ...: a token is its own position in the whole."""
    return [Shard(np.arange(200), rank, NUM_RANKS, MODEL, TRAIN) for rank in range(NUM_RANKS)]


def refusal(source: str, config: ModelConfig = MODEL, num_ranks: int = NUM_RANKS) -> str:
    """The message with which `load_tokens` refuses."""
    with pytest.raises(ValueError, match=r"^--") as caught:
        load_tokens(source, config, num_ranks, seed=0)
    return str(caught.value)


def test_topics_are_english() -> None:
    """The default text needs no download, is long enough to learn from, and reads as prose."""
    tokens = load_tokens("topics", MODEL, NUM_RANKS, seed=0)
    assert tokens.tobytes() == english_text()
    assert len(tokens) > 300_000
    assert english_text().count(b" the ") > 2_000


def test_random_tokens_follow_the_seed_and_the_vocabulary() -> None:
    """Every token of the vocabulary occurs, none above it, and only the seed decides which."""
    config = ModelConfig(vocabulary=300)
    tokens = load_tokens("random", config, NUM_RANKS, seed=1)
    assert np.array_equal(np.unique(tokens), np.arange(300))
    assert np.array_equal(tokens, load_tokens("random", config, NUM_RANKS, seed=1))
    assert not np.array_equal(tokens, load_tokens("random", config, NUM_RANKS, seed=2))


def test_a_files_bytes_are_the_tokens(tmp_path: Path) -> None:
    """Any file will do, down to the shortest that gives every rank one sequence and the token after it."""
    path = tmp_path / "bytes.bin"
    content = bytes(range(223, 256))  # 3 ranks * (10 + 1)
    path.write_bytes(content)
    tokens = load_tokens(str(path), MODEL, NUM_RANKS, seed=0)
    assert tokens.tolist() == list(content)
    last = Shard(tokens, 2, NUM_RANKS, MODEL, TRAIN)
    assert last.batch(0).tolist() == [list(range(245, 256))] * 6


def test_a_text_that_is_too_short_is_refused(tmp_path: Path) -> None:
    """The message says how much there is and how much it takes."""
    path = tmp_path / "short.txt"
    path.write_bytes(b"x" * 32)
    assert refusal(str(path)) == (
        f"--data {path}: has 32 tokens (bytes), but 3 ranks with --sequence-length 10 need at least 33"
    )


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
    assert load_tokens("random", config, NUM_RANKS, seed=0).max() == 99


def test_shards_are_disjoint_and_cover_the_data(shards: list[Shard]) -> None:
    """Joined in rank order they are the whole, and none is longer than another by more than one token."""
    assert np.concatenate([shard.tokens for shard in shards]).tolist() == list(range(200))
    assert sorted(len(shard.tokens) for shard in shards) == [66, 67, 67]


def test_windows_are_contiguous_and_stay_inside_the_shard(shards: list[Shard]) -> None:
    """Over many steps they reach both ends of their own shard and never a neighbour's tokens."""
    windows = torch.cat([shards[1].batch(step) for step in range(200)])
    assert windows.shape == (200 * 6, 11)
    assert windows.dtype == torch.int64
    assert torch.equal(windows - windows[:, :1], torch.arange(11).expand(1200, 11))
    assert (windows.min(), windows.max()) == (shards[1].tokens[0], shards[1].tokens[-1])


def test_a_batch_depends_on_seed_rank_and_step_alone(shards: list[Shard]) -> None:
    """Asked again, out of order, it is the same; another seed, rank or step gives other windows."""
    batch = shards[1].batch(4)
    shards[1].batch(9)
    assert torch.equal(batch, shards[1].batch(4))
    others = {
        "step": shards[1].batch(5),
        "seed": Shard(np.arange(200), 1, NUM_RANKS, MODEL, TrainConfig(batch_size=6, seed=18)).batch(4),
        # Of the same tokens, so that only the choice of windows can differ.
        "rank": Shard(np.arange(66, 66 + 67 * 5), 0, 5, MODEL, TRAIN).batch(4),
    }
    assert [name for name, other in others.items() if torch.equal(batch, other)] == []
