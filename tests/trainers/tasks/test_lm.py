"""The language model: its tokens come from text, chance or a file; what it computes, and how it goes on."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import nn

from tests.refusals import refused, said_by
from tests.trainers.tasks.test_tasks import one_thread, refusal, trained
from trainers.tasks import load_task
from trainers.tasks.base import ModelConfig, SeededTask, check_seed
from trainers.tasks.lm import LanguageModel, english_text, read_tokens
from trainers.tasks.model import TinyTransformer, sinusoids

MODEL = ModelConfig(vocabulary=61, d_model=32, heads=4, layers=2, d_ff=64, sequence_length=12)
SMALL = {"d_model": 64, "layers": 1, "d_ff": 128, "sequence_length": 32}


REFUSED: list[Callable[[], object]] = [
    partial(ModelConfig, vocabulary=1), partial(ModelConfig, d_model=130), partial(ModelConfig, d_model=15, heads=3),
    partial(SeededTask, 0, 0.0), partial(SeededTask, 0, math.inf), partial(check_seed, -1), partial(check_seed, 2**63),
]  # fmt: skip


def test_options_that_are_refused(snapshot: SnapshotAssertion) -> None:
    """In one line with the option, its value and the rule; each bound that a message names is itself allowed."""
    assert [said_by(ValueError, make) for make in REFUSED] == snapshot
    ModelConfig(vocabulary=2, d_model=2, heads=1, layers=1, d_ff=1, sequence_length=1)
    check_seed(2**63 - 1)


def test_tokens_are_english_random_or_the_bytes_of_a_file(tmp_path: Path) -> None:
    """The text needs no download, and reads as prose; random tokens follow the seed and the vocabulary."""
    assert read_tokens("topics", ModelConfig(), seed=0).tobytes() == english_text()
    assert len(english_text()) > 300_000
    assert english_text().count(b" the ") > 2_000
    config = ModelConfig(vocabulary=300)
    tokens = read_tokens("random", config, seed=1)
    assert np.array_equal(np.unique(tokens), np.arange(300))
    assert np.array_equal(tokens, read_tokens("random", config, seed=1))
    assert not np.array_equal(tokens, read_tokens("random", config, seed=2))
    path = tmp_path / "bytes.bin"
    path.write_bytes(bytes(range(223, 256)))
    assert read_tokens(str(path), config, seed=0).tolist() == list(range(223, 256))


def test_data_that_are_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """A missing file, what is no file, text that does not fit the vocabulary, and one too short for two windows."""
    short = tmp_path / "short"
    short.write_bytes(b"x" * 21)
    assert load_task("lm", 0, data=str(short), sequence_length=10).num_samples == 1
    short.write_bytes(b"x" * 20)
    given: list[dict[str, Any]] = [
        {"data": str(tmp_path / "missing.txt")}, {"data": "/dev/zero"}, {"data": "topics", "vocabulary": 100},
        {"data": str(short), "sequence_length": 10},
    ]  # fmt: skip
    assert [refusal("lm", **options).replace(str(tmp_path), "FOLDER") for options in given] == snapshot


def tokens(*shape: int) -> torch.Tensor:
    """Random tokens, the same at every call."""
    return torch.randint(MODEL.vocabulary, shape, generator=torch.Generator().manual_seed(5))


def test_a_later_token_changes_no_earlier_logits() -> None:
    """Causality: position 7 is seen from 7 on, and from there on everywhere. A longer sequence is refused."""
    torch.manual_seed(3)
    model = TinyTransformer(MODEL)
    before = tokens(2, 12)
    after = before.clone()
    after[:, 7] = (after[:, 7] + 1) % MODEL.vocabulary
    difference = (model(after) - model(before)).abs().amax(dim=(0, 2))
    assert difference[:7].max() < 1e-6
    assert difference[7:].min() > 1e-4
    with refused("sequence of 13 tokens: must be at most `sequence_length` 12"):
        model(tokens(2, 13))


def test_positions_follow_the_paper() -> None:
    """Even columns are sines, odd ones cosines, of position / 10000 ** (column / d_model); they tell tokens apart."""
    table = sinusoids(5, 6)
    expected = [f(3 / 10_000 ** (column / 6)) for column in (0, 2, 4) for f in (math.sin, math.cos)]
    assert table.shape == (5, 6)
    assert table[3].tolist() == pytest.approx(expected, abs=1e-6)
    logits = TinyTransformer(MODEL)(torch.full((1, 12), 3))[0]
    assert not torch.allclose(logits[1], logits[2], atol=1e-4)


class Successor(nn.Module):
    """Sure that the next token is one more."""

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        return 50.0 * nn.functional.one_hot((read + 1) % 256, 256)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """1,001 bytes that count, so that each window of ten and one tells its own place."""
    path = tmp_path / "text.bin"
    path.write_bytes(bytes(index % 251 for index in range(1001)))
    return path


def test_windows_cover_the_text_once(text: Path) -> None:
    """Each token is predicted in one window, and those held out are the last tenth, on which the loss is taken."""
    task = LanguageModel(seed=0, data=str(text), sequence_length=10)
    assert (task.num_samples, task.held_out.tolist()) == (90, list(range(90, 100)))
    windows = task.batch(np.arange(100))
    assert windows.dtype == torch.int64
    assert windows[:, 1:].flatten().tolist() == list(text.read_bytes()[1:])
    assert windows[:, 0].tolist() == list(text.read_bytes()[:1000:10])
    held_out = text.read_bytes()[901:]  # the first token of the first window is only read
    assert task.evaluate(Successor())["loss"] == pytest.approx(50 * held_out.count(0) / len(held_out), abs=1e-3)


def test_much_held_out_text_is_sampled_evenly(tmp_path: Path) -> None:
    """At most 1,024 windows of it, from its beginning to its end; none of them is trained on."""
    path = tmp_path / "long"
    path.write_bytes(bytes(25_001))
    task = LanguageModel(seed=0, data=str(path), sequence_length=1)
    assert task.num_samples == 22_500
    assert task.held_out.tolist() == list(range(22_500, 25_000, 3))


def test_it_learns() -> None:
    """A small one, in 100 steps: from 8 bits a byte, a guess, to less than 4.2 on text that it has not seen.

    The loss of random tokens cannot come below that of guessing, which is what makes them of use.
    """
    task = load_task("lm", 0, **SMALL)
    torch.manual_seed(0)
    assert task.evaluate(task.model())["bits_per_byte"] == pytest.approx(8, abs=0.1)
    after = task.evaluate(trained(task, seed=0, steps=100))
    assert after["bits_per_byte"] < 4.2
    assert after["loss"] == pytest.approx(after["bits_per_byte"] * math.log(2))
    random = load_task("lm", 0, data="random", vocabulary=300, **SMALL)  # with no text to show
    assert random.show(random.model()) == ""
    assert random.evaluate(random.model()) == {"loss": pytest.approx(math.log(300), abs=0.05)}


@pytest.mark.slow
def test_the_default_one_learns() -> None:
    """In 100 of its 615 steps: from 5.5 nats a byte, a guess, to at most 2.4 on text that it has not seen."""
    task = load_task("lm", 0)
    assert task.evaluate(trained(task, seed=0, steps=100))["loss"] < 2.4


@one_thread()
def test_a_continuation_is_shown_and_draws_nothing_from_torch() -> None:
    """The end of the text and 200 bytes, the same ones again, and the global generator as it was.

    The logits of a model that has diverged are no numbers: still no error.
    """
    task = load_task("lm", 0, **SMALL)
    torch.manual_seed(8)
    model = task.model()
    state = torch.get_rng_state()
    shown = task.show(model)
    assert torch.equal(torch.get_rng_state(), state)
    head, _, continuation = shown.partition("\n\ncontinued by the model:\n")
    assert head == f"the end of the text:\n{english_text()[-32:].decode()}"
    assert 0 < len(continuation) <= 200
    assert shown.replace("\n", "").isprintable()  # though an untrained model draws any bytes
    assert "\ufffd" in continuation
    assert task.show(model) == shown
    assert load_task("lm", 1, **SMALL).show(model) != shown
    nn.init.constant_(model.head.bias, math.nan)
    assert "continued by the model" in task.show(model)


def test_a_configuration_says_what_is_trained(text: Path, tmp_path: Path) -> None:
    """It differs as soon as anything does that decides it, and not if the same bytes have another name."""
    copy, other = tmp_path / "copy", tmp_path / "other"
    copy.write_bytes(text.read_bytes())
    other.write_bytes(text.read_bytes()[::-1])
    config = load_task("lm", 0, data=str(text)).config()
    assert load_task("lm", 0, data=str(copy)).config() == config
    assert (config["task"], config["d_model"], config["learning_rate"]) == ("lm", ModelConfig().d_model, 3e-3)
    for seed, path, options in ((0, other, {}), (1, text, {}), (0, text, {"d_ff": 8})):
        assert load_task("lm", seed, data=str(path), **options).config() != config
