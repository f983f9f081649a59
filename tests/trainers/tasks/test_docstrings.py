"""Docstrings of uneven lengths: padding changes nothing, and their packages are learned."""

from pathlib import Path
from unittest import mock

import numpy as np
import torch

from tests.trainers.tasks.test_tasks import refusal, trained
from trainers.tasks.docstrings import MAX_WORDS, PACKAGES, Docstrings, docstrings, pad, word_numbers
from trainers.tasks.model import TextClassifier


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
    with mock.patch("trainers.tasks.docstrings._library", return_value=tmp_path):
        assert refusal("docstrings") == f"task docstrings: {tmp_path} has no source of {', '.join(PACKAGES)}"
        (tmp_path / "http" / "test").mkdir(parents=True)
        (tmp_path / "http" / "test" / "b.py").write_text('"""This module is left out."""')
        code = '"""Words of a module."""\nclass A:\n    async def f(self):\n        """Words of a function."""\n'
        (tmp_path / "http" / "a.py").write_text(code + 'def g():\n    """Too short."""\n')
        assert list(docstrings("http")) == ["Words of a module.", "Words of a function."]
