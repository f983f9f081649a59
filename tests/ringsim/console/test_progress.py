"""Tests of `ringsim.console.progress`."""

import io
import sys

import pytest

from ringsim.console.progress import progress_bar


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("rank", "terminal", "is_shown"), [(0, True, True), (1, True, False), (0, False, False)])
def test_only_rank_0_draws_and_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, rank: int, terminal: bool, is_shown: bool
) -> None:
    """It goes on from what an earlier run has done, and shows the text that it is given."""
    stderr = _Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress_bar(4, "training", rank=rank, done=2) as bar:
        bar.update(1, "loss 5.5")
        assert bar.pos == 3
    shown = stderr.getvalue()
    assert ("training" in shown and "3/4" in shown and "loss 5.5" in shown) is is_shown
