"""The suite itself: signals that a script ignores, and the budget of time."""

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.budget import Budget

ROOT = Path(__file__).parents[1]
IGNORING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *sys.argv[1:]])
"""


def test_ctrl_c_is_heard() -> None:
    """By this process, and so by the programs that tests start."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_is_heard_in_the_background_of_a_script() -> None:
    """SIGINT is ignored there, and a process inherits that from its parent."""
    command = [sys.executable, "-c", IGNORING, f"{__file__}::{test_ctrl_c_is_heard.__name__}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout


def budget_of(*phases: tuple[str, str, float], marks: tuple[str, ...] = ()) -> Budget:
    """Return the budget after reports of (test, phase, seconds), on a machine of the reference's speed."""
    budget = Budget(1.0)
    for name, when, duration_s in phases:
        report = SimpleNamespace(nodeid=f"tests/{name}", when=when, duration=duration_s, keywords=marks)
        budget.pytest_runtest_logreport(cast("pytest.TestReport", report))
    return budget


@pytest.mark.parametrize(
    ("phases", "late"),
    [
        ([("a.py::one", "setup", 15.0), ("a.py::one", "call", 2.0)], []),
        ([("a.py::one", "setup", 19.0), ("a.py::one", "call", 2.0)], ["a.py"]),
        ([("a.py::one", "call", 4.0), ("a.py::two", "call", 5.0)], ["a.py::two", "a.py::one"]),
    ],
)
def test_a_test_and_a_file_have_their_limits(phases: list[Any], late: list[str]) -> None:
    """Fixtures, which tests share, count for the file."""
    lines = list(budget_of(*phases).longer_than(1.0))
    assert [line.partition("tests/")[2].partition(": ")[0] for line in lines] == late
    assert not list(budget_of(*phases, marks=("slow",)).longer_than(1.0))
