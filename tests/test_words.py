"""Words that documentation, help and docstrings do not use, and the words to use instead."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_commands import COMMANDS, options_of

ROOT = Path(__file__).parents[1]
PACKAGES = ("collectives", "ringsim", "trainers", "scripts")
# Each row: what is refused, why, and what to write.
PATTERNS = (
    (r"\bso many\b", "a quantity is a noun", "'Number of ranks', 'as many', '4 ranks'"),
    (r"\b(?:held|laid|put|timed|shown) beside\b", "'beside' means at the side of", "'compared with' or 'next to'"),
    (r"\bof (?:its|your|our|their|his|one's) own\b", "translated word order", "'its own', 'your', 'our'"),
    (r"(?:^|[.] )What (?:it|is|they|are)\b[^?]*?\.(?:\s|$)", "a clause is the subject", "a noun: 'The bytes sent'"),
    (r",\s+too[.;:]", "translated word order", "'also', before the verb"),
    (r"\bmain job\b", "a private word", "'strategy comparison'"),
    (r"\bcold calls?\b", "a private word", "'call with cold caches'"),
)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every docstring of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def texts() -> Iterator[tuple[str, str]]:
    """Yield the place and text of everything that a user reads."""
    for path in [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        prose = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), path.read_text(), flags=re.DOTALL)
        yield str(path.relative_to(ROOT)), prose
    for name, command in COMMANDS.items():
        yield f"{name} --help", command.help or ""
        for option in options_of(command):
            yield f"{name} {option.opts[0]}", option.help or ""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for line, text in docstrings(path):
                yield f"{path.relative_to(ROOT)}:{line}", text


@pytest.mark.parametrize(("pattern", "reason", "replacement"), PATTERNS, ids=[row[0] for row in PATTERNS])
def test_plain_words(pattern: str, reason: str, replacement: str) -> None:
    """Name each place, the reason and the replacement."""
    places = [
        f"{place} (+{text.count(chr(10), 0, match.start())}): {' '.join(match[0].split())[:80]!r}"
        for place, text in texts()
        for match in re.finditer(pattern.replace(" ", r"\s+") if "[^" not in pattern else pattern, text, re.IGNORECASE)
    ]
    assert not places, f"{reason}; write {replacement}:\n" + "\n".join(places)
