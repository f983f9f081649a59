"""Every command and program of the manual runs as it is printed."""

import contextlib
import glob
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringsim.cli import main
from tests.docs.pages import BLOCK, NAMES, ROOT, Block, as_pattern, blocks, with_outputs, words_of
from tests.fuzz.launcher import Launcher
from tests.test_commands import COMMANDS as COMMAND_OBJECTS
from tests.trainers.commands import launch

# What a reader has who stands in a checkout; what the commands write stays out of ours.
CHECKOUT = ("README.md", "docs", "examples", "scripts", "collectives", "ringsim", "trainers")
COMMANDS = ("ringsim ", "trainers ", "torchrun ", "python ", "make ", "pip ", "sudo ", "mkdocs ")
MARKS = ("", "slow", "varies", "file", "not run")
# Commands without signs of the shell but that of a file for the output.
PLAIN = re.compile(r"(?P<command>(?:ringsim (?!trace |measure )|trainers )[\w ./:,=*\"-]*)(?:> (?P<file>[\w.-]+))?")
GENERATED = ("made by", "end of", "imports of")  # parts of pages that scripts write
TIMEOUT_S = 600
LINK = re.compile(r"\[(.*?)\]\(.*?\)")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files of this one, to which a page may write."""
    for name in CHECKOUT:
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # as `python` has the directory in which it is started
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def run_commands(block: Block) -> str:
    """Return the output of the commands, as they are typed one after the other into a shell.

    What needs no shell runs here or, with its ranks, in processes forked from one that has loaded torch.
    """
    lines = block.text.replace("\\\n", "").splitlines()
    here = [PLAIN.fullmatch(line.partition(" #")[0].rstrip()) for line in lines]
    if all(here):
        return "".join(run_here(line["command"], line["file"], block.place) for line in here if line)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{block.place}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_here(command: str, file: str | None, place: str) -> str:
    """Return the output of a command, or write it to the file."""
    program, *words = shlex.split(command)
    if program == "trainers":
        done = launch(Launcher(), *words)
        assert done.returncode == 0, f"{place}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    else:
        files = [sorted(glob.glob(word)) if "*" in word else [word] for word in words]
        done = CliRunner().invoke(main, list(itertools.chain(*files)))
        assert done.exit_code == 0, f"{place}: exit code {done.exit_code}\n{done.output}"
    if file is None:
        return done.stdout
    Path(file).write_text(done.stdout)
    return ""


def run_program(block: Block, names: dict[str, object]) -> str:
    """Return a program's output; the programs of a page share their names, as the cells of a notebook do."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * block.line + block.text, block.page, "exec"), names)
    return printed.getvalue()


def check_output(block: Block, expected: Block, printed: str) -> None:
    """Require that a block prints the text below it, or where that varies, its words."""
    if expected.mark == "varies":
        missing = set(words_of(expected.text)) - set(words_of(printed))
        assert not missing, f"{block.place}: {sorted(missing)} are not printed any more:\n{printed}"
    else:
        assert as_pattern(expected.text).fullmatch(printed.rstrip() + "\n"), f"{block.place} prints:\n{printed}"


def run_page(page: str, checkout: Path, *, slow: bool) -> None:
    """All blocks from top to bottom, but for the slow ones unless `slow`."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block, expected in with_outputs(page):
        if block.file is not None:
            assert "/" not in block.file, f"{block.place}: it would be written into the repository, through a link"
            (checkout / block.file).write_text(block.text)
        if not block.is_run or (block.mark == "slow" and not slow):
            continue
        printed = run_commands(block) if block.language == "bash" else run_program(block, names)
        if expected is not None:
            check_output(block, expected, printed)


def has(page: str, mark: str) -> bool:
    """Whether a block of the page that is run has the mark."""
    return any(block.is_run and block.mark == mark for block in blocks(page))


@pytest.mark.parametrize("page", [name for name in NAMES if any(block.is_run for block in blocks(name))])
def test_a_page_runs_as_printed(page: str, checkout: Path, pytestconfig: pytest.Config) -> None:
    """From top to bottom, in a directory of its own."""
    if has(page, "slow") and "not slow" not in pytestconfig.getoption("-m"):
        pytest.skip("the test of the whole page is chosen as well")
    run_page(page, checkout, slow=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [name for name in NAMES if has(name, "slow")])
def test_a_page_runs_as_printed_with_what_takes_long(page: str, checkout: Path) -> None:
    """Likewise, with the commands that measure and train."""
    run_page(page, checkout, slow=True)


def inline_commands(page: str) -> list[str]:
    """The commands within a page's sentences and tables, each in one line."""
    return re.findall(r"`((?:ringsim|trainers) [^`]*)`", BLOCK.sub("", (ROOT / page).read_text()).replace("\n", " "))


