"""Each task learns what it is said to learn, and what cannot be trained is refused in one line."""

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from trainers.cli.settings import _as_it_reads
from trainers.loop.batches import Batches
from trainers.tasks import TASK_NAMES, load_task
from trainers.tasks.base import ModelConfig, Task, evaluating
from trainers.tasks.classifier import NUM_TEST_WINES, Examples, Mlp, split
from trainers.tasks.lm import LanguageModel, english_text, printable

SMALL = {"d_model": 64, "layers": 1, "d_ff": 128, "sequence_length": 32}


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread in the block: small models are no faster with several, which wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def trained(task: Task, seed: int, steps: int | None = None) -> nn.Module:
    """The model after a plain loop of one process over the task's epochs, or over `steps`."""
    torch.manual_seed(seed)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    batches = Batches(task.num_samples, task.global_batch_size, seed, rank=0, num_ranks=1)
    for step in range(task.epochs * batches.batches_per_epoch if steps is None else steps):
        optimizer.zero_grad()
        task.loss(model, task.batch(batches.share(step).indices)).backward()
        optimizer.step()
    return model


def refusal(name: str, seed: int = 0, **options: object) -> str:
    """The message with which `load_task` refuses."""
    with pytest.raises(ValueError, match=r"^(--|task )") as caught:
        load_task(name, seed, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def mlp() -> Mlp:
    """Made once, since its data takes a while to draw."""
    return Mlp(seed=0)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """1,001 bytes that count, so that each window of ten and one tells its own place."""
    path = tmp_path / "text.bin"
    path.write_bytes(bytes(index % 251 for index in range(1001)))
    return path


def test_tasks_are_checked_without_torch() -> None:
    """Making a task, with its data, loads neither torch nor scikit-learn that another one needs."""
    body = """
import sys
from trainers.loop.batches import Batches
from trainers.tasks import load_task
for name in ("lm", "mlp"):
    Batches(load_task(name, 3).num_samples, 32, 3, 0, 4).share(0)
print([name for name in ("torch", "sklearn", "matplotlib") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


def test_the_mlp_learns(mlp: Mlp) -> None:
    """From one in ten to nine in ten right of samples it has not seen, on which it starts by guessing."""
    torch.manual_seed(0)
    before = mlp.evaluate(mlp.model())
    assert before["accuracy"] == pytest.approx(0.1, abs=0.05)
    assert before["loss"] == pytest.approx(math.log(10), abs=0.2)
    after = mlp.evaluate(trained(mlp, seed=0))
    assert after["accuracy"] >= 0.9
    assert after["loss"] < 0.35


def test_the_mlps_data_needs_a_hidden_layer(mlp: Mlp) -> None:
    """The best linear classifier of the data hardly does better than chance."""
    inputs = np.column_stack([mlp.train.inputs, np.ones(mlp.num_samples)])
    weights = np.linalg.solve(inputs.T @ inputs, inputs.T @ np.eye(10)[mlp.train.labels])
    right = (np.column_stack([mlp.test.inputs, np.ones(len(mlp.test.labels))]) @ weights).argmax(axis=1)
    assert (right == mlp.test.labels).mean() < 0.15


def test_the_mlps_data_follow_the_seed(mlp: Mlp) -> None:
    """The same seed gives the same bits, another seed other data; test data are others than those to train on."""
    again, other = Mlp(seed=0), Mlp(seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(mlp.train + mlp.test, again.train + again.test, strict=True))
    assert not np.array_equal(mlp.train.inputs, other.train.inputs)
    assert not set(mlp.train.inputs[:, 0]) >= set(mlp.test.inputs[:, 0])
    assert mlp.batch(np.array([5, 2]))[1].tolist() == mlp.train.labels[[5, 2]].tolist()
    assert mlp.batch(np.array([5, 2]))[0].tolist() == mlp.train.inputs[[5, 2]].tolist()


@pytest.mark.parametrize("seed", range(2))
def test_wine_is_learned(seed: int) -> None:
    """At least nine in ten of the wines it has not seen, whichever those are."""
    pytest.importorskip("sklearn")
    task = load_task("wine", seed)
    assert task.num_samples == 178 - NUM_TEST_WINES
    assert task.evaluate(trained(task, seed))["accuracy"] >= 0.9


def test_wine_is_split_and_standardised_by_what_is_trained_on() -> None:
    """No sample is in both parts or in none, and the test data have no part in mean and deviation."""
    inputs = np.random.default_rng(1).normal(loc=[5, -300], scale=[0.1, 40], size=(178, 2))
    inputs[:, 1] = np.round(inputs[:, 1])
    parts = split(Examples(inputs, np.arange(178)), seed=4)
    assert sorted(np.concatenate([part.labels for part in parts])) == list(range(178))
    train, test = parts
    assert len(test.labels) == NUM_TEST_WINES
    assert train.inputs.mean(axis=0) == pytest.approx([0, 0], abs=1e-5)
    assert train.inputs.std(axis=0) == pytest.approx([1, 1], abs=1e-5)
    own = inputs[train.labels]
    expected = (inputs[test.labels] - own.mean(axis=0)) / own.std(axis=0)
    assert test.inputs == pytest.approx(expected, abs=1e-4)
    assert not np.array_equal(test.labels, split(Examples(inputs, np.arange(178)), seed=5)[1].labels)


def test_wine_without_scikit_learn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to install it."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    message = refusal("wine")
    assert message.startswith("task wine: needs scikit-learn (")
    assert message.endswith("): run pip install '.[wine]' in your clone of ringsim")


def test_the_language_model_learns() -> None:
    """A small one, in 100 steps: from 8 bits a byte, a guess, to less than 4.2 on text that it has not seen."""
    task = load_task("lm", 0, **SMALL)
    torch.manual_seed(0)
    before = task.evaluate(task.model())
    assert before["bits_per_byte"] == pytest.approx(8, abs=0.1)
    after = task.evaluate(trained(task, seed=0, steps=100))
    assert after["bits_per_byte"] < 4.2
    assert after["loss"] == pytest.approx(after["bits_per_byte"] * math.log(2))


@pytest.mark.slow
def test_the_default_language_model_learns() -> None:
    """In 100 of its 615 steps: from 5.5 nats a byte, a guess, to at most 2.4 on text that it has not seen."""
    task = load_task("lm", 0)
    assert task.evaluate(trained(task, seed=0, steps=100))["loss"] < 2.4


def test_windows_cover_the_text_once(text: Path) -> None:
    """Each token is predicted in one window, and those held out are the last tenth."""
    task = LanguageModel(seed=0, data=str(text), sequence_length=10)
    assert (task.num_samples, task.held_out.tolist()) == (90, list(range(90, 100)))
    windows = task.batch(np.arange(100))
    assert windows.dtype == torch.int64
    assert windows[:, 1:].flatten().tolist() == list(text.read_bytes()[1:])
    assert windows[:, 0].tolist() == list(text.read_bytes()[:1000:10])


def test_held_out_loss_is_that_of_the_held_out_text(text: Path) -> None:
    """A model that is sure of token + 1, and wrong only where the text starts again, has this loss on it."""

    class Successor(nn.Module):
        def forward(self, read: torch.Tensor) -> torch.Tensor:
            return 50.0 * nn.functional.one_hot((read + 1) % 256, 256)

    task = LanguageModel(seed=0, data=str(text), sequence_length=10)
    held_out = text.read_bytes()[901:]  # the first token of the first window is only read
    assert task.evaluate(Successor())["loss"] == pytest.approx(50 * held_out.count(0) / len(held_out), abs=1e-3)


def test_much_held_out_text_is_sampled_evenly(tmp_path: Path) -> None:
    """At most 1,024 windows of it, from its beginning to its end; none of them is trained on."""
    path = tmp_path / "long"
    path.write_bytes(bytes(25_001))
    task = LanguageModel(seed=0, data=str(path), sequence_length=1)
    assert task.num_samples == 22_500
    assert task.held_out.tolist() == list(range(22_500, 25_000, 3))


def test_a_text_too_short_for_two_windows_is_refused(tmp_path: Path) -> None:
    """One to train on and one to test with, which share a token."""
    path = tmp_path / "short"
    path.write_bytes(b"x" * 21)
    assert load_task("lm", 0, data=str(path), sequence_length=10).num_samples == 1
    path.write_bytes(b"x" * 20)
    assert refusal("lm", data=str(path), sequence_length=10) == (
        f"--data {path}: has 20 tokens (bytes), but to train and to test on it with --sequence-length 10 needs "
        "at least 21"
    )


@one_thread()
def test_a_continuation_is_shown_and_draws_nothing_from_torch() -> None:
    """The end of the text and 200 bytes, the same ones again, and the global generator as it was."""
    task = load_task("lm", 0, **SMALL)
    torch.manual_seed(8)
    model = task.model()
    state = torch.get_rng_state()
    shown = task.show(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    head, _, continuation = shown.partition("\n\ncontinued by the model:\n")
    assert head == f"the end of the text:\n{english_text()[-32:].decode()}"
    assert 0 < len(continuation) <= 200
    assert shown.replace("\n", "").isprintable()
    assert task.show(model) == shown
    assert load_task("lm", 1, **SMALL).show(model) != shown


@one_thread()
def test_a_diverged_model_is_shown_too() -> None:
    """No logits are numbers any more: still no error."""
    task = load_task("lm", 0, **SMALL)
    model = task.model()
    nn.init.constant_(model.head.bias, math.nan)
    assert "continued by the model" in task.show(model)


def test_what_is_no_text_is_made_printable() -> None:
    """Lines stay lines; what cannot be shown is replaced, and so never reaches the terminal."""
    assert (
        printable("eins\n\N{EURO SIGN}".encode() + b"\xff\x1b[31m\r\0")
        == "eins\n\N{EURO SIGN}" + "�" * 2 + "[31m" + "�" * 2
    )


def test_random_tokens_have_no_text_to_show() -> None:
    """And their loss cannot come below that of guessing, which is what makes them of use."""
    task = load_task("lm", 0, data="random", vocabulary=300, **SMALL)
    model = task.model()
    assert task.show(model) == ""
    assert task.evaluate(model) == {"loss": pytest.approx(math.log(300), abs=0.05)}


def test_a_configuration_says_what_is_trained(text: Path, tmp_path: Path) -> None:
    """It differs as soon as anything does that decides it, and not if the same bytes have another name."""
    copy, other = tmp_path / "copy", tmp_path / "other"
    copy.write_bytes(text.read_bytes())
    other.write_bytes(text.read_bytes()[::-1])
    config = load_task("lm", 0, data=str(text)).config()
    assert load_task("lm", 0, data=str(copy)).config() == config
    assert (config["task"], config["d_model"], config["learning_rate"]) == ("lm", ModelConfig().d_model, 3e-3)
    assert load_task("lm", 0, data=str(other)).config() != config
    assert load_task("lm", 1, data=str(text)).config() != config
    assert load_task("lm", 0, data=str(text), d_ff=8).config() != config
    assert Mlp(seed=0, learning_rate=0.5).config() == {"task": "mlp", "seed": 0, "learning_rate": 0.5}


def test_judging_leaves_a_model_as_it_was() -> None:
    """Each part in its own mode, with gradients recorded again, even after an error."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2).eval())
    seen = []

    def judge() -> None:
        with evaluating(model) as device:
            seen.append((device.type, {module.training for module in model.modules()}, torch.is_grad_enabled()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        judge()
    assert seen == [("cpu", {False}, False)]
    assert [module.training for module in model.modules()] == [True, True, True, False]
    assert torch.is_grad_enabled()


def test_what_no_task_can_be_made_of_is_refused() -> None:
    """A name, a seed, an option or a value that will not do: in one line with the rule."""
    assert TASK_NAMES == ("lm", "mlp", "wine", "docstrings")
    assert refusal("mpl") == (
        "task 'mpl': is not one of lm, mlp, wine, docstrings; or give your own as MODULE:FUNCTION; did you mean mlp?"
    )
    assert refusal("mlp", -1) == "--seed -1: must be at least 0 and less than 2**63"
    assert refusal("mlp", d_model=64) == "--d-model: the task mlp has no such option; it has --learning-rate"


@pytest.mark.parametrize("text", ["[" * 10**5, "9" * 5000, "[1"], ids=["deep", "huge", "cut"])
def test_an_option_that_is_no_json_is_text(text: str) -> None:
    """Of a user's task, whatever it looks like."""
    assert _as_it_reads(text) == text
