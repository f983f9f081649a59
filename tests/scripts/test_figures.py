"""The published figures: which are older than the code that they measure, on a made-up project."""

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import pytest
from click.testing import CliRunner
from syrupy.assertion import SnapshotAssertion

import figures
from figures import ADMITTED, NOT_FIT, NOT_MEASURED, Figure, listed, read_registry, stale, unknown
from tests.refusals import said_by

CODE = '"""A module."""\n\n\ndef double(number):\n    """Return it twice."""\n    return 2 * number  # as asked\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with one page and one source."""
    (tmp_path / "pages.md").write_text("# Page\n\n<!-- figure: twice -->\n<!-- end of twice -->\n\nText.\n")
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/double.py").write_text(CODE)
    return tmp_path


def made(**changes: object) -> Figure:
    """A figure that prints a number."""
    fields = {"page": "pages.md", "commands": ("python -c 'print(42)'",), "measures": ("sources",), "minutes": 1.0}
    return Figure(**{"name": "twice", **fields, **changes})  # type: ignore[arg-type]


def state(figure: Figure, root: Path) -> str:
    """Stale, admitted, or fresh."""
    name, page, minutes, logs, state = listed(figure, root)
    assert (name, page, minutes, logs) == ("twice", "pages.md", "1 min", "")
    assert len(stale([figure], root)) == (state == "stale")
    return state


WORDS = {"A module": "Doubles", "Return it twice": "Add it to itself", "  # as asked": ""}


@pytest.mark.parametrize(
    ("changed", "file", "expected"),
    [
        (CODE, "double.py", "fresh"),
        (CODE.replace("2 *", "number +"), "double.py", "stale"),
        (reduce(lambda text, words: text.replace(*words), WORDS.items(), CODE), "double.py", "fresh"),
        (CODE, "renamed.py", "stale"),
    ],
    ids=["nothing", "code", "words", "name"],
)
def test_a_figure_is_stale_until_it_is_measured_again(root: Path, changed: str, file: str, expected: str) -> None:
    """Docstrings, comments and layout are no code. The line names the page, the sources and the command."""
    figure = made()
    assert state(figure, root) == "stale"
    figure.part.write(root / "pages.md", figure.measure(root, ""))
    assert "$ python -c 'print(42)'\n42\n" in (root / "pages.md").read_text()
    (root / "sources/double.py").unlink()
    (root / "sources" / file).write_text(changed)
    assert state(figure, root) == expected
    told = "pages.md: twice is older than its commands or the code that it measures: measure again "
    assert all(line.startswith(told) for line in stale([figure], root))


def test_code_that_changes_while_it_is_measured_makes_the_figure_stale(root: Path) -> None:
    """The digest is that of the code before the commands, one of which changes it here."""
    figure = made(commands=(r"""python -c 'open("sources/double.py", "a").write("\nmore = 1\n")'""",))
    figure.part.write(root / "pages.md", figure.measure(root, ""))
    assert not figure.is_fresh(root)


def test_the_page_names_what_was_measured(root: Path) -> None:
    """Folders of logs and of this code's measurements are no part of a command that a reader repeats."""
    figure = made(commands=("python -c 'import sys; print(sys.argv)' {logs} out-{sources}",), transport="pigeons")
    text = figure.measure(root, "private/logs")
    assert "OMP_NUM_THREADS=1, pigeons." in text
    assert "print(sys.argv)' LOGS_DIR out\n" in text
    assert f"'out-{figure.digest(root)}'" in text
    assert figure.needs_logs


def test_a_run_on_a_busy_machine_is_repeated(root: Path) -> None:
    """The page has the first run that was quiet, or the last of three and says so above; a mere mention is none."""
    (root / "run.py").write_text(
        "import pathlib, sys\n"
        "runs = pathlib.Path(sys.argv[1])\n"
        "runs.write_text((runs.read_text() if runs.exists() else '') + '.')\n"
        "print('this machine was busy' if len(runs.read_text()) < int(sys.argv[2]) else 'if this machine was busy')"
    )
    text = made(commands=("python run.py once 1", "python run.py twice 2", "python run.py often 9")).measure(root, "")
    said = [line for line in text.splitlines() if line.startswith(("if this", "this machine"))]
    assert said == ["if this machine was busy"] * 2 + ["this machine was busy"]
    assert text.index(NOT_FIT) < text.index("```text")
    assert NOT_FIT not in made(commands=("python run.py calm 1",)).measure(root, "")
    assert [(root / name).read_text() for name in ("once", "twice", "often")] == [".", "..", "..."]


