"""The text output of each command, and its one-line refusal of a mistake, compared with snapshots.

`pytest --snapshot-update` writes the snapshots anew; a change of them is to be read as the change of a text.
"""

import re
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.processes import ROOT
from tests.ringsim.commands import in_lines, refused, run


def commands_in(name: str) -> list[str]:
    """Return the lines of a file beside this one that are no comments."""
    lines = Path(__file__).with_name(name).read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.fixture(autouse=True)
def _in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in commands are those of this repository."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("command", commands_in("commands.txt"), ids=str)
def test_output(command: str, snapshot: SnapshotAssertion) -> None:
    """Notes on stderr and the result on stdout; no table is wider than a terminal."""
    result = run(*command.split())
    if not re.search("--wide|--json|--help|^ddp", command):  # a step's facts may be longer
        assert max(map(len, result.stdout.splitlines())) <= 80
    text = in_lines(result.stdout) if "--json" in command else result.stdout
    assert f"{result.stderr}{text}" == snapshot


def test_mistakes(snapshot: SnapshotAssertion) -> None:
    """Exit code 2 before any work, nothing on stdout, and one line that names the value and the rule."""
    told = [f"$ ringsim {command}\n{refused(*command.split())}" for command in commands_in("mistakes.txt")]
    assert "".join(told) == snapshot
