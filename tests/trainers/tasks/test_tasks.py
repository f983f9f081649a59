"""Each task learns what it is said to learn, and what cannot be trained is refused in one line."""

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from tests.refusals import said_by
from trainers.cli.options import _as_it_reads
from trainers.loop.batches import Batches
from trainers.tasks import load_task
from trainers.tasks.base import Task, evaluating
from trainers.tasks.classifier import (
    MAX_WORDS,
    NUM_TEST_WINES,
    PACKAGES,
    Docstrings,
    Examples,
    Mlp,
    docstrings,
    pad,
    split,
    word_numbers,
)
from trainers.tasks.model import TextClassifier


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
    message = said_by(ValueError, load_task, name, seed, **options)
    assert message.startswith(("`", "task "))
    assert "\n" not in message
    return message


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


def test_the_mlp_learns() -> None:
    """From one in ten to nine in ten right of samples it has not seen, on which it starts by guessing.

    The best linear classifier of the data hardly does better than chance. Data follow the seed.
    """
    mlp = Mlp(seed=0)
    torch.manual_seed(0)
    before = mlp.evaluate(mlp.model())
    assert before["accuracy"] == pytest.approx(0.1, abs=0.05)
    assert before["loss"] == pytest.approx(math.log(10), abs=0.2)
    after = mlp.evaluate(trained(mlp, seed=0))
    assert after["accuracy"] >= 0.9
    assert after["loss"] < 0.35
    inputs = np.column_stack([mlp.train.inputs, np.ones(mlp.num_samples)])
    weights = np.linalg.solve(inputs.T @ inputs, inputs.T @ np.eye(10)[mlp.train.labels])
    right = (np.column_stack([mlp.test.inputs, np.ones(len(mlp.test.labels))]) @ weights).argmax(axis=1)
    assert (right == mlp.test.labels).mean() < 0.15
    again = Mlp(seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(mlp.train + mlp.test, again.train + again.test, strict=True))
    assert not np.array_equal(mlp.train.inputs, Mlp(seed=1).train.inputs)
    assert not set(mlp.train.inputs[:, 0]) >= set(mlp.test.inputs[:, 0])
    assert Mlp(seed=0, learning_rate=0.5).config() == {"task": "mlp", "seed": 0, "learning_rate": 0.5}


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
    train, test = parts = split(Examples(inputs, np.arange(178)), seed=4)
    assert sorted(np.concatenate([part.labels for part in parts])) == list(range(178))
    assert len(test.labels) == NUM_TEST_WINES
    own = inputs[train.labels]
    for part in parts:
        expected = (inputs[part.labels] - own.mean(axis=0)) / own.std(axis=0)
        assert part.inputs == pytest.approx(expected, abs=1e-4)
    assert not np.array_equal(test.labels, split(Examples(inputs, np.arange(178)), seed=5)[1].labels)


def test_wine_without_scikit_learn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to install it."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    message = refusal("wine")
    assert message.startswith("task wine: needs scikit-learn (")
    assert message.endswith("): run pip install '.[wine]' in your clone of ringsim")


def test_judging_leaves_a_model_as_it_was() -> None:
    """Each part in its own mode, with gradients recorded again, even after an error."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2).eval())
    with pytest.raises(ZeroDivisionError), evaluating(model) as device:  # noqa: PT012
        assert device.type == "cpu"
        assert {module.training for module in model.modules()} == {torch.is_grad_enabled()} == {False}
        raise ZeroDivisionError
    assert [module.training for module in model.modules()] == [True, True, True, False]
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("text", ["[" * 10**5, "9" * 5000, "[1"], ids=["deep", "huge", "cut"])
def test_an_option_that_is_no_json_is_text(text: str) -> None:
    """Of a user's task, whatever it looks like."""
    assert _as_it_reads(text) == text


def test_packages_are_learned_from_padded_batches() -> None:
    """Far better than by the most frequent package, which is every sixth; a label does not depend on the batch."""
    task = Docstrings(seed=0)
    indices = np.array([3, 0, 7, 4])
    words, mask, labels = task.batch(indices)
    lengths = mask.sum(dim=1).tolist()
    assert words.shape == mask.shape == (4, max(lengths))
    assert len(set(lengths)) > 1
    assert max(lengths) <= MAX_WORDS
    assert all(row[:n].all() and not row[n:].any() for row, n in zip(words, lengths, strict=True))
    assert labels.tolist() == [task.batch(indices[n : n + 1]).labels.item() for n in range(4)]
    assert task.config() != Docstrings(seed=1).config()
    assert task.evaluate(trained(task, seed=0, steps=120))["accuracy"] > 0.5


def test_what_pads_a_text_changes_no_score() -> None:
    """Nor any gradient: a text alone is as it is beside a longer one."""
    torch.manual_seed(0)
    model = TextClassifier(100, 3).eval()
    short, long = np.array([5, 2, 9]), np.arange(1, 12)
    both, alone = torch.from_numpy(pad([short, long])), torch.from_numpy(pad([short]))
    scores = model(both, both > 0)[:1]
    expected = model(alone, alone > 0)
    torch.testing.assert_close(scores, expected)
    gradients = [torch.autograd.grad(each.pow(2).sum(), model.embedding.weight)[0] for each in (scores, expected)]
    torch.testing.assert_close(*gradients)


def test_words_have_the_same_numbers_in_every_process() -> None:
    """Which Python's own hash would not give."""
    assert word_numbers("Return the Queue's size.").tolist() == [2459, 634, 4027, 3043, 20, 357, 3999]


def test_docstrings_are_those_of_the_source(tmp_path: Path) -> None:
    """Of modules, classes and functions, with at least a few words; those of tests are not; none is an error."""
    with mock.patch("trainers.tasks.classifier._library", return_value=tmp_path):
        assert refusal("docstrings") == f"task docstrings: {tmp_path} has no source of {', '.join(PACKAGES)}"
        (tmp_path / "http" / "test").mkdir(parents=True)
        (tmp_path / "http" / "test" / "b.py").write_text('"""This module is left out."""')
        code = '"""Words of a module."""\nclass A:\n    async def f(self):\n        """Words of a function."""\n'
        (tmp_path / "http" / "a.py").write_text(code + 'def g():\n    """Too short."""\n')
        assert list(docstrings("http")) == ["Words of a module.", "Words of a function."]
