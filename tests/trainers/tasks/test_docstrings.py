"""Docstrings of uneven lengths: padding changes nothing, and their packages are learned."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from tests.trainers.tasks.test_tasks import refusal, trained
from trainers.tasks.docstrings import MAX_WORDS, PACKAGES, Docstrings, docstrings, pad, word_numbers
from trainers.tasks.model import TextClassifier


@pytest.fixture(scope="module")
def task() -> Docstrings:
    """Made once, since it reads a part of the standard library."""
    return Docstrings(seed=0)


def test_batches_are_padded_to_their_longest(task: Docstrings) -> None:
    """With a mask of the words; the labels of one seed are those of another order, and no text is in both parts."""
    indices = np.array([3, 0, 7, 4])
    words, mask, labels = task.batch(indices)
    lengths = mask.sum(dim=1).tolist()
    assert words.shape == mask.shape == (4, max(lengths))
    assert len(set(lengths)) > 1
    assert max(lengths) <= MAX_WORDS
    assert all(row[:n].all() and not row[n:].any() for row, n in zip(words, lengths, strict=True))
    assert labels.tolist() == [task.batch(indices[n : n + 1]).labels.item() for n in range(4)]
    assert task.config() == Docstrings(seed=0).config() != Docstrings(seed=1).config()


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
    assert not gradients[0][0].any()


def test_words_have_the_same_numbers_in_every_process() -> None:
    """Which Python's own hash would not give."""
    assert word_numbers("Return the Queue's size.").tolist() == [2459, 634, 4027, 3043, 20, 357, 3999]
    assert 0 not in word_numbers("a b c d e f g")


def test_a_python_without_its_source_is_told(tmp_path: Path) -> None:
    """In a line."""
    with mock.patch("trainers.tasks.docstrings._library", return_value=tmp_path):
        assert refusal("docstrings") == f"task docstrings: {tmp_path} has no source of {', '.join(PACKAGES)}"


def test_docstrings_are_those_of_the_source(tmp_path: Path) -> None:
    """Of modules, classes and functions, with at least a few words; those of tests are not."""
    (tmp_path / "http" / "test").mkdir(parents=True)
    (tmp_path / "http" / "test" / "b.py").write_text('"""This is left out."""')
    code = '"""Words of a module."""\nclass A:\n    async def f(self):\n        """Words of a function."""\n'
    (tmp_path / "http" / "a.py").write_text(code + 'def g():\n    """Too short."""\n')
    with mock.patch("trainers.tasks.docstrings._library", return_value=tmp_path):
        assert list(docstrings("http")) == ["Words of a module.", "Words of a function."]


def test_packages_are_learned(task: Docstrings) -> None:
    """In a part of the epochs far beyond the most frequent package, which is every sixth."""
    after = task.evaluate(trained(task, seed=0, steps=120))
    assert after["accuracy"] > 0.5
