"""The suite itself: signals that a script ignores, and the budget of time."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
budget.TEST_LIMIT_S, fails = float(sys.argv.pop(1)), sys.argv.pop(1) == "fails"
line = ["-q", "-p", "no:cacheprovider", "-c", "pyproject.toml", *sys.argv[1:]]
sys.exit(pytest.main(line, [budget.Budget(1.0, fails=fails)]))
"""


@pytest.mark.parametrize(
    ("limit_s", "fails", "code", "heading"),
    [
        (9.0, "fails", 0, ""),
        (0.4, "fails", 0, "= over the budget of time"),
        (0.05, "fails", 1, "the run fails ="),
        (0.05, "names", 0, "= over 5 times the budget of time"),
    ],
)
def test_a_run_fails_that_is_far_over_its_budget(
    tmp_path: Path, limit_s: float, fails: str, code: int, heading: str
) -> None:
    """And names the test; a little over it, or without `make test`, is only named."""
    (tmp_path / "test_sleeping.py").write_text(SLEEPING)
    line = [sys.executable, "-c", WITH_A_BUDGET, str(limit_s), fails, str(tmp_path / "test_sleeping.py")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, heading in done.stdout) == (code, True), done.stdout + done.stderr
    assert ("test_long" in done.stdout, "test_marked" in done.stdout) == (heading != "", False)
