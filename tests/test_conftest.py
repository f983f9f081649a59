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


def test_examples_count_as_in_make_test() -> None:
    """Six times as many of them are given six times as long; other tests, and fixtures, are not."""
    budget = Budget(1.0, examples=6.0)
    for name, keywords in (("drawn", ("hypothesis",)), ("plain", ())):
        report = SimpleNamespace(nodeid=f"tests/a.py::{name}", when="call", duration=12.0, keywords=keywords)
        budget.pytest_runtest_logreport(cast("pytest.TestReport", report))
    (line,) = budget.longer_than(1.0)
    assert "plain" in line


SLEEPING = """
import time
import pytest
def test_long(): time.sleep(0.5)
@pytest.mark.slow
def test_marked(): time.sleep(0.5)
"""
WITH_A_BUDGET = """
import sys, pytest
from tests import budget
budget.TEST_LIMIT_S = float(sys.argv.pop(1))
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-c", "pyproject.toml", *sys.argv[1:]], [budget.Budget(1.0)]))
"""


@pytest.mark.parametrize(
    ("limit_s", "code", "heading"), [(9.0, 0, ""), (0.4, 0, "= over the budget of time"), (0.05, 1, "the run fails =")]
)
def test_a_run_fails_that_is_far_over_its_budget(tmp_path: Path, limit_s: float, code: int, heading: str) -> None:
    """And names the test; a little over it is only named."""
    (tmp_path / "test_sleeping.py").write_text(SLEEPING)
    line = [sys.executable, "-c", WITH_A_BUDGET, str(limit_s), str(tmp_path / "test_sleeping.py")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, heading in done.stdout) == (code, True), done.stdout + done.stderr
    assert ("test_long" in done.stdout, "test_marked" in done.stdout) == (heading != "", False)
