"""The published figures: which are older than the code that they measure, on a made-up project."""

import subprocess
from pathlib import Path

import pytest

import figures
from figures import ADMITTED, Figure, listed, read_registry, stale

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
    return Figure("twice", **{**fields, **changes})  # type: ignore[arg-type]


def test_a_figure_is_stale_until_it_is_measured_and_again_when_the_code_changes(root: Path) -> None:
    """The line names the page, the sources and the command."""
    figure = made()
    assert len(stale([figure], root)) == 1
    figure.part.write(root / "pages.md", figure.measure(root, ""))
    assert "$ python -c 'print(42)'\n42\n" in (root / "pages.md").read_text()
    assert stale([figure], root) == []
    (root / "sources/double.py").write_text(CODE.replace("2 *", "number +"))
    (line,) = stale([figure], root)
    assert line.startswith(
        "pages.md: twice is older than sources/double.py: measure again with `python scripts/figures.py twice`"
    )
    (root / "sources/more.py").write_text("")
    assert figure.changed(root) == ["sources/double.py", "sources/more.py"]
    (root / "sources/double.py").unlink()
    (root / "sources/more.py").unlink()
    assert figure.changed(root) == ["sources/double.py"]


def test_code_that_changes_while_it_is_measured_makes_the_figure_stale(root: Path) -> None:
    """The digest is that of the code before the commands, one of which changes it here."""
    figure = made(commands=(r"""python -c 'open("sources/double.py", "a").write("\nmore = 1\n")'""",))
    figure.part.write(root / "pages.md", figure.measure(root, ""))
    assert figure.changed(root) == ["sources/double.py"]
    assert not figure.is_fresh(root)


def test_the_page_names_what_was_measured(root: Path) -> None:
    """Folders of logs and of this code's measurements are no part of a command that a reader repeats."""
    figure = made(commands=("python -c 'import sys; print(sys.argv)' {logs} out-{sources}",), transport="pigeons")
    text = figure.measure(root, "private/logs")
    assert "OMP_NUM_THREADS=1, pigeons." in text
    assert "print(sys.argv)' LOGS_DIR out\n" in text
    assert f"'out-{figure.digest(root)}'" in text
    assert figure.needs_logs


def test_a_commit_whose_sources_were_changed_is_marked(root: Path) -> None:
    """A changed page is none of them, as figures are written one after the other."""
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *arguments], check=True)
    (root / "pages.md").write_text((root / "pages.md").read_text() + "More.\n")
    assert " with changes:" not in made().measure(root, "")
    (root / "sources/double.py").write_text("")
    assert " with changes:" in made().measure(root, "")


def test_a_state_for_each_figure(root: Path) -> None:
    """Stale, admitted, or fresh."""
    figure = made()
    assert listed(figure, root).endswith("stale")
    figure.part.write(root / "pages.md", figure.admitted(root))
    assert listed(figure, root).endswith("admitted")
    figure.part.write(root / "pages.md", figure.measure(root, ""))
    assert listed(figure, root).split() == ["twice", "pages.md", "1", "min", "fresh"]


def test_words_make_no_figure_stale(root: Path) -> None:
    """Docstrings, comments and layout are no code; a new file is."""
    figure = made()
    figure.part.write(root / "pages.md", figure.measure(root, ""))
    reworded = (
        CODE.replace("A module", "Doubles").replace("Return it twice", "Add it to itself").replace("  # as asked", "")
    )
    (root / "sources/double.py").write_text(reworded.replace("  # as asked", ""))
    assert stale([figure], root) == []
    (root / "sources/other.py").write_text("")
    assert len(stale([figure], root)) == 1


def test_a_page_may_say_that_its_figure_is_older(root: Path) -> None:
    """Once, however often it is asked to; a new measurement takes the statement away."""
    figure = made()
    for _ in range(2):
        figure.part.write(root / "pages.md", figure.admitted(root))
    assert (root / "pages.md").read_text().count(ADMITTED) == 1
    assert stale([figure], root) == []
    figure.part.write(root / "pages.md", figure.measure(root, ""))
    assert ADMITTED not in (root / "pages.md").read_text()


def test_a_command_that_fails_leaves_the_page(root: Path) -> None:
    """With the command in the message."""
    figure = made(commands=("python -c 'raise SystemExit(3)'",))
    with pytest.raises(ValueError, match=r"SystemExit\(3\)': ended with 3"):
        figure.measure(root, "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measures": ("gone.py",)}, "twice: measures 'gone.py': there is no such file"),
        ({"name": "other"}, "has 0 lines"),
    ],
)
def test_a_wrong_registry(root: Path, changes: dict[str, object], message: str) -> None:
    """A source or a place in the page that there is not."""
    (root / "pages.md").write_text(f"<!-- figure: twice -->\n{ADMITTED[:-1]}\n<!-- end of twice -->\n")
    name = str(changes.pop("name", "twice"))
    figure = Figure(name, **{**{f: getattr(made(**changes), f) for f in ("page", "commands", "measures", "minutes")}})
    with pytest.raises(ValueError, match=message):
        stale([figure], root)


def test_every_figure_of_the_project_has_its_place() -> None:
    """And its sources; whether it is stale is for `make lint`, since a change of code makes it so."""
    for figure in read_registry(figures.REGISTRY).values():
        figure.part.check(figures.ROOT / figure.page)
        assert figure.digest(figures.ROOT)
        assert all(command.split()[0] in ("python", "torchrun") for command in figure.commands)
