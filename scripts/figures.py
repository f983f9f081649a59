"""Measure the published figures again, and find figures that are older than the code: `make figures`, `make lint`.

    python scripts/figures.py                 # measure all again
    python scripts/figures.py steps training  # these
    python scripts/figures.py --list          # all figures, with duration and state
    python scripts/figures.py --check         # exit with 1 if one is stale without a mark
    python scripts/figures.py --admit steps   # mark it in the page as older than the code

scripts/figures.toml lists the figures. The page holds a digest of a figure's sources, which ignores docstrings,
comments and the history of commits. A figure is stale if the digest or the commands differ. --check also names figures
of pages that the registry lacks.
"""

import ast
import hashlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import click

from collectives.probes import provenance
from generated_part import GeneratedPart
from ringsim.console import OneLineCommand, message_of
from ringsim.files import Record, decode, naming_place, parse_toml, read_text, values
from ringsim.text_table import align_columns

ROOT = Path(__file__).parents[1]
REGISTRY = Path(__file__).with_suffix(".toml")
SOURCES = re.compile(r"^<!-- sources (\w+) -->$", re.MULTILINE)
MARK = re.compile(r"^<!-- figure: (.*) -->$", re.MULTILINE)
ADMITTED = "**The code has changed since this was measured.**"
NOT_MEASURED = "**This has not been measured yet.**"
BUSY = "this machine was busy"  # with which the strategy comparison begins its warning
TRIES = 3
NOT_FIT = (
    "**A run below ends with the warning that the machine was busy: its predictions and their errors are not fit for "
    "use, and are to be measured again.**"
)


class Figure(Record, frozen=True):
    """A published figure, as scripts/figures.toml describes it.

    measures: files, and folders of Python code. transport: of messages, for the page. needs: root if a command makes a
    testbed. is_markdown: whether the commands print a part of a page instead of text.
    """

    name: str
    page: str
    commands: Annotated[tuple[str, ...], values.AT_LEAST_ONE]
    measures: Annotated[tuple[str, ...], values.AT_LEAST_ONE]
    minutes: values.Number
    transport: str = ""
    needs: str = ""
    is_markdown: bool = False

    @property
    def part(self) -> GeneratedPart:
        """The figure's part of the page."""
        return GeneratedPart(f"<!-- figure: {self.name} -->", f"<!-- end of {self.name} -->")

    @property
    def needs_logs(self) -> bool:
        return any("{logs}" in command for command in self.commands)

    def digest(self, root: Path) -> str:
        """Return the digest of the sources. Raises ValueError for a missing source."""
        text = "".join(f"{name}\n{code}\n" for name, code in self._codes(root).items())
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def _codes(self, root: Path) -> dict[str, str]:
        """Return the code of each source, by its path from `root`."""
        files: list[Path] = []
        for name in self.measures:
            path = root / name
            if not path.exists():
                raise ValueError(f"{self.name}: measures {name!r}: there is no such file")
            found = sorted(path.rglob("*.py")) if path.is_dir() else [path]
            if not found:
                raise ValueError(f"{self.name}: measures {name!r}: must be a folder with Python files, or a file")
            files += found
        return {file.relative_to(root).as_posix(): code_of(file) for file in files}

    def is_admitted(self, root: Path) -> bool:
        """Return whether the page marks the figure as older than its sources, or not measured yet."""
        text = self.part.read(root / self.page)
        return ADMITTED in text or NOT_MEASURED in text

    def is_fresh(self, root: Path) -> bool:
        """Return whether the page has a figure of the present sources and commands.

        Raises ValueError if the page has no place for it.
        """
        is_of_sources = SOURCES.findall(self.part.read(root / self.page)) == [self.digest(root)]
        return is_of_sources and self._has_its_commands(root)

    def _has_its_commands(self, root: Path) -> bool:
        lines = self.part.read(root / self.page).split("\n")
        return all((command if self.is_markdown else f"$ {command}") in lines for command in self._shown_commands())

    def _shown_commands(self) -> list[str]:
        """Return the commands for readers, without the folders of one machine."""
        return [command.replace("{logs}", "LOGS_DIR").replace("-{sources}", "") for command in self.commands]

    def measure(self, root: Path, logs: str) -> str:
        """Run the commands, and return the text for the page. Raises ValueError if one fails."""
        # Before the commands, which take minutes: code that changes meanwhile is not what they measure.
        digest, commit = self.digest(root), _commit(root, self.measures)
        outputs = [
            _quiet_output(command.replace("{logs}", logs).replace("{sources}", digest), root)
            for command in self.commands
        ]
        where = provenance()
        is_busy = any(_says_busy(output) for output in outputs)
        transport = f", {self.transport}" if self.transport else ""
        lines = [
            f"<!-- sources {digest} -->",
            "",
            f"Measured on {where['date'][:10]} at commit {commit}: {where['machine']}, {where['cores']} cores, "
            f"Python {where['python']}, torch {where['torch']}, OMP_NUM_THREADS=1{transport}.",
            "",
            *([NOT_FIT, ""] if is_busy else []),
        ]
        commands = self._shown_commands()
        if self.is_markdown:
            lines += [f"<!-- not run: it takes {self.minutes:g} minutes -->", "```bash", *commands, "```", "", *outputs]
        else:
            session = "\n".join(f"$ {command}\n{output}" for command, output in zip(commands, outputs, strict=True))
            lines += ["<!-- not run: measured by scripts/figures.py -->", "```text", session.rstrip("\n"), "```"]
        return "\n".join(lines)

    def admitted(self, root: Path) -> str:
        """Return the figure's text, marked as stale or not measured if it is."""
        text = self.part.read(root / self.page)
        for statement in (ADMITTED, NOT_MEASURED):
            text = text.replace(statement, "").strip("\n")
        if self.is_fresh(root):
            return text
        return f"{ADMITTED}\n\n{text}" if text else NOT_MEASURED


