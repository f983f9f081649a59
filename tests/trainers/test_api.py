"""Exports of `trainers`, and the examples in their docstrings."""

import doctest
import os
import signal
import sys
from pathlib import Path

import pytest

import trainers
from tests.forked import be_a_program, nursery

WITH_EXAMPLES = ("DataParallel", "STRATEGIES", "Trainer", "spawn")


def test_what_is_public_is_there() -> None:
    """Under its name, and listed; nothing else is made up."""
    for name in trainers.__all__:
        assert getattr(trainers, name) is not None
        assert name in dir(trainers)
    with pytest.raises(AttributeError, match=r"^module 'trainers' has no attribute 'Sharding'$"):
        _ = trainers.Sharding


def run_examples(name: str, folder: Path) -> None:
    """Exit with the number of examples that fail; what is said of them is in a file."""
    os.chdir(folder)
    os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT), 1)
    thing = getattr(trainers, name)
    document = thing if isinstance(thing.__doc__, str) and not isinstance(thing, dict) else trainers.strategies
    examples = doctest.DocTestParser().get_doctest(document.__doc__ or "", {}, name, None, 0)
    assert examples.examples
    runner = doctest.DocTestRunner()
    runner.run(examples)
    sys.stdout.flush()
    sys.exit(runner.summarize().failed)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_do_what_they_show(name: str, tmp_path: Path) -> None:
    """Each in a process of its own, which has a process group of its own."""
    process = nursery().fork(tmp_path / "errors")
    process.start(be_a_program, run_examples, name, tmp_path)
    try:
        assert process.wait(120) == 0, (tmp_path / "said").read_text()
    finally:
        process.signal(signal.SIGKILL)
