"""Effects of Ctrl-C, SIGTERM and SIGUSR1."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainers.launch.signals import StopRequest

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60
# The main thread is where Python cannot run a handler: in C, as one that waits for a peer is.
PROGRAM = """
import ctypes, sys, threading, time
from trainers.launch import signals

failing = threading.Event()
if sys.argv[1] != "works":
    failing.set()
signals.GRACE_S = float(sys.argv[2])
signals.delay_termination(failing.is_set)

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


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Are as before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        assert signal.getsignal(number) == handler


def test_the_first_signal_is_noted() -> None:
    """SIGTERM only where it is heeded; later ones change nothing."""
    stop = StopRequest()
    with stop.noting():
        assert not stop.heeded
        with stop.heeding():
            assert stop.heeded
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGUSR1)
        assert stop.number == signal.SIGTERM


def test_a_rank_that_is_starting_misses_nothing() -> None:
    """It begins with the signal blocked, and hears of it when it listens."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    signal.raise_signal(signal.SIGUSR1)
    stop = StopRequest()
    with stop.noting():
        assert stop.number == signal.SIGUSR1


def test_what_is_ignored_stays_so() -> None:
    """As whoever started the program wants it."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        stop = StopRequest()
        with stop.noting():
            signal.raise_signal(signal.SIGUSR1)
        assert stop.number == 0
    finally:
        signal.signal(signal.SIGUSR1, before)


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