def code_of(path: Path) -> str:
    """Return a Python file's syntax tree without docstrings; comments and layout do not change it.

    For other files, return the whole text. Raises ValueError, with the place, for invalid Python.
    """
    if path.suffix != ".py":
        return read_text(path)
    try:
        tree = ast.parse(read_text(path))
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: is not Python: {error.msg}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:]
        if isinstance(node, ast.JoinedStr):  # Python 3.12 puts empty texts between the parts of some
            node.values = [part for part in node.values if not isinstance(part, ast.Constant) or part.value]
    # Python 3.12 has one more field and 3.13 leaves out what is empty; the digest is that of 3.11.
    more = {"show_empty": True} if sys.version_info >= (3, 13) else {}
    return ast.dump(tree, **more).replace(", type_params=[]", "")


def read_registry(path: Path) -> dict[str, Figure]:
    """Return the figures by name. Raises ValueError with file, place and rule."""
    with naming_place(path):
        figures = {name: _figure(name, entry) for name, entry in parse_toml(read_text(path)).items()}
        if not figures:
            raise ValueError("must have at least one figure")
    return figures


def _figure(name: str, entry: Any) -> Figure:
    figure = decode(Figure, {**entry, "name": name} if isinstance(entry, dict) else entry, name)
    with naming_place(name):
        for command in figure.commands:
            if command.split()[:1] not in (["python"], ["torchrun"]):
                raise ValueError(f"command {command!r}: must begin with python or torchrun")
    return figure


def _output(command: str, root: Path) -> str:
    words = shlex.split(command)
    program = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        program, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise ValueError(f"{command}: ended with {done.returncode}")
    return done.stdout


def _quiet_output(command: str, root: Path) -> str:
    """Return the output of a command; repeat it, up to `TRIES` runs, if it reports a busy machine."""
    for _ in range(TRIES):
        output = _output(command, root)
        if not _says_busy(output):
            break
    return output


def _says_busy(output: str) -> bool:
    return any(line.startswith(BUSY) for line in output.splitlines())


