"""Effects of Ctrl-C, SIGTERM and SIGUSR1."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainers.launch.signals import Interrupted, Interruption, StopRequest, is_under_torchrun
from trainers.launch.spawn import spawn

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


def test_signals_wait_until_they_may_interrupt() -> None:
    """The first of them then does, and later ones change nothing; handlers are as before in the end."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with Interruption() as interruption:
        assert signal.getsignal(signal.SIGTERM) != handlers[1]
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted) as caught:
            interruption.allow()
        signal.raise_signal(signal.SIGINT)
    assert caught.value.number == signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers


def test_signals_interrupt_once_allowed() -> None:
    """And no more after that."""
    with Interruption() as interruption:
        interruption.allow()
        with pytest.raises(Interrupted) as caught:
            signal.raise_signal(signal.SIGHUP)
        interruption.hold()
        signal.raise_signal(signal.SIGINT)
    assert caught.value.number == signal.SIGHUP


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Are as before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        assert signal.getsignal(number) == handler


def test_the_first_signal_is_noted() -> None:
    """SIGTERM only where it is heeded; later ones change nothing."""
    with StopRequest() as stop:
        assert not stop.heeded
        assert signal.getsignal(signal.SIGTERM) != stop._take
        with stop.heeding():
            assert stop.heeded
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGUSR1)
        assert stop.number == signal.SIGTERM


def test_what_is_ignored_stays_so() -> None:
    """As whoever started the program wants it."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGUSR1)
        assert stop.number == 0
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_exit_codes_of_ranks_that_were_asked() -> None:
    """Ranks that stopped, and ranks that the signal ended before they listened, count; no other failure does."""
    stop = StopRequest()
    assert not stop.is_cause_of([-signal.SIGTERM])
    stop.number = signal.SIGTERM
    assert stop.is_cause_of([-signal.SIGTERM, 143])
    assert not stop.is_cause_of([143, 1])
    assert not stop.is_cause_of([])


def hear_late() -> int:
    """A rank that gets the signal before it listens: it hears of it then."""
    os.kill(os.getpid(), signal.SIGUSR1)
    with StopRequest() as stop:
        return 0 if stop.number == signal.SIGUSR1 else 1


def test_a_rank_that_is_starting_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins with the signal blocked."""
    for name in ("RANK", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    with StopRequest() as stop:
        assert spawn(1, hear_late, (), stop) == 0


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