def test_a_page_may_say_that_its_figure_is_older(root: Path) -> None:
    """Once, however often it is asked to; a new measurement takes the statement away."""
    figure = made()
    for _ in range(2):
        figure.part.write(root / "pages.md", figure.admitted(root))
    assert figure.part.read(root / "pages.md") == NOT_MEASURED
    assert state(figure, root) == "admitted"
    figure.part.write(root / "pages.md", figure.measure(root, ""))
    assert NOT_MEASURED not in (root / "pages.md").read_text()
    (root / "sources/double.py").write_text("")
    for _ in range(2):
        figure.part.write(root / "pages.md", figure.admitted(root))
    assert (root / "pages.md").read_text().count(ADMITTED) == 1
    assert state(figure, root) == "admitted"


def test_a_fresh_figure_does_not_say_that_it_is_older(root: Path) -> None:
    """Not when it is asked to, and no longer when the code is again as it was measured."""
    figure = made()
    measured = figure.measure(root, "")
    for text in (measured, f"{ADMITTED}\n\n{measured}"):
        figure.part.write(root / "pages.md", text)
        assert figure.admitted(root) == measured.strip("\n")


def test_other_commands_make_a_figure_stale(root: Path) -> None:
    """The page shows the commands that the registry would run, as text and as Markdown."""
    for is_markdown in (False, True):
        figure = made(is_markdown=is_markdown)
        figure.part.write(root / "pages.md", figure.measure(root, ""))
        assert stale([figure], root) == []
        assert len(stale([made(commands=("python -c 'print(6)'",), is_markdown=is_markdown)], root)) == 1


def test_a_figure_that_the_registry_does_not_have_is_named(root: Path) -> None:
    """It was renamed, deleted, or moved to another page."""
    (root / "docs").mkdir()
    assert unknown([made()], root) == []
    assert unknown([], root) == ["pages.md: twice is not in figures.toml with this page"]
    (root / "pages.md").rename(root / "docs/pages.md")
    assert unknown([made()], root) == ["docs/pages.md: twice is not in figures.toml with this page"]


def test_a_command_that_fails_leaves_the_page(root: Path) -> None:
    """With the command in the message."""
    figure = made(commands=("python -c 'raise SystemExit(3)'",))
    with pytest.raises(ValueError, match=r"SystemExit\(3\)': ended with 3"):
        figure.measure(root, "")


def test_a_wrong_registry(root: Path, snapshot: SnapshotAssertion) -> None:
    """A source or a place in the page that there is not."""
    (root / "empty").mkdir()
    (root / "pages.md").write_text(f"<!-- figure: twice -->\n{ADMITTED[:-1]}\n<!-- end of twice -->\n")
    wrong: list[dict[str, object]] = [{"measures": ("gone.py",)}, {"measures": ("empty",)}, {"name": "other"}]
    said = [said_by(ValueError, stale, [made(**changes)], root) for changes in wrong]
    assert [message.replace(str(root), "ROOT") for message in said] == snapshot


ENTRY = """[twice]
page = "pages.md"
commands = ["python -c 'print(42)'"]
measures = ["sources"]
minutes = 1
"""


MISTAKES = (
    ("minutes = 1", "minutes = 1\ncolour = 3"), ('["sources"]', "[]"), ("python -c", "pytest -q"),
    ("python -c 'print(42)'", ""), (ENTRY, ""),
)  # fmt: skip


def test_a_mistake_in_the_registry_is_one_line(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """With the file, the figure, the key and the rule."""
    path, said = tmp_path / "figures.toml", []
    for old, new in MISTAKES:
        path.write_text(ENTRY.replace(old, new))
        said.append(said_by(ValueError, read_registry, path).replace(str(path), "FILE"))
    assert said == snapshot


def run(
    root: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], registry: str = ENTRY
) -> tuple[int, str]:
    """The exit code of the command in a project, and what it prints."""
    (root / "figures.toml").write_text(registry)
    monkeypatch.setattr(figures, "ROOT", root)
    monkeypatch.setattr(figures, "REGISTRY", root / "figures.toml")
    result = CliRunner().invoke(figures.main, arguments)
    return result.exit_code, result.output


def test_a_figure_that_fails_keeps_none_from_being_measured(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are in the page, and the exit code is that of an error; a command that reads finds nothing to read."""
    (root / "pages.md").write_text("".join(f"<!-- figure: {n} -->\n<!-- end of {n} -->\n" for n in ("first", "twice")))
    first = ENTRY.replace("[twice]", "[first]").replace("print(42)", "input()")
    status, printed = run(root, monkeypatch, [], first + ENTRY)
    assert status == 2
    assert "first: python -c 'input()': ended with 1\n" in printed
    assert printed.endswith("figures: not measured: first\n")
    assert run(root, monkeypatch, ["twice", "--check"], first + ENTRY) == (0, "")
    assert run(root, monkeypatch, ["--check"], ENTRY)[1] == "pages.md: first is not in figures.toml with this page\n"
    assert run(root, monkeypatch, ["--check", "--admit"], ENTRY)[0] == 2