def _commit(root: Path, measures: Sequence[str]) -> str:
    """Return the commit, with a note if the sources differ from it; pages may differ."""
    commit = _git(root, "rev-parse", "--short", "HEAD") or "unknown"
    return f"{commit} with changes" if _git(root, "status", "--porcelain", "--", *measures) else commit


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def stale(figures: Sequence[Figure], root: Path) -> list[str]:
    """Return a line for each figure that is older than its sources without a mark."""
    return [
        f"{figure.page}: {figure.name} is older than its commands or the code that it measures: measure again with "
        f"`python scripts/figures.py {figure.name}` ({figure.minutes:g} minutes), or let it say so with --admit"
        for figure in figures
        if not figure.is_fresh(root) and not figure.is_admitted(root)
    ]


def unknown(figures: Sequence[Figure], root: Path) -> list[str]:
    """Return a line for each figure in a page that `figures` lack, so that nothing measures it again."""
    known = {(figure.page, figure.name) for figure in figures}
    pages = [*root.glob("*.md"), *sorted(root.glob("docs/**/*.md"))]
    marks = [(page.relative_to(root).as_posix(), name) for page in pages for name in MARK.findall(read_text(page))]
    return [
        f"{page}: {name} is not in {REGISTRY.name} with this page" for page, name in marks if (page, name) not in known
    ]


def listed(figure: Figure, root: Path) -> tuple[str, ...]:
    """Return the figure's row of the list: name, page, minutes, needs and state."""
    state = "admitted" if figure.is_admitted(root) else "fresh" if figure.is_fresh(root) else "stale"
    needs = "--logs" if figure.needs_logs else figure.needs
    return figure.name, figure.page, f"{figure.minutes:g} min", needs, state


@click.command("figures", cls=OneLineCommand)
@click.argument("names", nargs=-1)
@click.option("--list", "is_list", is_flag=True, help="Print the figures: page, minutes, needs and state.")
@click.option("--check", "is_check", is_flag=True, help="Exit with 1 if a figure is stale and does not say so.")
@click.option("--admit", is_flag=True, help="Write into the page that a figure is older than its sources.")
@click.option("--logs", default="", help="Folder of public logs; figures that need it are left out without.")
def main(names: tuple[str, ...], is_list: bool, is_check: bool, admit: bool, logs: str) -> None:
    """Measure the named figures again, or all, and write them into their pages."""
    figures = read_registry(REGISTRY)
    if wrong := [name for name in names if name not in figures]:
        raise click.UsageError(f"no figure {wrong[0]!r}: there are {', '.join(figures)}")
    if is_list + is_check + admit > 1:
        raise click.UsageError("--list, --check and --admit: must be given one at a time")
    chosen = [figures[name] for name in dict.fromkeys(names or figures)]
    if is_check:
        lines = stale(chosen, ROOT) + ([] if names else unknown(chosen, ROOT))
        click.echo("\n".join(lines), nl=bool(lines), err=True)
        sys.exit(bool(lines))
    for figure in chosen:
        figure.part.check(ROOT / figure.page)
    if is_list:
        click.echo("\n".join(align_columns([listed(figure, ROOT) for figure in chosen], "llrl")))
    elif admit:
        for figure in chosen:
            figure.part.write(ROOT / figure.page, figure.admitted(ROOT))
    else:
        _measure(chosen, ROOT, logs)


def _measure(chosen: Sequence[Figure], root: Path, logs: str) -> None:
    """Measure the figures one after the other, writing each at once. Raises ValueError at the end, naming failures."""
    failed = []
    for figure in chosen:
        if figure.needs_logs and not logs:
            click.echo(f"{figure.name}: left out: needs --logs", err=True)
            continue
        click.echo(f"{figure.name}: about {figure.minutes:g} minutes", err=True)
        try:
            figure.part.write(root / figure.page, figure.measure(root, logs))
        except (ValueError, OSError) as error:
            click.echo(f"{figure.name}: {message_of(error)}", err=True)
            failed.append(figure.name)
    if failed:
        raise ValueError(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main(prog_name="figures")
