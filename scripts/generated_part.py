"""`GeneratedPart`: the text that a script writes between two marks of a hand-written page."""

from dataclasses import dataclass
from pathlib import Path

from ringsim.files import atomic_file, read_text


@dataclass(frozen=True, slots=True)
class GeneratedPart:
    """begin, end: the marks, a line each."""

    begin: str
    end: str

    def check(self, page: Path) -> None:
        """Raise ValueError, naming the mark, unless the page has both marks once and in order."""
        self._around(page)

    def read(self, page: Path) -> str:
        """Return the text between the marks. Raises like `check`."""
        before, after = self._around(page)
        lines = read_text(page).split("\n")
        return "\n".join(lines[len(before) : len(lines) - len(after)]).strip("\n")

    def write(self, page: Path, text: str) -> None:
        """Replace the text between the marks. Raises like `check`, and then leaves the page unchanged."""
        before, after = self._around(page)
        with atomic_file(page) as file:
            file.write("\n".join([*before, "", text.strip("\n"), "", *after]).encode())

    def _around(self, page: Path) -> tuple[list[str], list[str]]:
        """Return the lines before and after the text, with the marks."""
        lines = read_text(page).split("\n")
        for mark in (self.begin, self.end):
            if lines.count(mark) != 1:
                raise ValueError(f"{page}: has {lines.count(mark)} lines {mark!r}: there must be one")
        begin, end = lines.index(self.begin), lines.index(self.end)
        if end < begin:
            raise ValueError(f"{page}: {self.end!r} is above {self.begin!r}: must be below")
        return lines[: begin + 1], lines[end:]
