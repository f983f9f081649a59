"""Tests of `trainers.launch.termination`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.launch.termination import is_under_torchrun

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60
# The main thread is where Python cannot run a handler: in C, as one that waits for a peer is.
PROGRAM = """
import ctypes, sys, threading, time
from trainers.launch.termination import delay_termination

failing = threading.Event()
if sys.argv[1] != "works":
    failing.set()
delay_termination(failing.is_set, grace_s=float(sys.argv[2]))

def explain():
    time.sleep(0.5)
    print("the first rank to fail was rank 1", flush=True)
    import os; os._exit(1)

print("ready", flush=True)
if sys.argv[1] == "explains":
    sys.stdin.readline()
    threading.Thread(target=explain).start()
pause = ctypes.CDLL(None).usleep
while True:  # a signal ends it
    pause(10**6)
"""


def ended(state: str, grace_s: float) -> tuple[int, str]:
    """The exit code, and what was said, of a program in that state that gets SIGTERM."""
    command = [sys.executable, "-c", PROGRAM, state, str(grace_s)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == "ready\n"
            process.stdin.write("\n")
            process.stdin.flush()
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    return process.returncode, said


@pytest.mark.parametrize(
    ("state", "grace_s", "expected"),
    [
        ("works", 600.0, (143, "")),
        ("explains", 600.0, (1, "the first rank to fail was rank 1\n")),
        ("hangs", 0.2, (143, "")),
    ],
)
def test_who_fails_says_so_first(state: str, grace_s: float, expected: tuple[int, str]) -> None:
    """A process that does not fail ends at once; one that does when it has said why, or when its time is over."""
    assert ended(state, grace_s) == expected


def test_only_under_torchrun() -> None:
    """Whoever starts ranks otherwise ends them otherwise."""
    assert is_under_torchrun({"TORCHELASTIC_RUN_ID": "none"})
    assert not is_under_torchrun({"RANK": "0"})
