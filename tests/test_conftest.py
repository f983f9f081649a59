"""The tests themselves, as a script starts them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
IGNORING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *sys.argv[1:]])
"""


def test_in_the_background_of_a_script_what_is_started_hears_of_ctrl_c() -> None:
    """There SIGINT is ignored, and whoever is started inherits that."""
    tests = ["tests/ringsim/console/test_local_ranks.py", "-k", "ends_all_ranks and function"]
    command = [sys.executable, "-c", IGNORING, *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout
