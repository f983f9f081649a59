"""Parts of pages that scripts write."""

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from generated_part import GeneratedPart
from tests.refusals import said_by

PART = GeneratedPart("<!-- begin -->", "<!-- end -->")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Not written yet."""
    return tmp_path / "page.md"


@pytest.mark.parametrize("between", ["", "\nan old table\n\n"])
def test_what_is_between_the_marks_is_replaced(page: Path, between: str) -> None:
    """And nothing else, a mark in the middle of a line included; doing it twice changes nothing."""
    above, below = "# Title\n\nsee <!-- end -->\n<!-- begin -->\n", "<!-- end -->\n\nwritten by hand: \u00e4\n"
    page.write_text(above + between + below, encoding="utf-8")
    for _ in range(2):
        PART.write(page, "| a |\n|---|\n")
        assert page.read_text(encoding="utf-8") == f"{above}\n| a |\n|---|\n\n{below}"


BEGIN, END = "<!-- begin -->\n", "<!-- end -->\n"


@pytest.mark.parametrize("text", [END, BEGIN, BEGIN + BEGIN + END, END + BEGIN])
def test_a_page_without_its_marks_is_refused(page: Path, text: str, snapshot: SnapshotAssertion) -> None:
    """And left as it is."""
    page.write_text(text)
    said = {said_by(ValueError, PART.check, page), said_by(ValueError, PART.write, page, "a table")}
    assert {message.replace(str(page), "PAGE") for message in said} == snapshot
    assert page.read_text() == text
