"""The language model: its tokens come from text, chance or a file; what it computes, and how it goes on."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.refusals import refused, said_by
from trainers.tasks.base import ModelConfig, SeededTask, check_seed
from trainers.tasks.lm import english_text, read_tokens
from trainers.tasks.model import TinyTransformer, next_token_loss, sinusoids

MODEL = ModelConfig(sequence_length=10)
SMALL = ModelConfig(vocabulary=61, d_model=32, heads=4, layers=2, d_ff=64, sequence_length=12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": 1}, "--vocabulary 1: must be at least 2"),
        ({"d_model": 0}, "--d-model 0: must be at least 2"),
        ({"heads": 0}, "--heads 0: must be at least 1"),
        ({"layers": 0}, "--layers 0: must be at least 1"),
        ({"d_ff": -3}, "--d-ff -3: must be at least 1"),
        ({"sequence_length": 0}, "--sequence-length 0: must be at least 1"),
        ({"d_model": 130}, "--d-model 130: must be divisible by --heads 4"),
        ({"d_model": 15, "heads": 3}, "--d-model 15: must be even (positions are pairs of a sine and a cosine)"),
    ],
)
def test_model_config_refuses(options: dict[str, int], message: str) -> None:
    """A model that cannot be built is refused in one line with the option, its value and the rule."""
    with refused(message):
        ModelConfig(**options)


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (partial(SeededTask, 0), 0.0, "--learning-rate 0.0: must be finite and greater than 0"),
        (partial(SeededTask, 0), float("nan"), "--learning-rate nan: must be finite and greater than 0"),
        (partial(SeededTask, 0), float("inf"), "--learning-rate inf: must be finite and greater than 0"),
        (check_seed, -1, "--seed -1: must be at least 0 and less than 2**63"),
        (check_seed, 2**63, f"--seed {2**63}: must be at least 0 and less than 2**63"),
    ],
)
def test_what_all_tasks_have_is_checked(check: Callable[[float], object], value: float, message: str) -> None:
    """In one line with the option, its value and the rule."""
    with refused(message):
        check(value)


def test_the_smallest_and_largest_values_are_accepted() -> None:
    """Each bound that a message names is itself allowed."""
    model = ModelConfig(vocabulary=2, d_model=2, heads=1, layers=1, d_ff=1, sequence_length=1)
    SeededTask(0, 1e-12)
    check_seed(2**63 - 1)
    assert model.d_model == 2


def refusal(source: str, config: ModelConfig = MODEL) -> str:
    """The message with which `read_tokens` refuses."""
    return said_by(ValueError, read_tokens, source, config, seed=0)


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


@pytest.fixture
def model() -> TinyTransformer:
    """An untrained model, the same in every test."""
    torch.manual_seed(3)
    return TinyTransformer(SMALL)


def tokens(*shape: int) -> torch.Tensor:
    """Random tokens, the same at every call."""
    return torch.randint(SMALL.vocabulary, shape, generator=torch.Generator().manual_seed(5))


def test_a_later_token_changes_no_earlier_logits(model: TinyTransformer) -> None:
    """Causality: position 7 is seen from 7 on, and from there on everywhere."""
    before = tokens(2, 12)
    after = before.clone()
    after[:, 7] = (after[:, 7] + 1) % SMALL.vocabulary
    difference = (model(after) - model(before)).abs().amax(dim=(0, 2))
    assert difference[:7].max() < 1e-6
    assert difference[7:].min() > 1e-4


def test_positions_tell_the_order_of_tokens() -> None:
    """Swapping two earlier tokens changes the logits, and without positions would not."""
    torch.manual_seed(3)
    # One layer, since a second one could tell the order from what each position has seen; doubles, to see it exactly.
    model = TinyTransformer(replace(SMALL, layers=1)).double()
    forwards = tokens(1, 6)
    swapped = forwards[:, [1, 0, 2, 3, 4, 5]]
    assert forwards[0, 0] != forwards[0, 1]
    assert (model(forwards)[0, -1] - model(swapped)[0, -1]).abs().max() > 1e-6
    model.positions.zero_()
    assert (model(forwards)[0, -1] - model(swapped)[0, -1]).abs().max() < 1e-12


def test_positions_follow_the_paper() -> None:
    """Even columns are sines, odd ones cosines, of position / 10000 ** (column / d_model)."""
    table = sinusoids(5, 6)
    expected = [f(3 / 10_000 ** (column / 6)) for column in (0, 2, 4) for f in (math.sin, math.cos)]
    assert table.shape == (5, 6)
    assert table[3].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_loss_is_that_of_the_next_token() -> None:
    """A model that is sure of token + 1 has no loss on counting up, and a large one on counting down."""

    class Successor(torch.nn.Module):
        def forward(self, read: torch.Tensor) -> torch.Tensor:
            return 50.0 * torch.nn.functional.one_hot(read + 1, 20)

    up = torch.arange(1, 12).unsqueeze(0)
    assert next_token_loss(Successor(), up).item() == pytest.approx(0, abs=1e-6)
    assert next_token_loss(Successor(), up.flip(1)).item() == pytest.approx(50, abs=1e-3)


def test_every_parameter_gets_a_gradient(model: TinyTransformer) -> None:
    """No parameter is left out: a rank that waits for its gradient to be synchronised would wait for ever."""
    next_token_loss(model, tokens(8, 13)).backward()  # type: ignore[no-untyped-call]
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


def test_the_same_seed_makes_the_same_weights(model: TinyTransformer) -> None:
    """Ranks start equal by seeding alike, and differ otherwise."""
    torch.manual_seed(3)
    again = TinyTransformer(SMALL)
    other = TinyTransformer(SMALL)
    pairs = list(zip(model.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(model.head.weight, other.head.weight)


def test_a_sequence_that_is_too_long_is_refused(model: TinyTransformer) -> None:
    """The message has both lengths; a shorter sequence is welcome."""
    assert model(tokens(2, 5)).shape == (2, 5, 61)
    with pytest.raises(ValueError, match=r"^sequence of 13 tokens: must be at most --sequence-length 12$"):
        model(tokens(2, 13))
