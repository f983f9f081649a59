"""Tests of `trainers.launch.stop_request`."""

import os
import signal
from collections.abc import Iterator

import pytest

from trainers.launch.spawn import spawn
from trainers.launch.stop_request import StopRequest


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
    """Those that stopped, and those that the signal ended before they listened; no other failure, and not by itself."""
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
