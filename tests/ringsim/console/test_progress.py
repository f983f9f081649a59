"""Tests of `ringsim.console.Progress`."""

import io
import sys
import time

import pytest

from ringsim.console import Progress, progress_bar


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Clock:
    """A clock that goes when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """In place of the monotonic clock."""
    clock = _Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def make_terminal(monkeypatch: pytest.MonkeyPatch, kind: type[io.StringIO] = _Terminal) -> io.StringIO:
    """In place of stderr; not a fixture, because pytest sets stderr anew when a test begins."""
    terminal = kind()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


@pytest.mark.parametrize(("rank", "kind"), [(0, _Terminal), (1, _Terminal), (0, io.StringIO)])
def test_rank_0_draws_on_a_terminal(monkeypatch: pytest.MonkeyPatch, rank: int, kind: type[io.StringIO]) -> None:
    """It goes on from what an earlier run has done, and shows the text that it is given."""
    stderr = make_terminal(monkeypatch, kind)
    with progress_bar(4, "training", rank=rank, done=2) as bar:
        bar.update(1, "loss 5.5")
        bar.update(1)
        assert bar.done == 4
    is_shown = (rank, kind) == (0, _Terminal)
    assert {word in stderr.getvalue() for word in ("training", "4/4", "loss 5.5", "\r")} == {is_shown}


def test_the_time_left_is_that_of_the_phase_alone(clock: _Clock) -> None:
    """Steps before it, in this run or in an earlier one, do not count."""
    progress = Progress()
    progress.begin("probing")
    clock.now += 41
    progress.begin("training", 100, done=40)
    assert "left" not in progress.line()
    clock.now += 3
    progress.update(1)
    assert progress.line() == f"training  [{'#' * 9}{' ' * 15}]  41/100  2:57 left"


def test_a_phase_without_a_length_has_its_name(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is replaced by the next phase, and erased at the end; the cursor is never hidden."""
    terminal = make_terminal(monkeypatch)
    with Progress() as progress:
        progress.begin("starting 4 ranks")
        clock.now += 1
        progress.begin("probing", 3)
        progress.update(3)
    shown = terminal.getvalue()
    assert shown.split("\r\033[K")[1:] == [
        "starting 4 ranks ...", f"probing  [{' ' * 24}]  0/3", f"probing  [{'#' * 24}]  3/3", ""
    ]  # fmt: skip
    assert "\033[?25l" not in shown


def test_a_line_stands_above_the_progress(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is drawn again at once, and not when the next step has been taken."""
    terminal = make_terminal(monkeypatch)
    with progress_bar(3, "training") as progress:
        clock.now += 1
        progress.update(1)
        drawn = f"\r\033[K{progress.line()}"
        progress.say("step 1: loss 2.5")
        assert terminal.getvalue().endswith(f"{drawn}\r\033[Kstep 1: loss 2.5\n{drawn}")


def test_nothing_is_drawn_before_the_delay(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is over by then leaves the terminal alone."""
    terminal = make_terminal(monkeypatch)
    with progress_bar(10, "simulating", delay_s=2.0) as progress:
        clock.now += 1
        progress.update(5)
        assert terminal.getvalue() == ""
        clock.now += 1.5
        progress.update(1)
        assert "6/10" in terminal.getvalue()


def test_the_line_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the terminal would wrap it, and the next one could not erase it."""
    terminal = make_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "40")
    with progress_bar(4, "training" * 10) as progress:
        progress.update(1, "loss" * 40)
    assert max(map(len, terminal.getvalue().split("\r\033[K"))) == 39
