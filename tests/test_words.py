"""Words that documentation, help and docstrings do not use, and the words to use instead."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from tests.test_commands import COMMANDS, NO_FIRST_WORDS, options_of

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
# Likewise, for what errors and the helps of scripts say.
MESSAGE_PATTERNS = (
    (r"(?:[;,:]|, or|, and) take\b", "'take' does not mean to choose", "'use' or 'run'"),
    (r"\btrain apart\b", "a private word", "'the parameters of the ranks would diverge'"),
    (r"\bsomebody\b", "an error names its cause", "what has happened, such as 'was set to None directly'"),
    (r"\b(?:same with the same|for as many|say it)\b", "the reader has to guess the noun", "the noun"),
    (
        r"\b(?:did not come|came,|none came|has gone)\b",
        "translated idiom",
        "'was not received', 'has closed the connection'",
    ),
)


def as_list(generate: Callable[[], Iterator[tuple[str, str]]]) -> Callable[[], list[tuple[str, str]]]:
    """Make a generator function one that reads the files once and returns a list."""
    return cache(lambda: list(generate()))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every docstring of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def literal(node: ast.expr) -> str:
    """Return the text of a literal, with {} for each value in an f-string; empty for any other expression."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(literal, node.values))
    if isinstance(node, ast.FormattedValue):
        return "{}"
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@as_list
def messages() -> Iterator[tuple[str, str]]:
    """Yield the place and text of every error that is raised with a literal."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Error", "_error", "Exception")):
                    yield from ((f"{path.relative_to(ROOT)}:{node.lineno}", literal(given)) for given in node.args)


@as_list
def helps_of_scripts() -> Iterator[tuple[str, str]]:
    """Yield the place and text of every help of an option or argument in scripts/."""
    for path in sorted((ROOT / "scripts").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "help":
                yield f"{path.relative_to(ROOT)}:{node.value.lineno}", literal(node.value)


@as_list
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
    yield from messages()
    yield from helps_of_scripts()


def places_of(pattern: str, given: Iterable[tuple[str, str]]) -> list[str]:
    """Return where a pattern is found, with the words; a space in it stands for any white space."""
    spaced = pattern.replace(" ", r"\s+") if "[^" not in pattern else pattern
    return [
        f"{place} (+{text.count(chr(10), 0, match.start())}): {' '.join(match[0].split())[:80]!r}"
        for place, text in given
        for match in re.finditer(spaced, text, re.IGNORECASE)
    ]


@pytest.mark.parametrize(("pattern", "reason", "replacement"), PATTERNS, ids=[row[0] for row in PATTERNS])
def test_plain_words(pattern: str, reason: str, replacement: str) -> None:
    """Name each place, the reason and the replacement."""
    places = places_of(pattern, texts())
    assert not places, f"{reason}; write {replacement}:\n" + "\n".join(places)


@pytest.mark.parametrize(
    ("pattern", "reason", "replacement"), MESSAGE_PATTERNS, ids=[row[0] for row in MESSAGE_PATTERNS]
)
def test_plain_words_in_messages(pattern: str, reason: str, replacement: str) -> None:
    """Name each error or help with words that a reader would have to guess at."""
    places = places_of(pattern, chain(messages(), helps_of_scripts()))
    assert not places, f"{reason}; write {replacement}:\n" + "\n".join(places)


def test_helps_of_scripts_begin_with_a_noun_or_an_imperative() -> None:
    """The rule of the commands, for scripts: not "Of each program.", but "Number of timed steps of each program."."""
    wrong = [
        f"{place}: {text}"
        for place, text in helps_of_scripts()
        if text.split()[:1] and text.split()[0].lower() in NO_FIRST_WORDS
    ]
    assert not wrong, "\n".join(wrong)
