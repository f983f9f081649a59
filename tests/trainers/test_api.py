"""What `from trainers import ...` gives, and the examples in the docstrings of it."""

import subprocess
import sys
from pathlib import Path

import pytest

import trainers

WITH_EXAMPLES = ("DataParallel", "STRATEGIES", "Trainer", "spawn")


def test_what_is_public_is_there() -> None:
    """Under its name, and listed; nothing else is made up."""
    for name in trainers.__all__:
        assert getattr(trainers, name) is not None
        assert name in dir(trainers)
    with pytest.raises(AttributeError, match=r"^module 'trainers' has no attribute 'Sharding'$"):
        _ = trainers.Sharding


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_do_what_they_show(name: str, tmp_path: Path) -> None:
    """Each in a process of its own, which has a process group of its own."""
    code = f"""
import doctest, sys, trainers
thing = trainers.{name}
document = thing if isinstance(thing.__doc__, str) and not isinstance(thing, dict) else trainers.strategies
examples = doctest.DocTestParser().get_doctest(document.__doc__, {{}}, "{name}", None, 0)
assert examples.examples
runner = doctest.DocTestRunner()
runner.run(examples)
sys.exit(runner.summarize().failed)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
