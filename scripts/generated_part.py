"""`GeneratedPart`: what a script writes between two marks of a page that is otherwise written by hand."""

from dataclasses import dataclass
from pathlib import Path

from ringsim.files import atomic_file, read_text


@dataclass(frozen=True, slots=True)
class GeneratedPart:
    """begin, end: its marks, a line each."""

    begin: str
    end: str

    def check(self, page: Path) -> None:
        """Raise ValueError, which names the mark, unless the page has both, each once and in this order."""
        self._around(page)

    def read(self, page: Path) -> str:
        """Return what stands there. Raises as `check` does."""
        before, after = self._around(page)
        lines = read_text(page).split("\n")
        return "\n".join(lines[len(before) : len(lines) - len(after)]).strip("\n")

    def write(self, page: Path, text: str) -> None:
        """Put `text` there in place of what was there. Raises as `check` does, and leaves the page as it was then."""
        before, after = self._around(page)
        with atomic_file(page) as file:
            file.write("\n".join([*before, "", text.strip("\n"), "", *after]).encode())

    def _around(self, page: Path) -> tuple[list[str], list[str]]:
        """Return the lines up to its beginning and from its end on, with the marks."""
        lines = read_text(page).split("\n")
        for mark in (self.begin, self.end):
            if lines.count(mark) != 1:
                raise ValueError(f"{page}: has {lines.count(mark)} lines {mark!r}: there must be one")
        begin, end = lines.index(self.begin), lines.index(self.end)
        if end < begin:
            raise ValueError(f"{page}: {self.end!r} is above {self.begin!r}: must be below")
        return lines[: begin + 1], lines[end:]
