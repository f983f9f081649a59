"""Parts of pages that scripts write."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from generated_part import GeneratedPart
from tests.refusals import refused

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- end -->\n", "has 0 lines '<!-- begin -->': there must be one"),
        ("<!-- begin -->\n", "has 0 lines '<!-- end -->': there must be one"),
        ("<!-- begin -->\n<!-- begin -->\n<!-- end -->\n", "has 2 lines '<!-- begin -->': there must be one"),
        ("<!-- end -->\n<!-- begin -->\n", "'<!-- end -->' is above '<!-- begin -->': must be below"),
    ],
)
def test_a_page_without_its_marks_is_refused(page: Path, text: str, message: str) -> None:
    """And left as it is."""
    page.write_text(text)
    for write in (PART.check, lambda page: PART.write(page, "a table")):
        with refused(f"{page}: {message}"):
            write(page)
    assert page.read_text() == text


def test_a_page_that_is_no_text_is_named(page: Path) -> None:
    """Python's own words say no file."""
    page.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="page.md: is not UTF-8 text: invalid start byte at byte 0"):
        PART.check(page)


@pytest.mark.parametrize(
    ("script", "arguments"),
    [("fidelity", ["--only", "nothing"]), ("cluster_fidelity", ["."])],
    ids=lambda each: each[0],
)
def test_scripts_refuse_it_before_the_work(page: Path, script: str, arguments: list[str]) -> None:
    """In one line."""
    page.write_text("no marks\n")
    command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *arguments, "--write", str(page)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=page.parent, env=environment, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{script}: {page}: has 0 lines '<!-- ")
    assert done.stderr.count("\n") == 1
    assert list(page.parent.iterdir()) == [page]
