"""The examples in the docs, run as they stand there."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringsim.cli import main

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block of a page."""
    return BLOCK.findall((ROOT / page).read_text())


def printed(command: str) -> str:
    """What a command line of ringsim prints."""
    result = CliRunner().invoke(main, shlex.split(command, comments=True)[1:], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("page", ["docs/simulator.md", "docs/networks.md", "docs/ddp.md"])
def test_what_follows_a_prompt_is_what_is_printed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, since one may read what another wrote; in a directory where docs/ and `failing.toml` are."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    failing = [text for language, text in blocks(page) if language == "toml" and "[[failure]]" in text]
    (tmp_path / "failing.toml").write_text("".join(failing))
    monkeypatch.chdir(tmp_path)
    examples = [part for _, text in blocks(page) for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
    assert examples
    for example in examples:
        command, _, output = example.partition("\n")
        assert printed(command).rstrip() == output.rstrip(), command
