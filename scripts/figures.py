"""Measure the published figures again, and find those that are older than the code: `make figures`, `make lint`.

    python scripts/figures.py                 # measure all again
    python scripts/figures.py steps training  # these
    python scripts/figures.py --check         # exit with 1 if one is stale and does not say so
    python scripts/figures.py --admit steps   # write into the page that it is older than the code

scripts/figures.toml lists the figures. What a figure measures is known by a digest of its sources, which stands in the
page; it does not change with docstrings and comments, and needs no history of commits.
"""

import ast
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from collectives.probes import provenance
from generated_part import GeneratedPart
from ringsim.console import OneLineCommand
from ringsim.files import read_text

ROOT = Path(__file__).parents[1]
REGISTRY = Path(__file__).with_suffix(".toml")
SOURCES = re.compile(r"^<!-- sources (\w+) -->$", re.MULTILINE)
ADMITTED = "**The code has changed since this was measured.**"


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure, as scripts/figures.toml describes it."""

    name: str
    page: str
    commands: tuple[str, ...]
    measures: tuple[str, ...]
    minutes: float
    is_markdown: bool = False

    @property
    def part(self) -> GeneratedPart:
        """Its place in the page."""
        return GeneratedPart(f"<!-- figure: {self.name} -->", f"<!-- end of {self.name} -->")

    def digest(self, root: Path) -> str:
        """Return the digest of its sources. Raises ValueError for a source that there is not."""
        total = hashlib.sha256()
        for path in self._files(root):
            total.update(f"{path.relative_to(root)}\n{code_of(path)}\n".encode())
        return total.hexdigest()[:12]

    def _files(self, root: Path) -> Iterator[Path]:
        for name in self.measures:
            path = root / name
            if not path.exists():
                raise ValueError(f"{self.name}: measures {name!r}: there is no such file")
            yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]

    def is_fresh(self, root: Path) -> bool:
        """Return whether the page has a figure of the sources as they are, or says that it has not.

        Raises ValueError if the page has no place for it.
        """
        text = self.part.read(root / self.page)
        return ADMITTED in text or SOURCES.findall(text) == [self.digest(root)]

    def measure(self, root: Path, logs: str) -> str:
        """Run the commands, and return what the page says of them. Raises ValueError if one fails."""
        outputs = [_output(command.replace("{logs}", logs), root) for command in self.commands]
        where = provenance()
        lines = [
            f"<!-- sources {self.digest(root)} -->",
            "",
            f"Measured on {where['date'][:10]} at commit {_commit(root)}: {where['machine']}, {where['cores']} cores, "
            f"Python {where['python']}, torch {where['torch']}, OMP_NUM_THREADS=1.",
            "",
        ]
        if self.is_markdown:
            commands = "\n".join(self.commands).replace("{logs}", "LOGS_DIR")
            lines += [f"<!-- not run: it takes {self.minutes:g} minutes -->", "```bash", commands, "```", "", *outputs]
        else:
            session = "\n".join(
                f"$ {command}\n{output}" for command, output in zip(self.commands, outputs, strict=True)
            )
            lines += ["<!-- not run: measured by scripts/figures.py -->", "```text", session.rstrip("\n"), "```"]
        return "\n".join(lines)

    def admitted(self, root: Path) -> str:
        """Return its text with the statement that the code has changed since."""
        text = self.part.read(root / self.page)
        return text if ADMITTED in text else f"{ADMITTED}\n\n{text}"


def code_of(path: Path) -> str:
    """Return what a Python file does: its syntax tree without docstrings, which comments and layout do not change."""
    tree = ast.parse(read_text(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:]
    return ast.dump(tree)


def read_registry(path: Path) -> dict[str, Figure]:
    """Return the figures by name."""
    found = tomllib.loads(read_text(path))
    return {
        name: Figure(name, **{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
        for name, entry in found.items()
    }


def _output(command: str, root: Path) -> str:
    words = shlex.split(command)
    program = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(program, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{command}: ended with {done.returncode}")
    return done.stdout


def _commit(root: Path) -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() or "unknown"


def stale(figures: Sequence[Figure], root: Path) -> list[str]:
    """Return a line for each figure that is older than its sources."""
    return [
        f"{figure.page}: {figure.name} is older than {', '.join(figure.measures)}: measure again with `python "
        f"scripts/figures.py {figure.name}` ({figure.minutes:g} minutes), or let it say so with --admit"
        for figure in figures
        if not figure.is_fresh(root)
    ]


@click.command("figures", cls=OneLineCommand)
@click.argument("names", nargs=-1)
@click.option("--check", is_flag=True, help="Exit with 1 if a figure is older than its sources and does not say so.")
@click.option("--admit", is_flag=True, help="Write into the page that a figure is older than its sources.")
@click.option("--logs", default="", help="Folder of public logs; figures that need it are left out without.")
def main(names: tuple[str, ...], check: bool, admit: bool, logs: str) -> None:
    """Measure the named figures again, or all, and write them into their pages."""
    figures = read_registry(REGISTRY)
    if unknown := [name for name in names if name not in figures]:
        raise click.UsageError(f"no figure {unknown[0]!r}: there are {', '.join(figures)}")
    chosen = [figures[name] for name in names or figures]
    if check:
        lines = stale(chosen, ROOT)
        click.echo("\n".join(lines), nl=bool(lines), err=True)
        sys.exit(bool(lines))
    for figure in chosen:
        figure.part.check(ROOT / figure.page)
    for figure in chosen:
        if not admit and not logs and any("{logs}" in command for command in figure.commands):
            click.echo(f"{figure.name}: left out: needs --logs", err=True)
            continue
        click.echo(f"{figure.name}: about {figure.minutes:g} minutes", err=True)
        text = figure.admitted(ROOT) if admit else figure.measure(ROOT, logs)
        figure.part.write(ROOT / figure.page, text)


if __name__ == "__main__":
    main(prog_name="figures")
