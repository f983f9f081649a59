"""The blocks of the manual's pages: what a reader types, what is printed, and files that a page writes.

A page is written so that it can be run from top to bottom:

- a block of language `bash` holds commands, `python` a program; a block of language `text` right below one is what it
  prints, in which a line of `...` stands for any lines, and ` ...` at the end of a line for the rest of it;
- `<!-- file: NAME -->` above a block: the reader saves it under that name;
- `<!-- not run: REASON -->`: it cannot run on one ordinary machine, is a fragment, or a test in `tests/` does the same;
- `<!-- slow -->`: it takes more than a few seconds, and runs with `make test-all`;
- `<!-- varies -->` above a block of text: it was measured, so that only its words come again.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page, with the comment right above it and the number of its first line."""

    page: str
    line: int
    language: str
    text: str
    mark: str

    @property
    def place(self) -> str:
        """Where it is, as a message names it."""
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name under which a reader saves it."""
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else None

    @property
    def is_run(self) -> bool:
        """Whether a test runs it."""
        return self.language in ("bash", "python") and self.file is None and not self.mark.startswith("not run: ")


def blocks(page: str) -> list[Block]:
    """All blocks of a page, in their order. Quoted and indented ones, as in lists, are not blocks of their own."""
    text = (ROOT / page).read_text()
    return [
        Block(page, text.count("\n", 0, match.start("text")), match["language"], match["text"], match["mark"] or "")
        for match in BLOCK.finditer(text)
    ]


def with_outputs(page: str) -> Iterator[tuple[Block, Block | None]]:
    """Each block with the next one if that shows an output; one that is marked "not run" shows that of no block."""
    all_blocks = blocks(page)
    for block, below in zip(all_blocks, [*all_blocks[1:], None], strict=True):
        shows_output = below is not None and below.language == "text" and not below.mark.startswith("not run: ")
        yield block, below if shows_output else None


def as_pattern(output: str) -> re.Pattern[str]:
    """Return the pattern of a printed text, in which `...` stands for any lines, and ` ...` for the rest of one."""
    return re.compile("".join(map(_line_pattern, output.rstrip().split("\n"))))


def _line_pattern(line: str) -> str:
    if line == "...":
        return "(?:.*\n)*?"
    start = line.removesuffix(" ...")
    return re.escape(start) + ("\n" if start == line else ".*\n")


def words_of(text: str) -> list[str]:
    """The words of an output that was measured: what is left when its numbers are gone."""
    return re.findall(r"[A-Za-z_]{3,}", text)
