"""The examples in docs/collectives.md, run as they stand there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block of a page."""
    return BLOCK.findall((ROOT / page).read_text())


def test_the_page_shows_what_its_programs_print(capsys: pytest.CaptureFixture[str]) -> None:
    """Each prints what stands below it."""
    texts = blocks("docs/collectives.md")
    programs = [index for index, (language, _) in enumerate(texts) if language == "python"]
    assert programs
    for index in programs:
        exec(compile(texts[index][1], "docs/collectives.md", "exec"), {})
        assert ("", capsys.readouterr().out) == texts[index + 1]