def slow_commands(page: str) -> list[str]:
    """The commands of blocks that take long or whose work other tests do, up to a program that is given its options."""
    slow = [
        block for block in blocks(page) if re.match("slow|not run: tests/", block.mark) and block.language == "bash"
    ]
    text = "\n".join(block.text.replace("\\\n", "") for block in slow)
    commands = re.findall(r"\b(?:ringsim|trainers|collectives\.benchmark) [^|;\n]*", text)
    return [command.partition(".py ")[0] if command.startswith("ringsim trace") else command for command in commands]


def typed_commands() -> list[str]:
    """Return the README's commands of ringsim that can be typed as they are; docs/training.md has those of trainers."""
    commands = inline_commands("README.md")
    return [each for each in commands if each.startswith("ringsim") and " -" in each and "FILE" not in each]


@pytest.mark.parametrize("page", NAMES)
def test_the_commands_that_are_not_run_exist(page: str) -> None:
    """Those in sentences and those that take long, with their options, which nothing else in `make test` tries."""
    for text in inline_commands(page) + slow_commands(page):
        words = shlex.split(text)
        known = [name for name in (" ".join(words[:2]), words[0]) if name in COMMAND_OBJECTS]
        assert known, f"{page}: `{text}`: there is no such command"
        command = COMMAND_OBJECTS["trainers train" if known[0] == "trainers" else known[0]]
        assert known[0] != words[0] or words[1].startswith("-"), f"{page}: `{text}`: there is no such command"
        others = COMMAND_OBJECTS["collectives.benchmark"].params if known[0] == "ringsim measure" else []
        options = {option for parameter in [*command.params, *others] for option in parameter.opts} | {"--help"}
        own = words[: words.index("--")] if "--" in words else words  # what follows is another program's
        unknown = [word for word in own if word.startswith("--") and word.partition("=")[0] not in options]
        assert unknown == [], f"{page}: `{text}`"


@pytest.mark.parametrize("command", typed_commands())
def test_the_commands_in_the_readmes_sentences_run(command: str, checkout: Path) -> None:
    """The first ones that a reader types."""
    assert checkout.is_dir()
    run_commands(Block("README.md", 0, "bash", command, ""))


def test_commands_are_in_blocks_that_are_run() -> None:
    """A command in a block of another language would never be tried; a mark that nobody knows would do nothing."""
    for block in itertools.chain.from_iterable(map(blocks, NAMES)):
        kind = block.mark.partition(":")[0]
        assert kind in MARKS or block.mark.startswith(GENERATED), f"{block.place}: nobody knows the mark {block.mark!r}"
        if block.language in ("", "console", "text") and not block.mark.startswith("not run: "):
            assert not block.text.startswith(COMMANDS), f"{block.place}: commands are in blocks of language bash"


def test_links_lead_somewhere() -> None:
    """Every file that a page links to is there, and every heading."""
    for page in [*NAMES, "CHANGELOG.md"]:
        for file, anchor in links(page):
            target = (ROOT / page).parent / file if file else ROOT / page
            assert target.exists(), f"{page}: {file}: there is no such file"
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target), f"{page}: {file}#{anchor}: there is no such heading"


def test_every_picture_is_in_a_page_and_drawn_by_make() -> None:
    """Otherwise nobody would see it, or it would stay as it was when the code changes."""
    shown = {((ROOT / page).parent / file).resolve() for page in NAMES for file, _ in links(page)}
    pictures = {path for kind in ("png", "svg", "gif") for path in (ROOT / "docs").rglob(f"*.{kind}")}
    assert pictures
    assert {path.name for path in pictures if path.resolve() not in shown} == set()
    recipes = (ROOT / "Makefile").read_text().partition("\npictures:")[2].partition("\n\n")[0]
    assert {path.name for path in pictures if f"docs/{path.name}" not in recipes} == set()


def links(page: str) -> list[tuple[str, str]]:
    """The files and headings that a page links to; of headings of its own the file is empty."""
    targets = re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", (ROOT / page).read_text()))
    return [target.partition("#")[::2] for target in targets if not target.startswith(("http", "mailto"))]


def anchors(path: Path) -> set[str]:
    """The headings of a page as links name them, on the site and on GitHub."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", path.read_text()), re.MULTILINE)
    slugs = [
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", LINK.sub(r"\1", text)).strip().lower()) for text in headings
    ]
    counts = {slug: slugs.count(slug) for slug in slugs}
    return {slug if not number else f"{slug}_{number}" for slug in slugs for number in range(counts[slug])}


def test_three_dots_stand_for_any_lines() -> None:
    """For none, one or several; at the end of a line for the rest of it."""
    pattern = as_pattern("first\n...\nlast\n")
    for printed in ("first\nlast\n", "first\nx\nlast\n", "first\nx\n\nlast\n"):
        assert pattern.fullmatch(printed)
    assert not pattern.fullmatch("first\nlast\nmore\n")
    assert as_pattern("first ...\nlast\n").fullmatch("first and more\nlast\n")
    assert not as_pattern("first ...\nlast\n").fullmatch("first and\nmore\nlast\n")
    assert as_pattern("a.c\n").fullmatch("a.c\n")
    assert not as_pattern("a.c\n").fullmatch("abc\n")
