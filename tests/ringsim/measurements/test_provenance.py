"""Tests of `ringsim.measurements.provenance`."""

import sys

import pytest

from ringsim.measurements.provenance import provenance


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["/usr/bin/ringsim", "sweep", "--ranks", "4"], "ringsim sweep --ranks 4"),
        (["study.py", "8"], "study.py 8"),
        (["-c"], "from Python"),
        ([""], "from Python"),
        (["-"], "from Python"),
        ([], "from Python"),
        (["/lib/ipykernel_launcher.py", "-f", "kernel.json"], "from Python"),
    ],
)
def test_the_command_is_one_that_a_reader_can_type(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], command: str
) -> None:
    """Or it says that there was none: `-c` alone would say nothing."""
    monkeypatch.setattr(sys, "argv", argv)
    assert provenance()["command"] == command
